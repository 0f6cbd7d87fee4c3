"""Processes that decode: they keep the order, they may die, and they never outlive who started them."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.living import is_running

from msvq.data.workers import Result, Task, Workers, _Worker, available_cores, perform

Paint = Callable[..., Image.Image]
Encode = Callable[..., bytes]


@pytest.fixture
def workers() -> Iterator[Workers]:
    pool = Workers(2)
    yield pool
    pool.close()


@pytest.fixture
def pictures(tmp_path: Path, paint: Paint, encode: Encode) -> list[str | bytes]:
    """Sixty pictures, as files and as bytes by turns; every tenth is bad in a way of its own."""
    made: list[str | bytes] = []
    for number in range(60):
        content = encode(paint(30, 20, seed=number), "JPEG")
        if number % 10 == 9:
            content = [b"", b"text" * number, content[:300]][number // 10 % 3]
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(content)
        made.append(content if number % 2 else str(path))
    return made


def chunks(pictures: Sequence[str | bytes], num: int) -> list[Sequence[str | bytes]]:
    return [pictures[start : start + num] for start in range(0, len(pictures), num)]


def joined(results: Iterable[Result]) -> Result:
    parts = list(results)
    starts = np.cumsum([0, *(len(part.rows) for part in parts)])
    reasons = {int(s) + i: why for s, part in zip(starts, parts, strict=False) for i, why in part.reasons.items()}
    return Result(np.concatenate([part.rows for part in parts]), reasons)


def pids(workers: Workers) -> list[int]:
    return [worker.process.pid for worker in workers._started.workers]


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_the_results_are_those_of_this_process_in_the_order_asked(
    workers: Workers, pictures: list[str | bytes]
) -> None:
    shapes: dict[Task, tuple[int, ...]] = {"decode": (60, 16, 16, 3), "check": (60, 0), "examine": (60,)}
    for task, shape in shapes.items():
        expected = perform(task, pictures, 16)
        assert sorted(expected.reasons) == [9, 19, 29, 39, 49, 59]
        result = joined(workers.map(task, chunks(pictures, 7), side=16))
        assert np.array_equal(result.rows, expected.rows)
        assert result.rows.shape == shape
        assert result.reasons == expected.reasons


def test_nothing_starts_before_it_is_needed_and_no_more_than_allowed(
    workers: Workers, pictures: list[str | bytes]
) -> None:
    work = workers.map("decode", chunks(pictures, 5), side=8)
    assert pids(workers) == []
    joined(work)
    assert len(pids(workers)) == 2
    joined(workers.map("decode", chunks(pictures, 5), side=8))
    assert len(pids(workers)) == 2
    assert Workers().num == available_cores()


def test_chunks_are_drawn_only_so_far_ahead(workers: Workers, pictures: list[str | bytes]) -> None:
    drawn = 0

    def source() -> Iterator[list[str | bytes]]:
        nonlocal drawn
        for picture in pictures:
            drawn += 1
            yield [picture]

    results = workers.map("decode", source(), side=8, ahead=3)
    for number in range(1, 6):
        next(results)
        assert drawn == 3 + number


def test_a_process_killed_in_the_middle_is_replaced_and_nothing_is_lost(
    workers: Workers, pictures: list[str | bytes]
) -> None:
    expected = perform("decode", pictures, 16)
    results = []
    for number, result in enumerate(workers.map("decode", chunks(pictures, 6), side=16)):
        results.append(result)
        if number == 1:
            for pid in pids(workers):
                os.kill(pid, signal.SIGKILL)
    whole = joined(results)
    assert np.array_equal(whole.rows, expected.rows)
    assert whole.reasons == expected.reasons
    assert all(map(is_running, pids(workers)))


@pytest.mark.parametrize("num", [1, 3])
def test_processes_killed_while_idle_are_replaced(workers: Workers, pictures: list[str | bytes], num: int) -> None:
    joined(workers.map("decode", chunks(pictures, 5), side=8))
    before = pids(workers)
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    result = joined(workers.map("decode", [pictures[:num]], side=8))
    assert result.reasons == {}
    assert np.array_equal(result.rows, perform("decode", pictures[:num], 8).rows)
    assert not set(pids(workers)) & set(before)


def deadly(monkeypatch: pytest.MonkeyPatch, killer: bytes) -> list[int]:
    """Make one picture kill its process, as a bug in a decoder would; returns how many each request held."""
    real, asked = _Worker.ask, []

    def ask(worker: _Worker, task: Task, pictures: Sequence[str | bytes], *rest: object) -> Result | None:
        asked.append(len(pictures))
        if killer in pictures:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        return real(worker, task, pictures, *rest)

    monkeypatch.setattr(_Worker, "ask", ask)
    return asked


@pytest.mark.parametrize("num", [1, 12])
def test_a_picture_that_kills_its_process_is_skipped_alone(
    workers: Workers, pictures: list[str | bytes], monkeypatch: pytest.MonkeyPatch, num: int
) -> None:
    killer = pictures[13]
    assert isinstance(killer, bytes)
    expected = perform("decode", pictures, 8)
    asked = deadly(monkeypatch, killer)
    result = joined(workers.map("decode", chunks(pictures, num), side=8))
    assert result.reasons == {**expected.reasons, 13: "ended the process that was reading it"}
    expected.rows[13] = 0
    assert np.array_equal(result.rows, expected.rows)
    assert len(asked) == -(-60 // num) + num + 1  # only the chunk that it was in is asked for again


def test_closing_ends_the_processes(pictures: list[str | bytes]) -> None:
    workers = Workers(2)
    joined(workers.map("decode", chunks(pictures, 5), side=8))
    processes = [worker.process for worker in workers._started.workers]
    assert [process.poll() for process in processes] == [None, None]
    workers.close()
    assert [process.poll() for process in processes] == [-signal.SIGKILL] * 2
    workers.close()


def test_closing_in_the_middle_of_work_starts_no_others(
    pictures: list[str | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[_Worker] = []
    real = _Worker.__init__

    def note(worker: _Worker) -> None:
        real(worker)
        started.append(worker)

    monkeypatch.setattr(_Worker, "__init__", note)
    workers = Workers(2)
    next(workers.map("decode", chunks(pictures * 4, 30), side=96))
    workers.close()
    assert wait_until(lambda: all(worker.process.poll() is not None for worker in started))
    time.sleep(0.2)
    assert len(started) <= 2


def test_a_pool_that_is_forgotten_ends_its_processes(pictures: list[str | bytes]) -> None:
    workers = Workers(2)
    joined(workers.map("decode", chunks(pictures, 5), side=8))
    processes = [worker.process for worker in workers._started.workers]
    del workers
    gc.collect()
    assert wait_until(lambda: all(process.poll() is not None for process in processes))


def test_bad_pictures_make_no_noise(workers: Workers, encode: Encode, capfd: pytest.CaptureFixture[str]) -> None:
    whole = encode(Image.new("RGB", (20, 20)), "TIFF")
    exif = encode(Image.new("RGB", (20, 20)), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    bad: list[str | bytes] = [exif]
    for place in range(0, len(whole), 3):
        bad.append(whole[:place] + b"\xff" + whole[place + 1 :])
    result = joined(workers.map("examine", chunks(bad, 32), side=8))
    assert 0 < len(result.reasons) < len(bad)
    assert 0 not in result.reasons
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate"])
def test_libtiff_is_silent_here_and_there(
    workers: Workers, paint: Paint, encode: Encode, capfd: pytest.CaptureFixture[str], compression: str
) -> None:
    whole = bytearray(encode(paint(64, 64), "TIFF", compression=compression))
    whole[100:-300:60] = bytes(len(whole[100:-300:60]))
    for result in (perform("decode", [bytes(whole)], 8), *workers.map("decode", [[bytes(whole)]], side=8)):
        assert result.reasons == {0: "is damaged: decoder error -2"}
    os.write(2, b"the rest is heard")
    assert capfd.readouterr() == ("", "the rest is heard")


def run_script(folder: Path, text: str) -> "subprocess.Popen[str]":
    path = folder / "script.py"
    path.write_text(text)
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


UNGUARDED = """
import sys
from msvq.data.workers import Workers
print("once")
workers = Workers(2)
pictures = {pictures!r}
print(sum(len(result.rows) for result in workers.map("decode", [[p] for p in pictures], side=8)))
"""


def test_a_script_needs_no_guard_and_runs_once(tmp_path: Path, pictures: list[str | bytes]) -> None:
    files = [picture for picture in pictures if isinstance(picture, str)]
    out, err = run_script(tmp_path, UNGUARDED.format(pictures=files)).communicate(timeout=30)
    assert (out, err) == ("once\n30\n", "")


ORPHANS = """
import itertools
from msvq.data.workers import Workers
workers = Workers(2)
results = workers.map("decode", itertools.repeat([{picture!r}] * 50), side=96)
next(results), next(results), next(results)
print(*(worker.process.pid for worker in workers._started.workers), flush=True)
for _ in results:
    pass
"""


def test_processes_end_when_their_parent_is_killed(tmp_path: Path, paint: Paint) -> None:
    paint(300, 200).save(tmp_path / "a.jpg")
    parent = run_script(tmp_path, ORPHANS.format(picture=str(tmp_path / "a.jpg")))
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2 and all(map(is_running, children))
    parent.kill()
    assert wait_until(lambda: not any(map(is_running, children)))
    assert parent.communicate(timeout=5) == ("", "")


def test_an_interrupt_is_left_to_the_parent(workers: Workers, pictures: list[str | bytes]) -> None:
    joined(workers.map("decode", chunks(pictures, 6), side=16))
    before, num = pids(workers), 0
    for result in workers.map("decode", chunks(pictures, 6), side=16):
        num += len(result.rows)
        for pid in before:
            os.kill(pid, signal.SIGINT)
    assert num == 60
    assert pids(workers) == before and all(map(is_running, before))
