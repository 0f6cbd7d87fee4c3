"""A sweep as a person runs it: killed half-way, continued, with a cell that fails; and every mistake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.living import children_of, is_running

import msvq
from msvq.cli import main
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK
from msvq.core.launch import child_environment
from msvq.reproduce import reproduce as command
from msvq.reproduce import sweep as sweeping
from msvq.reproduce.experiments import Cell, Task, make_tasks
from msvq.reproduce.reproduce import plan_sweep, reproduce, show
from msvq.reproduce.sweep import MANIFEST, SweepDisplay, check_out, sweep_directory
from msvq.reproduce.worker import TrainingMemory
from msvq.runs.metrics import read_metrics
from msvq.train.signals import Interrupted

ROWS = ["mocov2", "msv", "msvq"]
FEW_PICTURES = "import msvq.data.sources as s; s.PATTERNS_TEST = 200; "  # in child processes too: see conftest.py


def shell(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def wait_for(cell: Path, steps: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 120
    while max((line["step"] for line in read_metrics(cell / "metrics.jsonl")), default=0) < steps:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def wait_until_gone(pids: list[int]) -> None:
    """Until processes without a parent have saved and left."""
    assert pids
    until = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_sweep_is_killed_half_way_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = FEW_PICTURES + sweeping.PROGRAM
    monkeypatch.setattr(sweeping, "PROGRAM", program)
    out = tmp_path / "sweep"
    cells = {row: out / "cells" / f"patterns-{row}-s0" for row in ROWS}
    words = ["reproduce", "linear", "--scale", "smoke", "--methods", ",".join(ROWS), "--out", str(out)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    start = f"from msvq.reproduce import sweep; sweep.PROGRAM = {program!r}; from msvq.cli import main; main()"
    with (tmp_path / "said.txt").open("wb") as said:
        killed = subprocess.Popen([sys.executable, "-c", start, *words], env=environment, stdout=said, stderr=said)
        wait_for(cells["msv"], 30, killed)  # of 80: the first cell is finished, the second half-way
        workers = children_of(killed.pid)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        wait_until_gone(workers)
    first = cells["mocov2"] / "encoder.safetensors"
    before = first.stat().st_mtime_ns
    assert not (cells["msv"] / "encoder.safetensors").exists()
    cells["msvq"].mkdir()
    (cells["msvq"] / "letter.txt").write_text("not a run")

    sweep = plan_sweep("linear", scale="smoke", methods=ROWS, out=out)
    console = Console(record=True, width=200, file=(tmp_path / "console.txt").open("w"))
    outcome = reproduce(sweep, console=console)
    assert list(outcome.failed) == ["patterns-msvq-s0"]
    assert "not a run" in outcome.failed["patterns-msvq-s0"]
    show(outcome, console)
    told = console.export_text()
    assert "3 cells, 1 of them finished" in told
    assert "patterns-msv-s0 goes on" in told
    assert "failed: patterns-msvq-s0" in told
    assert first.stat().st_mtime_ns == before  # a finished cell is left alone
    assert (cells["msvq"] / "letter.txt").read_text() == "not a run"

    # The one that was killed has come to the same weights as one that was not.
    whole = msvq.pretrain(
        out=tmp_path / "whole", recipe="smoke", method="msv", precision="fp32", console=Console(quiet=True)
    )
    assert (cells["msv"] / "encoder.safetensors").read_bytes() == (whole.path / "encoder.safetensors").read_bytes()

    found = json.loads((out / "results" / "linear.json").read_text())
    places = {row["row"]: row["cells"]["patterns"] for row in found["rows"]}
    assert found["measure"] == "probe"
    for row in ("mocov2", "msv"):
        top1 = json.loads((cells[row] / "eval" / "probe.json").read_text())["top1"]
        assert places[row]["best"] == {"mean": top1, "std": None}
    assert (places["msvq"]["best"], places["msvq"]["seeds_missing"]) == (None, 1)
    # Nothing was published of these pictures, and no difference is known yet: columns of dashes are left out.
    told = (out / "results" / "linear.md").read_text()
    assert "| MSVQ beats MSV | patterns (embedded) | 0 | not measured |" in told
    assert "patterns-mocov2-s0" in (out / "report.html").read_text()
    assert json.loads((out / MANIFEST).read_text())["cells"]["patterns-msvq-s0"]["failed"]

    # The same command a third time, and the sweep is complete.
    (cells["msvq"] / "letter.txt").unlink()
    code, told, err = shell(capsys, *words)
    assert code == 0, err
    assert "3 cells, 2 of them finished" in told
    found = json.loads((out / "results" / "linear.json").read_text())
    assert [row["cells"]["patterns"]["seeds_missing"] for row in found["rows"]] == [0, 0, 0]
    assert all(cell["memory"] > 0 for cell in found["cells"].values())

    # Another table of the same runs needs no run at all, and has every row that is there.
    again = plan_sweep("knn", scale="smoke", methods=ROWS[:1], out=out)
    assert all(task.is_finished for task in again.tasks)
    knn = reproduce(again, console=Console(quiet=True)).result
    assert [row["row"] for row in knn["rows"]] == ROWS
    curve = [line["knn_top1"] for line in read_metrics(cells["msv"] / "metrics.jsonl") if "knn_top1" in line][1:]
    place = next(row for row in knn["rows"] if row["row"] == "msv")["cells"]["patterns"]
    assert (place["last"]["mean"], place["best"]["mean"]) == (curve[-1], max(curve))

    # So does the map of two of them.
    maps = reproduce(plan_sweep("tsne", scale="smoke", out=out), console=Console(quiet=True))
    assert {"tsne.png", "tsne.svg"} <= {file.name for file in maps.files}

    # Runs that were made beforehand are taken over, if they are what the cells would be.
    taken, name = tmp_path / "taken", "patterns-msv-s0"
    shutil.copytree(cells["msv"], taken / "cells" / name)
    words = ["reproduce", "knn", "--scale", "smoke", "--methods", "msv", "--out", str(taken)]
    code, told, err = shell(capsys, *words)
    assert code == 0, err
    assert "1 cell, 1 of them finished" in told
    place = json.loads((taken / "results" / "knn.json").read_text())["rows"][0]["cells"]["patterns"]
    assert place["last"]["mean"] == curve[-1]
    assert f"cells/{name}/report.html" in (taken / "report.html").read_text()
    sweeping.add_to_manifest(taken, name, 60.0)  # of something that was measured later
    assert sweeping.read_manifest(taken)["cells"] == {name: {"seconds": None}}  # the whole of it is not known
    shutil.copytree(cells["msv"], tmp_path / "other" / "cells" / name)
    config = tmp_path / "other" / "cells" / name / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 4", "epochs: 5"))
    code, _, err = shell(capsys, *words[:-1], tmp_path / "other")
    assert code == 2 and "ran with another train.epochs: 5, and it is 4 now" in err


def test_an_interrupted_sweep_leaves_a_table_of_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Interrupted("0 of 1 cells are finished", signal.SIGINT)

    monkeypatch.setattr(command, "run_tasks", interrupted)
    with pytest.raises(Interrupted):
        reproduce(
            plan_sweep("knn", scale="smoke", methods=["msvq"], out=tmp_path / "sweep"), console=Console(quiet=True)
        )
    found = json.loads((tmp_path / "sweep" / "results" / "knn.json").read_text())
    assert found["rows"][0]["cells"]["patterns"]["seeds_missing"] == 1


# A stand-in for the worker, without torch: what a cell's method is called says how it goes.
STAND_IN = """
import json, os, pathlib, signal, sys, time
def stop(*_):
    print(json.dumps({"state": "stopped", "reason": ""}), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
for line in sys.stdin:
    order = json.loads(line)
    run, method = pathlib.Path(order["out"]), order["arguments"]["method"]
    run.mkdir(parents=True)
    (run / "threads").write_text(os.environ["OMP_NUM_THREADS"])
    (run / "compile").write_text(str(order["compile"]))
    if method == "byol":
        os.kill(os.getpid(), signal.SIGKILL)
    while method == "simsiam":
        time.sleep(0.01)
    (run / "eval").mkdir()
    for name in ("encoder.safetensors", "encoder.json", "eval/analysis.json"):
        (run / name).touch()
    print(json.dumps({"state": "finished", "reason": ""}), flush=True)
"""


def stand_in_tasks(out: Path, monkeypatch: pytest.MonkeyPatch, *methods: str) -> tuple[list[Task], SweepDisplay]:
    monkeypatch.setattr(sweeping, "PROGRAM", STAND_IN)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    cells = [Cell("smoke", "patterns", method, (), 0) for method in methods]
    out.mkdir()
    (out / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    tasks = make_tasks(out, [(cell, ()) for cell in cells])
    return tasks, SweepDisplay(Console(quiet=True), tasks)


def test_a_cell_that_takes_its_process_down_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep"
    tasks, display = stand_in_tasks(out, monkeypatch, "byol", "msvq", "simclr", "mocov2")
    failed = sweeping.run_tasks(out, tasks, jobs=2, data_root=None, display=display)
    assert failed == {"patterns-byol-s0": "its process ended with code -9 (out of memory?)"}
    assert [task.is_finished for task in tasks] == [False, True, True, True]
    assert {(task.run / "threads").read_text() for task in tasks} == {"2"}  # each has its share
    assert {(task.run / "compile").read_text() for task in tasks} == {"False"}
    assert sweeping.read_manifest(out)["cells"]["patterns-byol-s0"]["failed"] == failed["patterns-byol-s0"]
    shutil.rmtree(tasks[0].run)
    sweeping.run_tasks(out, tasks, jobs=2, data_root=None, display=display)
    assert (tasks[0].run / "threads").read_text() == "2"  # also where it is the last that is left: to the bit


def test_an_interrupted_sweep_stops_its_cells_and_calls_none_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    tasks, display = stand_in_tasks(out, monkeypatch, "msvq", "simsiam", "mocov2")
    begin = display.begin

    def interrupt(task: Task) -> None:
        begin(task)
        if task.cell.method == "simsiam":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()

    monkeypatch.setattr(display, "begin", interrupt)
    with pytest.raises(Interrupted, match="1 of 3 cells are finished") as stopped:
        sweeping.run_tasks(out, tasks, jobs=1, data_root=None, display=display)
    assert stopped.value.signal_number == signal.SIGTERM
    assert not tasks[2].run.exists()  # nothing new is begun
    assert all("failed" not in facts for facts in sweeping.read_manifest(out)["cells"].values())


def test_on_windows_a_stopped_sweep_says_no_more_and_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To terminate a process there is to end it at once."""
    words = [sys.executable, "-c", "import sys; sys.stdin.read(); print('saved')"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    monkeypatch.setattr(sys, "platform", "win32")
    sweeping.Pool(1, tmp_path, None, processes=[process]).stop()
    assert process.stdout is not None
    assert (process.stdout.read(), process.wait()) == ("saved\n", 0)


def test_a_process_of_a_sweep_with_nothing_to_do_leaves_when_it_is_told_nothing_more() -> None:
    words = [sys.executable, "-c", sweeping.PROGRAM]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, env=child_environment(), timeout=100, check=False)
    assert done.returncode == 0


def test_a_process_that_somebody_stops_fails_its_cell_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    tasks, display = stand_in_tasks(out, monkeypatch, "simsiam", "msvq")
    start = sweeping.Pool.start

    def stop(process: "subprocess.Popen[str]", begun: Path) -> None:
        while not begun.exists():
            time.sleep(0.01)
        process.terminate()

    def watched(pool: sweeping.Pool, task: Task) -> None:
        start(pool, task)
        if task.cell.method == "simsiam":
            threading.Thread(target=stop, args=(pool.processes[0], task.run / "threads")).start()

    monkeypatch.setattr(sweeping.Pool, "start", watched)
    failed = sweeping.run_tasks(out, tasks, jobs=1, data_root=None, display=display)
    assert failed == {"patterns-simsiam-s0": "its process was stopped by another; it is saved"}
    assert tasks[1].is_finished


def test_memory_is_that_of_training_without_evaluations() -> None:
    def after(*kinds: str) -> int | None:
        for kind in kinds:
            held({"kind": kind})
        return held.peak

    held = TrainingMemory(torch.device("cpu"))
    assert after("step", "eval") is None
    without = after("epoch") or 0
    block = torch.ones(2**26)  # 256 MB, of an evaluation
    del block
    assert (after("eval", "epoch") or 0) < without + 2**27
    block = torch.ones(2**26)
    assert (after("epoch") or 0) > without + 2**27
    del block


def test_a_failed_cell_is_told_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "PROGRAM", STAND_IN)
    monkeypatch.setattr("msvq.reproduce.collect.read_run", lambda *arguments: None)
    words = ("--scale", "smoke", "--methods", "msvq,byol", "--out", tmp_path / "new", "--compile")
    code, out, err = shell(capsys, "reproduce", "knn", *words)
    assert code == 1, err
    assert (tmp_path / "new" / "cells" / "patterns-msvq-s0" / "compile").read_text() == "True"
    assert "failed: patterns-byol-s0: its process ended with code -9" in out.replace("\n", " ")


def test_alone_it_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "reproduce")
    assert code == 0
    for word in ("teacher-temperature", "table10", "figure6", "--scale smoke"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["linera"], "unknown table or figure 'linera'; did you mean 'linear'?"),
        (["table11"], "did you mean 'table10'?"),
        (["linear", "--scale", "small"], "unknown scale 'small'"),
        (["linear", "--scale", "smoke", "--methods", "msvqq"], "unknown row 'msvqq'; did you mean 'msvq'?"),
        (["linear", "--scale", "smoke", "--methods", ","], "--methods names no row"),
        (["queue-size", "--scale", "smoke", "--methods", "msvq"], "unknown row 'msvq'"),
        (["linear", "--datasets", "cifar11"], "unknown data set of linear 'cifar11'; did you mean 'cifar10'?"),
        (["linear", "--datasets", "stl10"], "scale mini has cifar10 alone; stl10 takes --scale paper"),
        (["linear", "--scale", "smoke", "--datasets", "cifar10"], "cifar10 takes --scale mini"),
        (["linear", "--scale", "smoke", "--jobs", "0", "--dry-run"], "--jobs is a number of runs at once"),
        (["knn", "--scale", "smoke", "--linear"], "--linear is for tables of linear accuracy; knn is measured by kNN"),
        (["linear", "--scale", "smoke", "--seeds", "0"], "--seeds is a number of repetitions"),
        (["linear", "--scale", "smoke", "--epochs", "0"], "--epochs is the length of every run, 1 to 1,000,000, not 0"),
        (["linear", "--scale", "mini-9-epochs", "--epochs", "8"], "scale mini-9-epochs has its length in its name"),
        (["linear", "--scale", "mimi-9-epochs"], "unknown scale 'mimi-9-epochs'"),
        (["linear", "--epochs", "12", "--out", "{tmp}/mini"], "is of a sweep at scale mini, not mini-12-epochs"),
        (["linear", "--scale", "smoke", "--jobs", "0", "--out", "{tmp}/new"], "--jobs is a number of runs at once"),
        (["linear", "--out", "{tmp}/new"], "--download fetches it (170 MB), --data-root DIR says where else it is"),
        (["linear", "--data-root", "{tmp}/none", "--out", "{tmp}/new"], "is not a folder"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/file"], "is a file"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/things"], "holds files that are not a sweep"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/mini"], "is of a sweep at scale mini, not smoke"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/damaged"], "is damaged"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/changed"], "ran with another train.epochs: 99"),
        (["linear", "--scale", "smoke", "--out", "{tmp}/changed", "--dry-run"], "ran with another train.epochs: 99"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    (tmp_path / "file").touch()
    for name, text in {
        "things/a.txt": "",
        "mini/sweep.json": '{"scale": "mini", "cells": {}}',
        "damaged/sweep.json": "{",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    cell = tmp_path / "changed" / "cells" / "patterns-msvq-s0"
    cell.mkdir(parents=True)
    (tmp_path / "changed" / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    settings = Cell("smoke", "patterns", "msvq", (), 0).settings()
    changed = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 99})})
    (cell / "config.yaml").write_text(changed.to_yaml())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = shell(capsys, "reproduce", *(word.format(tmp=tmp_path) for word in words))
    assert code == 2, out
    assert sentence in err
    assert err.count("\n") == 1, err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_one_task_a_cell_whoever_asks_for_it(tmp_path: Path) -> None:
    cell = Cell("smoke", "patterns", "msvq", (), 0)
    tasks = make_tasks(tmp_path, [(cell, ()), (cell, ["probe"]), (cell, ["probe", "map"])])
    assert [(task.cell, task.protocols) for task in tasks] == [(cell, ("probe", "map"))]


def test_the_seconds_of_a_cell_add_up_over_its_continuations(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    for state, reason in (("stopped", ""), ("failed", "no memory"), ("finished", "")):
        sweeping.add_to_manifest(tmp_path, "a", 1.0)  # while it runs
        sweeping.add_to_manifest(tmp_path, "a", 0.5, {"state": state, "reason": reason, "memory": 7})
    assert sweeping.read_manifest(tmp_path)["cells"] == {"a": {"seconds": 4.5, "training_memory": 7}}


def test_the_seconds_of_a_cell_are_written_down_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a sweep that is killed has lost no more than a minute of what its cells took."""
    out = tmp_path / "sweep"
    tasks, display = stand_in_tasks(out, monkeypatch, "simsiam")
    monkeypatch.setattr(sweeping, "WRITE", 0.0)
    noted: list[float] = []
    monkeypatch.setattr(sweeping, "add_to_manifest", lambda out, cell, seconds, answer=None: noted.append(seconds))
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        sweeping.run_tasks(out, tasks, jobs=1, data_root=None, display=display)
    assert len(noted) > 2
    assert 1 < sum(noted) <= time.monotonic() - started  # none of it twice


def test_other_pictures_are_noticed_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    earlier = out / "cells" / "patterns-ressl-s0"
    earlier.mkdir(parents=True)
    (out / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    (earlier / "environment.json").write_text('{"data_fingerprint": "of other pictures"}')
    (earlier / "config.yaml").write_text(Cell("smoke", "patterns", "ressl", (), 0).settings().to_yaml())
    (earlier / "checkpoints").mkdir()
    (earlier / "checkpoints" / "last.ckpt").touch()
    code, _, err = shell(capsys, "reproduce", "knn", "--scale", "smoke", "--methods", "msvq", "--out", out)
    assert code == 2
    assert "the cell patterns-ressl-s0 was trained on other pictures of patterns; give the --data-root" in err
    assert not (out / "cells" / "patterns-msvq-s0").exists()
    (earlier / "checkpoints" / "last.ckpt").unlink()  # killed before it had trained: in nobody's way
    sweep = plan_sweep("knn", scale="smoke", methods=["msvq"], out=out)
    command.check_pictures(sweep, sweep.tasks[0], None, Display(Console(quiet=True)))


def test_a_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    words = ("--scale", "smoke", "--methods", "msvq,ressl", "--seeds", "2", "--dry-run", "--out", out)
    code, told, err = shell(capsys, "reproduce", "linear", *words)
    assert code == 0, err
    assert "4 cells" in told and "one after the other" in told and "probe" in told
    assert not out.exists()


def test_what_a_kill_at_the_start_leaves_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / f".{MANIFEST}.1234.tmp").write_text('{"scale": "sm')
    check_out(tmp_path, "smoke")
    (tmp_path / "letter.txt").touch()
    with pytest.raises(BadInput, match="holds files that are not a sweep"):
        check_out(tmp_path, "smoke")


@pytest.mark.parametrize(
    "name", [LOCK, "cells", "results", "results/cells", "logs", "logs/errors.log", "logs/patterns-msvq-s0.log"]
)
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    out, others = tmp_path / "sweep", tmp_path / "others"
    others.mkdir()
    (others / "precious").write_text("mine")
    place = out / name
    place.parent.mkdir(parents=True)
    (out / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    place.symlink_to(others if name in ("cells", "results", "results/cells", "logs") else others / "precious")
    tasks = make_tasks(out, [(Cell("smoke", "patterns", "msvq", (), 0), ())])
    with pytest.raises(BadInput, match="is a link to"), sweep_directory(out, "smoke", tasks):
        pass
    assert [path.read_text() for path in others.iterdir()] == ["mine"]
