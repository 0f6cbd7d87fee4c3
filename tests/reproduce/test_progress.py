"""How far a sweep is, and how long it will take."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from msvq.reproduce.cells import FINISHED, Cell, Task
from msvq.reproduce.hours import Reference, seconds_left
from msvq.reproduce.progress import SweepDisplay, labelled, share_done, time_left, total_steps, trained_on, work


def test_time_left_follows_the_work_done_since_the_start() -> None:
    assert time_left(10.0, 0.0, 0.0, 100.0) is None
    assert time_left(10.0, 0.0, 20.0, 100.0) == 40.0
    assert time_left(10.0, 50.0, 70.0, 100.0) == 15.0  # what was finished before says nothing about the speed


def test_progress_is_read_from_the_log(tmp_path: Path) -> None:
    cell = Cell("smoke", "patterns", "msvq", (), 0)
    assert total_steps(cell) == 4 * (640 // 32)
    assert total_steps(Cell("paper", "cifar10", "msvq", (), 0)) == 39_000
    assert share_done(cell, tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 20}\n')
    assert share_done(cell, tmp_path) == 0.25
    other = Cell("smoke", "patterns", "mocov2", (), 0)
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    task, done = Task(cell, tmp_path, ()), Task(other, tmp_path / "other", ())
    done.run.mkdir()
    for name in FINISHED:
        (done.run / name).touch()
    with SweepDisplay(console, [task, done]) as display:
        display.begin(task)
        display.look()
        display.end(task, {"state": "failed", "reason": "no memory"})
    told = console.export_text()
    assert "[2/2] patterns-msvq-s0 goes on" in told
    assert "patterns-msvq-s0: failed after 0:00:00 (no memory)" in told


def test_work_counts_evaluations_and_the_protocols_after_training(tmp_path: Path) -> None:
    cell = Cell("smoke", "patterns", "msvq", (), 0)
    assert (trained_on(cell), labelled(cell)) == (640, 640)
    assert labelled(Cell("paper", "stl10", "msvq", (), 0)) == 5_000
    task = Task(cell, tmp_path, ("probe", "linear"))
    found = work(task)
    settings = cell.settings()
    evaluations = 1 + settings.train.epochs // settings.evaluate.every
    bank = min(640, settings.evaluate.knn_bank or 640)
    assert found.training == 80 * 32 * 6 + evaluations * (bank + 2_000)  # MSVQ: 3 for the student, 3 views
    assert found.protocols == {"probe": 2 * 2_640, "linear": 100 * 2_640}
    assert found.done(task) == 0
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 80}\n')
    assert found.done(task) == found.training  # there is more to come
    for name in (*FINISHED, "eval/probe.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert found.done(task) == found.training + 2 * 2_640
    (tmp_path / "eval" / "linear.json").touch()
    assert found.done(task) == found.total


def test_estimated_seconds_follow_the_passes(tmp_path: Path) -> None:
    reference = Reference(step=0.6, evaluation=2.0, evaluations=3)

    def seconds(method: str, *protocols: str, left: float = 1.0) -> float:
        cell = Cell("smoke", "patterns", method, (), 0)
        return seconds_left(Task(cell, tmp_path, protocols), reference, left)

    assert seconds("msvq") == pytest.approx(80 * 0.6 + 3 * 2)
    assert seconds("ressl") == pytest.approx(80 * 0.4 + 3 * 2)
    assert seconds("ressl", left=0.5) == pytest.approx(40 * 0.4 + 3)
    assert seconds("ressl", "linear", left=0.0) == pytest.approx(200)
    reference = replace(reference, whole=3.0)  # 60,000 pictures, where 20,000 are taken while it trains
    assert seconds("ressl", "linear", left=0.0) == pytest.approx(600)
