"""How far a sweep is, and how long it will take."""

from pathlib import Path

import pytest
from rich.console import Console

from msvq.core.files import FINISHED
from msvq.reproduce.estimate import Speed, count_work, num_labelled, num_trained, share_done, time_left, total_steps
from msvq.reproduce.experiments import Cell, Task
from msvq.reproduce.sweep import SweepDisplay


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
    (done.run / "eval").mkdir(parents=True)
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
    assert (num_trained(cell), num_labelled(cell)) == (640, 640)
    assert num_labelled(Cell("paper", "stl10", "msvq", (), 0)) == 5_000
    task = Task(cell, tmp_path, ("probe", "linear"))
    found = count_work(cell, task.protocols)
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
    def seconds(method: str, *protocols: str, share: float = 1.0) -> float:
        speed = Speed(step=0.6 / (32 * 6), evaluation=2.0 / 2_640)  # MSVQ's step takes 0.6 s, an evaluation 2 s
        return speed.seconds_left(Task(Cell("smoke", "patterns", method, (), 0), tmp_path, protocols), share)

    assert seconds("msvq") == pytest.approx(80 * 0.6 + 3 * 2)
    assert seconds("ressl") == pytest.approx(80 * 0.4 + 3 * 2)
    assert seconds("ressl", share=0.5) == pytest.approx(40 * 0.4 + 3)
    assert seconds("ressl", "linear", share=0.0) == pytest.approx(200)
    task = Task(Cell("mini", "cifar10", "ressl", (), 0), tmp_path, ("linear",))
    speed = Speed(step=0.0, evaluation=2.0 / 20_000)  # 60,000 pictures, where 20,000 are taken while it trains
    assert speed.seconds_left(task, 0.0) == pytest.approx(600)
