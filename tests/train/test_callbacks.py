"""Callbacks and loggers hear what is logged; trouble with one of them loses nothing of the run."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import msvq
from msvq.data.patterns import make_patterns
from msvq.runs.checkpoint import read_checkpoint
from msvq.runs.metrics import MetricsWriter, read_metrics
from msvq.train.callbacks import CallbackList, Line, Logger, TrainerCallback
from msvq.train.trainer import Trainer

SMALL = ["backbone.width=4", "data.limit=64", "train.batch_size=16", "method.queue_size=32", "train.log_every=1"]
SMALL += ["evaluate.every=1", "analyze.map=0"]


class Heard(Logger):
    """A logger that writes nothing, and fails when it is told to."""

    name = "heard"

    def __init__(self, fails_at: int | None = None) -> None:
        self.lines: list[Line] = []
        self.calls: list[str] = []
        self.fails_at = fails_at

    def open(self, run: Path, settings: Mapping[str, Any]) -> str:
        self.calls.append("open")
        return "listening"

    def on_log(self, line: Line) -> None:
        if line["step"] == self.fails_at:
            raise ConnectionError("the server is gone\nand more")
        self.lines.append(line)

    def on_train_end(self, trainer: Trainer) -> None:
        self.calls.append("close")


def trainer_in(folder: Path, said: list[str]) -> Any:
    """What loggers see of a trainer."""
    return SimpleNamespace(log=MetricsWriter(folder / "metrics.jsonl"), record={}, announce=said.append)


def test_a_logger_that_fails_is_told_once_and_left(tmp_path: Path) -> None:
    broken, whole, said = Heard(fails_at=2), Heard(), list[str]()
    callbacks, trainer = CallbackList([broken, whole], said.append), trainer_in(tmp_path, said)
    trainer.log.write("eval", {"step": 0})
    callbacks.on_train_start(trainer)
    for step in (1, 2, 3):
        callbacks.on_log(trainer.log.write("step", {"step": step}))
    callbacks.on_train_end(trainer)
    assert [line["step"] for line in broken.lines] == [0, 1]  # what was logged before it was opened, too
    assert [line["step"] for line in whole.lines] == [0, 1, 2, 3]
    assert (broken.calls, whole.calls) == (["open"], ["open", "close"])
    warned = [sentence for sentence in said if "warning" in sentence]
    assert len(warned) == 1
    assert "heard fails (the server is gone)" in warned[0]


def test_the_run_goes_on_without_what_may_fail_alone() -> None:
    class Broken(TrainerCallback):
        name = "broken"

        def on_log(self, line: Line) -> None:
            raise OSError("the disk is full")

    class Forgiven(Broken):
        may_fail = True

    for broken, kept in ((Broken(), True), (Forgiven(), False)):
        said = list[str]()
        callbacks = CallbackList([broken], said.append)
        callbacks.on_log({"kind": "step", "step": 1})
        assert (broken in callbacks.callbacks) is (callbacks.failure is not None) is kept
        assert any("broken fails (the disk is full)" in sentence for sentence in said) is not kept


def test_who_has_begun_is_ended_though_another_cannot_begin(tmp_path: Path) -> None:
    class Refused(Heard):
        def open(self, run: Path, settings: Mapping[str, Any]) -> str:
            raise msvq.BadInput("no key")

    begun, refused, said = Heard(), Refused(), list[str]()
    callbacks, trainer = CallbackList([begun, refused], said.append), trainer_in(tmp_path, said)
    with pytest.raises(msvq.BadInput, match="no key"):
        callbacks.on_train_start(trainer)
    callbacks.on_train_end(trainer)
    assert (begun.calls, refused.calls) == (["open", "close"], [])


def test_each_number_has_the_epoch_in_which_it_was_measured() -> None:
    class Look(TrainerCallback):
        def __init__(self, name: str, every: int) -> None:
            self.name, self.every = name, every

        def on_epoch_end(self, trainer: Any) -> Mapping[str, Any]:
            return {self.name: trainer.epoch} if trainer.epoch % self.every == 0 else {}

    trainer: Any = SimpleNamespace(measured={}, measured_at={})
    callbacks = CallbackList([Look("knn_top1", 5), Look("rank", 1)], print)
    for trainer.epoch in range(7):
        callbacks.on_epoch_end(trainer)
    assert trainer.measured_at == {"knn_top1": 5, "rank": 6}


def test_callbacks_hear_every_line_of_a_run(tmp_path: Path) -> None:
    heard: list[Line] = []
    run = msvq.pretrain(data="patterns", out=tmp_path / "x", epochs=1, overrides=SMALL, callbacks=[heard.append])
    assert heard == run.metrics()
    assert {line["kind"] for line in heard} == {"step", "epoch", "eval"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """A run that was never stopped."""
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=2, overrides=SMALL)


@pytest.mark.parametrize("kind", ["step", "epoch", "eval"])
def test_an_error_of_a_callback_comes_after_the_checkpoint(tmp_path: Path, whole: msvq.Run, kind: str) -> None:
    """What was stopped so and goes on equals what was never stopped."""
    later: list[Line] = []

    def stop(line: Line) -> None:
        if line["kind"] == kind and line["step"] >= 4:  # the last of the first epoch
            raise ZeroDivisionError("my own mistake")
        later.append(line)

    with pytest.raises(ZeroDivisionError, match="my own mistake") as caught:
        msvq.pretrain(data="patterns", out=tmp_path / "x", epochs=2, overrides=SMALL, callbacks=[stop])
    assert "the run is saved after 4 of 8 steps" in caught.value.__notes__
    assert max(line["step"] for line in read_metrics(tmp_path / "x" / "metrics.jsonl")) == 4
    run = msvq.pretrain(out=tmp_path / "x", resume=True, callbacks=[later.append])
    expected = [1, 2, 3, 5, 6, 7, 8] if kind == "step" else [1, 2, 3, 4, 5, 6, 7, 8]
    assert [line["step"] for line in later if line["kind"] == "step"] == expected
    losses = [[line["loss"] for line in one.metrics() if line["kind"] == "step"] for one in (whole, run)]
    assert losses[0] == losses[1]
    assert (run.path / "encoder.safetensors").read_bytes() == (whole.path / "encoder.safetensors").read_bytes()
    kinds = [[(line["kind"], line["step"]) for line in one.metrics()] for one in (whole, run)]
    assert kinds[0] == kinds[1]


def test_all_wait_for_what_is_heard_where_somebody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for listens, expected in ((True, [0, 1, "all meet"]), (False, [])):
        logger, said, order = Heard(), list[str](), list[object]()
        monkeypatch.setattr("msvq.train.callbacks.barrier", lambda order=order: order.append("all meet"))
        monkeypatch.setattr(logger, "on_log", lambda line, order=order: order.append(line["step"]))
        callbacks, trainer = CallbackList([logger] if listens else [], said.append), trainer_in(tmp_path, said)
        trainer.log.rewind(-1)
        trainer.log.write("eval", {"step": 0})
        callbacks.on_train_start(trainer)
        callbacks.on_log({"kind": "step", "step": 1})
        assert order == expected


ON_TWO_PROCESSES = """
import os, sys, time
from pathlib import Path
import msvq

heard = []

def stop(line):
    heard.append(line["step"])
    if line["step"] == 2:
        time.sleep(float(os.environ["MSVQ_TIME_LIMIT"]) + 1)
    if line["step"] == 3:
        raise ZeroDivisionError

try:
    msvq.pretrain(data="pictures.npz", out="x", epochs=1, overrides=sys.argv[1:], callbacks=[stop])
except (ZeroDivisionError, msvq.BadInput) as error:
    Path(os.environ["RANK"]).write_text(f"{type(error).__name__} {heard}")
"""


def test_an_error_in_the_first_process_ends_all_and_slow_work_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSVQ_TIME_LIMIT", "15")  # that a process waits in the middle of a step
    np.savez(tmp_path / "pictures.npz", images=make_patterns(64, seed=0)[0])
    (tmp_path / "script.py").write_text(ON_TWO_PROCESSES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = [setting for setting in SMALL if "limit" not in setting]
    subprocess.run([*launcher, "script.py", *settings], cwd=tmp_path, capture_output=True, check=True, timeout=240)
    assert (tmp_path / "0").read_text() == "ZeroDivisionError [0, 1, 2, 3]"
    assert (tmp_path / "1").read_text() == "RaisedOnOtherRank []"
    saved = read_checkpoint(tmp_path / "x" / "checkpoints" / "last.ckpt")
    assert saved is not None
    assert saved["step"] == 3
