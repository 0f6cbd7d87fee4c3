"""A machine that lacks a home, memory, a place to print to, or the end of a file: a sentence, and nothing is lost."""

import json
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import msvq
from msvq.cli import main
from msvq.core.files import is_run
from msvq.data.decode import Unreadable, header_size, read_content

SMALL = ["backbone.width=2", "train.batch_size=32", "method.queue_size=64", "analyze.map=0", "data.mode=stream"]
FAST = ["--epochs", "1", *(word for setting in SMALL for word in ("--set", setting))]
TINY = ["--data", "patterns", "--recipe", "smoke", "--epochs", "1", "--set", "data.limit=64"]
HOME = Path(msvq.__file__).parent.parent


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(64):
        Image.fromarray(generator.integers(256, size=(40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def code_of(*words: str | Path) -> int:
    """What `msvq` ends with, in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def run_elsewhere(
    *words: str | Path, redirect: str = "", before: Callable[[], None] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`msvq` in a process of its own, whose streams a shell redirects."""
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "msvq", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, preexec_fn=before, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No home in the environment, and none in the list of users."""

    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "MSVQ_HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_what_needs_one_says_so(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["datasets"], ["doctor", photos], ["pretrain", photos, *FAST, "--out", photos.parent / "run"]):
        assert code_of(*words) == 2
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("msvq: there is no home directory") and "MSVQ_HOME=DIR" in told


def test_a_home_that_cannot_be_written_is_told_with_the_way_out(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(photos / "0.png" / "home"))
    assert code_of("pretrain", photos, *FAST, "--set", "data.mode=store", "--out", photos.parent / "run") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"msvq: {photos}/0.png") and "MSVQ_HOME=DIR names another place" in told


@pytest.mark.parametrize("megabytes", [300, 1000])
def test_too_little_memory_to_load_pytorch_is_a_sentence(megabytes: int) -> None:
    limit = megabytes * 2**20
    done = run_elsewhere("methods", before=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 2
    assert "there is too little memory" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("homeless")
def test_a_run_ends_well_though_nothing_can_be_printed_and_there_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        code = code_of("pretrain", *TINY, "--out", tmp_path / "run")
    assert code == 0
    assert capsys.readouterr().err == "msvq: standard output cannot be written: No space left on device\n"
    assert msvq.load(tmp_path / "run").metrics() and (tmp_path / "run" / "report.html").is_file()


def test_closed_streams_cost_nothing_and_no_file_takes_their_place(photos: Path) -> None:
    out = photos.parent / "run"
    done = run_elsewhere("pretrain", photos, *FAST, "--out", out, redirect="<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for line in (out / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    assert not (out / "skipped.csv").exists() and (out / "report.html").is_file()


def test_what_is_printed_into_a_full_place_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--version"], ["settings"], ["settings", "nothing-like-it"]):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            monkeypatch.setattr(sys, "stdout", full)
            assert code_of(*words) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run_elsewhere("--nothing", redirect=">/dev/full 2>/dev/full").returncode == 2


def test_who_reads_no_more_is_not_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert code_of("settings") == 0
    assert capsys.readouterr().err == ""


def test_a_link_to_a_file_that_never_ends_is_passed_over(photos: Path) -> None:
    """By the command, in a process that can be ended."""
    (photos / "log.jpg").symlink_to("/proc/kmsg")
    (photos / "zeros.jpg").symlink_to("/dev/zero")
    os.mkfifo(photos / "pipe.jpg")
    for name, picture in (("a", "0.png"), ("b", "1.png")):
        (photos / name).mkdir()
        (photos / picture).rename(photos / name / picture)
    (photos / "a" / "config.yaml").symlink_to("/proc/kmsg")
    os.mkfifo(photos / "b" / "config.yaml")
    done = run_elsewhere("doctor", photos, "--json")
    assert json.loads(done.stdout)["unreadable"]["count"] == 1
    assert "log.jpg" in done.stdout and "is empty" in done.stdout


def test_what_has_no_end_is_not_opened(tmp_path: Path) -> None:
    for place in ("/proc/kmsg", "/proc/self/environ"):
        with pytest.raises(Unreadable, match="is empty"):
            read_content(place)
        assert header_size(place) is None
    with pytest.raises(Unreadable, match="is not a file"):
        read_content("/dev/zero")
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Unreadable, match=r"has 1,099\.5 GB, too much for a picture"):
        read_content(str(tmp_path / "large.jpg"))
    (tmp_path / "config.yaml").symlink_to("/proc/kmsg")
    assert not is_run(tmp_path)
