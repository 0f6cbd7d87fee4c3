"""Two real processes over gloo: the computation of one, and what happens when they die, stop or cannot divide."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import msvq
from msvq.cli import main
from msvq.core.errors import BadInput
from msvq.methods import METHODS, Method
from msvq.model.resnet import ResNet
from msvq.runs.checkpoint import read_checkpoint
from msvq.train.step import check_fit
from msvq.train.trainer import Trainer

SCRIPT = Path(__file__).with_name("on_ranks.py")
SMALL_BASE = {"hidden_dim": 16, "output_dim": 8}
# Everything in fp64, so that rounding cannot hide a difference, and MSVQ in fp32 too, as people use it.
CASES: list[dict[str, Any]] = [
    {"name": "msvq", "num": 10},
    {"name": "msvq", "num": 4, "precision": "fp32", "base_lr": 0.06},
    {"name": "msvq", "num": 3, "accumulate": 2, "options": {"warm_start": 1.0}},
    {"name": "msvq", "num": 3, "options": {"bn_splits": 2}},  # a group for each process
    {"name": "msvq", "num": 3, "options": {"bn_splits": 1}},  # one for both
    {"name": "msvq", "num": 3, "optimiser": "adamw", "base_lr": 1e-3},
    {"name": "msvq", "num": 3, "optimiser": "lars"},
    {"name": "msvq", "num": 3, "optimiser": "muon", "base_lr": 0.02},
    *({"name": name, "num": 2} for name in METHODS if name != "msvq" and ".py:" not in name),
    {"name": "mocov2", "num": 3, "options": {"symmetric": "sum"}},
    {"name": "simclr", "num": 3, "options": {"loss": "cross-view"}},
    {"name": "msf", "num": 3, "options": {"symmetric": False, "enqueue_first": True}},
    {"name": "cmsf", "num": 3, "options": {"symmetric": False, "second_target": "previous"}},
    {"name": "mnn", "num": 3, "options": {"renormalise": True}},
    {"name": "unmix", "num": 3, "options": {"base": "byol", "through": "whole", "base_options": SMALL_BASE}},
]
# What a run on the command line is made with; so slow a rate that rounding stays rounding.
SMALL = [
    *("backbone.width=4", "data.limit=160", "data.size=16", "data.test_size=16", "train.batch_size=16"),
    *("method.queue_size=32", "method.hidden_dim=16", "method.output_dim=8", "method.bn_splits=4"),
    *("train.log_every=1", "evaluate.every=2", "analyze.map=0", "train.base_lr=0.001", "train.checkpoint_every=2"),
]
# Few pictures to draw, here and in each of the processes.
TRAIN = 400
START = f"""
import msvq.data.sources as s; s.PATTERNS_TRAIN, s.PATTERNS_TEST = {TRAIN}, 200
from msvq.cli import main; main()
"""


# The same, but rank 1 is killed before its sixth step.
DYING = f"""
import os, signal
from msvq.train.trainer import Trainer
step = Trainer.train_step
def dying(self, *arguments):
    if os.environ["RANK"] == "1" and self.step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments)
Trainer.train_step = dying
{START}
"""


# Rank 1 has more to do than a process waits for another in a step. They meet first, where that limit holds too.
SLOW = """
import os, sys, time
from pathlib import Path
import torch
from msvq.core.distributed import map_sharded, process_group, rank
def work(rows):
    time.sleep(2.5 * rank())
    return torch.arange(4)[rows]
place = Path(sys.argv[1])
(place / os.environ["RANK"]).touch()
while len(list(place.iterdir())) < 2:
    time.sleep(0.01)
with process_group():
    print(map_sharded(4, work).tolist())
"""


def torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]


def pretrain(out: Path, *words: str, start: str = START) -> list[str]:
    """What follows torchrun: the command line, with fewer test pictures."""
    sets = [word for setting in SMALL for word in ("--set", setting)]
    script = out.parent / "start.py"
    script.write_text(start)
    return [str(script), "pretrain", "--out", str(out), "--precision", "fp32", *sets, *words]


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that is going on; whatever is left of it is killed in the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [line for line in msvq.Run(out).metrics() if line["kind"] == "step"]


def second_rank(process: subprocess.Popen[str]) -> int:
    """The process id of rank 1: torchrun's child with that in its environment."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes())


@pytest.fixture(autouse=True, scope="module")
def _few_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msvq.data.sources.PATTERNS_TRAIN", TRAIN)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """One process, never interrupted."""
    return msvq.pretrain(out=tmp_path_factory.mktemp("whole") / "x", epochs=2, precision="fp32", overrides=SMALL)


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    subprocess.run(torchrun(str(SCRIPT), str(tmp_path), json.dumps(CASES)), check=True, timeout=120)
    steps = runpy.run_path(str(SCRIPT))["steps"]
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for case, first, second in zip(CASES, *both, strict=True):
        alone = steps(**case)
        # A gradient in fp32 jumps where rounding moves an activation past 0; the state has their sum.
        rounded = case.get("precision") == "fp32"
        for key in ("losses", "state") if rounded else ("losses", "gradients", "state"):
            message = partial("{} {}: {}".format, case, key)
            tolerance = 1e-2 if rounded else 1e-6  # the views themselves are fp32
            torch.testing.assert_close(first[key], alone[key], rtol=tolerance, atol=tolerance, msg=message)
        for found, expected in zip(first["logs"], alone["logs"], strict=True):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert torch.equal(first["generator"], alone["generator"])
        assert torch.equal(torch.stack([first["read"], second["read"]], dim=2).flatten(1), alone["read"])
        # After a step all processes have the very same state.
        torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0)
        assert first["losses"] == second["losses"]


def assert_close(found: msvq.Run, expected: msvq.Run) -> None:
    """The same lines in the log and the same numbers in the checkpoint, but for rounding."""
    for line, other in zip(found.metrics(), expected.metrics(), strict=True):
        assert line.keys() == other.keys()
        for key in line.keys() - {"images_per_second", "knn_top1_val"}:
            if key.startswith("knn"):
                assert abs(line[key] - other[key]) <= 1  # two of the 200 test pictures
            elif isinstance(line[key], float):
                assert line[key] == pytest.approx(other[key], rel=2e-2, abs=2e-3), (line["step"], key)
    states = [read_checkpoint(run.path / "checkpoints" / "last.ckpt") for run in (found, expected)]
    assert states[0] is not None and states[1] is not None
    torch.testing.assert_close(states[0]["method"], states[1]["method"], rtol=2e-2, atol=2e-3)
    assert torch.equal(states[0]["generator"], states[1]["generator"])


def test_a_killed_process_ends_the_job_and_the_run_goes_on_with_one_and_with_two(
    tmp_path: Path, whole: msvq.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x"
    with started(torchrun(*pretrain(out, "--epochs", "2", start=DYING))) as process:
        process.communicate(timeout=120)
        assert process.returncode != 0
    assert [line["step"] for line in steps_of(out)] == list(range(1, 6))
    # On one process, until it is interrupted too.
    step = Trainer.train_step

    def stopped(self: Trainer, *arguments: Any) -> Any:
        if self.step == 13:
            raise KeyboardInterrupt
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            msvq.pretrain(out=out, resume=True)
    # And on two, to the end.
    with started(torchrun(*pretrain(out, "--resume"))) as process:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert said.count("MSVQ on patterns") == 1
    assert "report.html" in said
    assert "arning" not in said
    assert all((out / name).is_file() for name in ("report.html", "encoder.safetensors", "eval/analysis.json"))
    assert [line["step"] for line in steps_of(out)] == list(range(1, 21))
    assert_close(msvq.Run(out), whole)
    record = msvq.Run(out).environment()
    assert [entry["changed"] for entry in record["resumed"]] == [{"processes": [2, 1]}, {"processes": [1, 2]}]


def test_torchrun_restarts_a_run_and_hands_on_a_signal(tmp_path: Path) -> None:
    out = tmp_path / "x"
    command = torchrun("--max-restarts", "1", *pretrain(out, "--epochs", "50", "--auto-resume"))
    with started(command) as process:
        wait_until(lambda: len(steps_of(out)) >= 4, process)
        first, last = second_rank(process), steps_of(out)[-1]["step"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(steps_of(out)) > last + 4, process)
        process.terminate()
        said, _ = process.communicate(timeout=60)
        assert process.returncode != 0
    assert "stopped and saved after" in said
    numbers = [line["step"] for line in steps_of(out)]
    assert numbers == list(range(1, len(numbers) + 1))
    state = read_checkpoint(out / "checkpoints" / "last.ckpt")
    assert state is not None and state["step"] == numbers[-1]


def test_processes_that_do_not_divide_the_batch_or_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msvq.train.step.world_size", lambda: 3)

    def method(bn_splits: int) -> Method:
        return METHODS["msvq"](ResNet(width=4), queue_size=64, bn_splits=bn_splits)

    check_fit(method(6), 48)
    check_fit(method(1), 48, 4)
    with pytest.raises(BadInput, match=r"batch_size 32 does not divide among 3 processes; set .* a multiple of 3"):
        check_fit(method(8), 32)
    with pytest.raises(BadInput, match=r"in 8 parts does not divide among 3 processes; set .* a multiple of 24"):
        check_fit(method(1), 32, 8)
    with pytest.raises(BadInput, match=r"bn_splits 8 do not divide among 3 processes; set .* a multiple of 3"):
        check_fit(method(8), 48)
    own = method(1)
    own.student.backbone.bn1 = Unusual(4)  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="is a Unusual, which cannot see the batches of several processes as one"):
        check_fit(own, 48)


class Unusual(nn.BatchNorm2d):
    """A norm with a way of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def both_ranks(*words: str, **environment: str) -> tuple[list[int], list[str], list[str]]:
    """Two processes without torchrun: their exit codes, and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    start = partial(subprocess.Popen[str], [sys.executable, *words], stdout=PIPE, stderr=PIPE, text=True)
    ranks = [start(env={**os.environ, **place, **environment, "RANK": str(rank)}) for rank in range(2)]
    said, errors = zip(*(process.communicate(timeout=60) for process in ranks), strict=True)
    return [process.returncode for process in ranks], list(said), list(errors)


def test_one_process_may_take_longer_over_its_share_than_a_step_may(tmp_path: Path) -> None:
    codes, said, errors = both_ranks("-c", SLOW, str(tmp_path), MSVQ_TIME_LIMIT="1.5")
    assert codes == [0, 0], errors
    assert said == ["[0, 1, 2, 3]\n"] * 2


def test_they_say_so_once_and_all_exit_with_2(tmp_path: Path) -> None:
    words = pretrain(tmp_path / "x", "--set", "method.bn_splits=5", "--set", "train.batch_size=20")
    codes, _, errors = both_ranks(*words)
    assert codes == [2, 2]
    assert "the method's bn_splits 5 do not divide among 2 processes" in errors[0]
    assert errors[0].count("\n") == 1
    assert errors[1] == ""
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("name", "text"), [("WORLD_SIZE", "two"), ("RANK", "-1"), ("MSVQ_TIME_LIMIT", "soon")])
def test_an_environment_that_makes_no_sense_is_a_sentence(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for key, value in {**place, name: text}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(tmp_path / "x")])
    assert ended.value.code == 2
    assert f"{name}" in capsys.readouterr().err
