"""The loop: logs, checkpoints, resume to the bit, and a loss that is not a number."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import msvq
from msvq.core.errors import BadInput
from msvq.data.loader import Loader
from msvq.data.store import ImageSplit
from msvq.methods import METHODS
from msvq.train.trainer import Trainer

SMALL = [
    *("backbone.width=4", "data.limit=320", "data.size=16", "data.test_size=16", "train.batch_size=32"),
    *("method.queue_size=64", "method.hidden_dim=16"),
]
EVERY = [*SMALL, "train.log_every=1", "evaluate.every=1", "train.checkpoint_every=2"]


def checkpoint(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    return state


def assert_same(a: Any, b: Any) -> None:
    """Equal to the bit, through nested containers."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def untimed(run: msvq.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in run.metrics()]


def in_two_parts(monkeypatch: pytest.MonkeyPatch, stop_at: int, *, out: Path, **options: Any) -> msvq.Run:
    """A run that is interrupted at a step and resumed."""
    train_step = Trainer.train_step

    def interrupted(self: Trainer, *args: Any) -> Any:
        if self.step == stop_at:
            raise KeyboardInterrupt
        return train_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            msvq.pretrain(out=out, **options)
    return msvq.pretrain(out=out, resume=True)


@pytest.fixture
def _not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with their encoder: what is looked at afterwards is none of these tests' concern."""
    nothing = {"verdict": {"state": "unknown", "sentence": "nobody has looked", "advice": []}}
    monkeypatch.setattr("msvq.train.pretrain.evaluate_finished_run", lambda *arguments, **options: nothing)
    monkeypatch.setattr("msvq.api.write_report", lambda run: None)


@pytest.mark.usefixtures("_not_judged")
def test_a_run_of_steps_ends_within_an_epoch_and_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"overrides": [*EVERY, "train.steps=13", "evaluate.every=2"]}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    assert whole.config.train.epochs == 2  # begun: an epoch has ten steps
    assert [line["step"] for line in whole.metrics() if line["kind"] == "eval"] == [0, 13]
    steps = [line for line in whole.metrics() if line["kind"] == "step"]
    assert len(steps) == 13
    assert 0 < steps[-1]["lr"] < 0.1 * max(line["lr"] for line in steps)  # the schedule is that of 13 steps
    parts = in_two_parts(monkeypatch, 11, out=tmp_path / "parts", **options)
    assert untimed(parts) == untimed(whole)
    assert_same(checkpoint(parts.path)["method"], checkpoint(whole.path)["method"])
    longer = msvq.pretrain(out=whole.path, resume=True, epochs=2)
    assert (longer.config.train.steps, longer.metrics()[-1]["step"]) == (None, 20)
    with pytest.raises(BadInput, match="cannot resume with fewer epochs: the run has 2, not 1"):
        msvq.pretrain(out=whole.path, resume=True, epochs=1)
    with pytest.raises(BadInput, match="cannot resume with fewer steps: the run has 13, not 12"):
        msvq.pretrain(out=parts.path, resume=True, overrides=["train.steps=12"])
    with pytest.raises(BadInput, match="both say how long a run is"):
        msvq.pretrain(out=tmp_path / "both", epochs=1, overrides=["train.steps=12"])


@pytest.mark.usefixtures("_not_judged")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_twenty_steps_equal_ten_an_interruption_and_ten_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    options: dict[str, Any] = {"epochs": 2, "overrides": EVERY, "precision": precision}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    for stop_at in (3, 10, 14):  # in the first epoch, right after a checkpoint, and in a later epoch
        parts = in_two_parts(monkeypatch, stop_at, out=tmp_path / f"parts{stop_at}", **options)
        assert_same(checkpoint(whole.path), checkpoint(parts.path))
        assert untimed(whole) == untimed(parts)
        assert (whole.path / "encoder.safetensors").read_bytes() == (parts.path / "encoder.safetensors").read_bytes()


@pytest.mark.usefixtures("_not_judged")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small = [o for o in EVERY if o.partition("=")[0].removeprefix("method.") in METHODS[name].hyperparameters()]
    fixed = [o for o in EVERY if not o.startswith("method.")]
    options: dict[str, Any] = {
        "epochs": 2,
        "method": name,
        "precision": "fp32",
        "overrides": [*fixed, *small, "data.limit=96", "evaluate.every=5"],
    }
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    parts = in_two_parts(monkeypatch, 4, out=tmp_path / "parts", **options)
    assert_same(checkpoint(whole.path), checkpoint(parts.path))


def test_a_killed_process_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    sets = [word for option in [*EVERY, "evaluate.every=50"] for word in ("--set", option)]
    # With the few test pictures that this process has: they are part of the data's fingerprint.
    code = "import msvq.data.sources as s; s.PATTERNS_TEST = 200; from msvq.cli import main; main()"
    command = [sys.executable, "-c", code, "pretrain", "--out", str(out), "--epochs", "6", *sets]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not (out / "checkpoints" / "previous.ckpt").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "encoder.safetensors").exists()
    done = checkpoint(out)["step"]
    run = msvq.pretrain(out=out, resume=True)
    steps = [line["step"] for line in run.metrics() if line["kind"] == "step"]
    assert 0 < done < 60
    assert steps == list(range(1, 61))
    assert run.encoder is not None


def test_the_run_directory_holds_what_it_promises(tmp_path: Path) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=2, overrides=SMALL, seed=3)
    kinds = [line["kind"] for line in run.metrics()]
    assert {kinds.count("epoch"), kinds.count("eval")} == {2}  # the demo recipe measures every second epoch
    evals = [line for line in run.metrics() if line["kind"] == "eval"]
    assert [line["epoch"] for line in evals] == [0, 2]
    assert "knn_top1_best" not in evals[0]  # the untrained encoder is no candidate
    assert evals[1]["knn_top1_best"] == evals[1]["knn_top1"]
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["seed"] == 3
    assert environment["torch"] == torch.__version__
    assert len(environment["data_fingerprint"]) == 16
    names = {p.name for p in run.path.iterdir()}
    assert names == {
        *("config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "eval", ".lock"),
        *("encoder.safetensors", "encoder.json", "report.html"),
    }


def test_the_written_config_repeats_the_run(tmp_path: Path) -> None:
    first = msvq.pretrain(out=tmp_path / "first", epochs=1, overrides=EVERY, seed=5)
    again = msvq.pretrain(out=tmp_path / "again", recipe=first.path / "config.yaml")
    assert untimed(first) == untimed(again)
    assert (first.path / "config.yaml").read_text() == (again.path / "config.yaml").read_text()


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    runs = [msvq.pretrain(out=tmp_path / str(seed), epochs=1, overrides=EVERY, seed=seed) for seed in (1, 2)]
    assert untimed(runs[0]) != untimed(runs[1])


def test_a_loss_that_is_not_finite_stops_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = METHODS["msvq"].forward

    def broken(self: Any, batch: Any) -> Any:
        loss = forward(self, batch)
        return loss._replace(value=loss.value * float("nan")) if batch.progress >= 13 / 20 else loss

    monkeypatch.setattr(METHODS["msvq"], "forward", broken)
    with pytest.raises(BadInput, match="the loss became nan at step 14"):
        msvq.pretrain(out=tmp_path / "x", epochs=2, overrides=EVERY)
    assert checkpoint(tmp_path / "x")["step"] == 12
    monkeypatch.undo()
    run = msvq.pretrain(out=tmp_path / "x", resume=True)  # the last good checkpoint goes on
    assert checkpoint(run.path)["step"] == 20


def test_batches_are_a_pure_function_of_seed_and_epoch() -> None:
    images = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(40, 2, 2, 3).numpy()
    pictures = ImageSplit(images, torch.arange(40).numpy())
    loader = Loader(pictures, batch_size=8, seed=1, device=torch.device("cpu"))
    first = [labels.tolist() for _, labels, _ in loader.epoch(0)]
    assert len(loader) == 5
    assert sorted(label for labels in first for label in labels) == list(range(40))
    assert [labels.tolist() for _, labels, _ in loader.epoch(0, start=3)] == first[3:]
    assert [labels.tolist() for _, labels, _ in loader.epoch(1)] != first
    for x, labels, indices in loader.epoch(0):
        assert x[:, 0, 0, 0].tolist() == labels.tolist() == indices.tolist()


def test_the_last_partial_batch_is_dropped_and_too_few_are_refused() -> None:
    pictures = ImageSplit(
        torch.zeros(20, 2, 2, 3, dtype=torch.uint8).numpy(), torch.zeros(20, dtype=torch.int64).numpy()
    )
    assert len(Loader(pictures, batch_size=8, seed=0, device=torch.device("cpu"))) == 2
    with pytest.raises(BadInput, match="20 pictures are fewer than one batch of 32"):
        Loader(pictures, batch_size=32, seed=0, device=torch.device("cpu"))


def test_a_run_has_the_schedule_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[float, float]]] = []
    step = torch.optim.SGD.step

    def watched(self: torch.optim.SGD, *arguments: Any) -> Any:
        seen.append([(group["lr"], group["weight_decay"]) for group in self.param_groups])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    settings = ["backbone.width=2", "data.limit=320", "train.batch_size=32", "train.optimiser=sgd", "train.base_lr=0.8"]
    settings += ["train.warmup_epochs=1.5", "train.weight_decay=0.003", "train.decay_norm_and_bias=false"]
    settings += ["method.constant_predictor_rate=true", "method.hidden_dim=8", "method.output_dim=8"]
    settings += ["method.predictor_dim=4"]
    msvq.pretrain(out=tmp_path / "x", method="simsiam", epochs=4, precision="fp32", overrides=settings)
    assert len(seen) == 40
    for number, groups in enumerate(seen):  # ten steps an epoch; the peak is 0.8 x 32 / 256
        risen = 0.1 * number / 15
        rate = risen if number < 15 else 0.05 * (1 + math.cos(math.pi * (number - 15) / 25))
        rates, decays = zip(*groups, strict=True)
        assert sorted(rates) == pytest.approx(sorted([rate, rate, 0.1, 0.1]))
        assert sorted(decays) == [0, 0, 0.003, 0.003]
