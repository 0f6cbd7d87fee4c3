"""What an accelerator is given: the same numbers as a processor, few kernels, one block of random numbers, no waits.

The accelerator is pretended (tests/pretended_device.py). The counts stand in docs/performance.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import tiny_method
from tests.pretended_device import DEVICE, NAME, Counts, PretendedTensor, pretended_device
from torch import Tensor, nn
from typer.testing import CliRunner

import msvq
from msvq.cli import app
from msvq.config.settings import AugmentSettings, TrainSettings
from msvq.core.errors import BadInput
from msvq.core.runtime import AHEAD, OutOfMemory, RandomState, resolve_device, resolve_precision, send_together
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.store import ImageSplit
from msvq.methods import METHODS
from msvq.model.teacher import Network
from msvq.train.step import compile_networks
from msvq.train.trainer import NonFiniteLoss, Trainer

CPU = torch.device("cpu")
# Convolutions, batch norms, ReLUs, sums, the pooling and a head of two layers: a ResNet-18, once forwards.
NETWORK = 20 + 20 + 17 + 8 + 1 + 3

# Of each method, with a ResNet-18: forward passes through a network in a step, kernels of the method's forward pass,
# and of the whole step with its views. The kernels may only shrink.
BUDGETS = {
    "msvq": (4, 416, 921),
    "msv": (3, 299, 765),
    "mq": (3, 318, 789),
    "msvq-dagger": (4, 424, 929),
    "msvq-x3": (4, 416, 921),
    "msvq-x5": (5, 514, 1053),
    "ressl": (2, 201, 633),
    "mocov2": (2, 188, 858),
    "simclr": (2, 200, 978),
    "byol": (4, 353, 1219),
    "simsiam": (2, 220, 1031),
    "msf": (4, 376, 1009),
    "cmsf": (5, 504, 1205),
    "unmix": (3, 312, 1224),
    "nnclr": (2, 269, 1109),
    "snclr": (4, 438, 1365),
    "sce": (4, 402, 1056),
    "co2": (2, 214, 928),
    "mnn": (4, 402, 1073),
    "supervised": (1, 96, 213),
}


class Double(Augment):
    """Views in fp64, so that what two devices round differently is far below what one of them does wrongly."""

    def __call__(self, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(view.double() for view in super().__call__(*args, **options))


def trainer_of(name: str, out: Path, device: torch.device, *, precision: Any = None, **settings: Any) -> Trainer:
    """Sixty-four pictures of 16 pixels in batches of 16, a ResNet-18 of width 4; fp64 unless a precision is given."""
    torch.manual_seed(0)
    images, labels = torch.randint(256, (64, 16, 16, 3), dtype=torch.uint8), torch.arange(64) % 4
    method, kind = tiny_method(METHODS[name]), Augment if precision else Double
    trainer = Trainer(
        method if precision else method.double(),
        Loader(ImageSplit(images.numpy(), labels.numpy()), batch_size=16, seed=0, device=device),
        kind(dict(AugmentSettings()), size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        TrainSettings(batch_size=16, epochs=1, warmup_epochs=0, **settings),
        directory=out,
        precision=precision or "fp32",
    )
    trainer.method.train()
    return trainer


def take_steps(trainer: Trainer, num: int, counts: Counts | None = None) -> None:
    """Counted is what the last of them gives the device."""
    batches = trainer.loader.epoch(0)
    for _ in range(num):
        if counts is not None:
            counts.clear()
        trainer.train_step(*next(batches), 0.1)
        trainer.step += 1


class Forward:
    """Counts the kernels of a method's last forward pass, and how often it called a network."""

    def __init__(self, method: nn.Module, counts: Counts) -> None:
        self.kernels = self.networks = self.before = 0
        self.counts = counts
        method.register_forward_pre_hook(self._begin)
        method.register_forward_hook(self._end)
        for module in method.modules():
            if isinstance(module, Network):
                module.register_forward_pre_hook(self._call)

    def _begin(self, *_: Any) -> None:
        self.before, self.networks = self.counts.kernels.total(), 0

    def _end(self, *_: Any) -> None:
        self.kernels = self.counts.kernels.total() - self.before

    def _call(self, *_: Any) -> None:
        self.networks += 1


@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_every_method_is_the_processors_and_within_its_budget(name: str, tmp_path: Path) -> None:
    expected = trainer_of(name, tmp_path, CPU)
    take_steps(expected, 2)
    with pretended_device() as counts:
        trainer = trainer_of(name, tmp_path, DEVICE, log_every=100)
        forward = Forward(trainer.method, counts)
        take_steps(trainer, 2, counts)
        kernels, copies, waits = counts.kernels.total(), list(counts.to_device), counts.waits.total()
        trainer._read_losses(trainer.step)
        state = {key: value.cpu() for key, value in trainer.method.state_dict().items()}
    assert trainer.epoch_loss == pytest.approx(expected.epoch_loss, rel=1e-6)
    for key, value in expected.method.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-6, atol=1e-8)

    assert [(copy.pinned, copy.blocking) for copy in copies] == [(True, False)] * 2  # the pictures, the random numbers
    assert waits == 0

    networks, of_forward, of_step = BUDGETS[name]
    assert forward.networks == networks
    assert forward.kernels <= of_forward
    assert kernels <= of_step
    assert forward.kernels <= 2 * NETWORK * forward.networks


def test_a_logged_step_waits_once_and_its_numbers_are_the_steps(tmp_path: Path) -> None:
    expected = trainer_of("msvq", tmp_path, CPU)
    losses = [expected.train_step(*batch, 0.0)[:2] for batch in expected.loader.epoch(0)]
    with pretended_device() as counts:
        trainer = trainer_of("msvq", tmp_path, DEVICE, log_every=2)
        for number, batch in enumerate(trainer.loader.epoch(0)):
            counts.clear()
            output = trainer.train_step(*batch, 0.0)
            trainer.step += 1
            assert counts.waits.total() == (1, 1, 0, 1)[number]  # the first is read, for there is none before it
            if number % 2:
                assert output.loss == pytest.approx(losses[number][0])
                assert float(output.logs["kl"]) == pytest.approx(float(losses[number][1]["kl"]))
    assert trainer.epoch_loss == pytest.approx(sum(loss for loss, _ in losses))
    assert trainer.epoch_steps == 4


def test_a_loss_that_became_no_number_is_told_with_its_step_when_it_is_read(tmp_path: Path) -> None:
    with pretended_device():
        trainer = trainer_of("simsiam", tmp_path, DEVICE, log_every=4)
        batches = trainer.loader.epoch(0)
        for step in range(3):
            if step == 1:
                with torch.no_grad():
                    next(trainer.method.parameters()).fill_(float("nan"))
            trainer.train_step(*next(batches), 0.0)
            trainer.step += 1
        with pytest.raises(NonFiniteLoss, match="the loss became nan at step 2;"):
            trainer.save()


@pytest.mark.parametrize("optimiser", ["sgd", "adamw", "lars", "muon"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_in_half_precision_learns_what_the_processor_learns(
    precision: str, optimiser: str, tmp_path: Path
) -> None:
    found = []
    for device in (CPU, DEVICE):
        with pretended_device() as counts:
            trainer = trainer_of("ressl", tmp_path, device, precision=precision, optimiser=optimiser, log_every=100)
            take_steps(trainer, 2, counts)
            waits = dict(counts.waits)
            trainer._read_losses(trainer.step)
            found.append(trainer.epoch_loss)
            assert trainer.scaler.is_enabled() == (precision == "fp16")
    assert found[0] == pytest.approx(found[1], rel=0.05)
    # PyTorch's own optimisers take the scale along; to others, whether gradients overflowed has to be told.
    assert waits == ({} if precision == "bf16" or optimiser in ("sgd", "adamw") else {"reading a number": 1})


def test_networks_of_groups_are_planar_and_others_channels_last(tmp_path: Path) -> None:
    """Where groups are interleaved planes no activation is copied; without groups convolutions want channels last."""
    with pretended_device() as counts:
        for name, layout in (("ressl", torch.contiguous_format), ("simclr", torch.channels_last)):
            trainer = trainer_of(name, tmp_path, DEVICE)
            weights = [p for p in trainer.method.parameters() if p.ndim == 4 and p.shape[2] > 1]
            assert all(weight.is_contiguous(memory_format=layout) for weight in weights)
            (views, _) = trainer.augment(next(trainer.loader.epoch(0))[0], ("weak", "weak"), trainer.generator)
            counts.clear()
            trainer.method.student(views)
            # What copies: the pictures once, and the projector's input nowhere.
            assert counts.kernels["aten.clone.default"] == (name == "ressl")


# --- devices


def test_devices_do_not_mix() -> None:
    with pretended_device():
        there, here = torch.ones(3, device=NAME), torch.ones(3)
        assert (there.device, there.is_cpu) == (DEVICE, False)
        assert float((there + torch.tensor(2.0)).sum()) == 9  # a single number may come from anywhere
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([here, there])
        with pytest.raises(RuntimeError, match="same device"):
            here[there.long()]
        with pytest.raises((TypeError, RuntimeError), match=r"(?i)numpy"):
            there.numpy()
    with pretended_device(lacks=(torch.float64,)), pytest.raises(TypeError, match=r"has no torch\.float64"):
        torch.ones(3, device=NAME).double()


def test_memory_that_is_being_copied_must_stay_as_it_is() -> None:
    with pretended_device() as counts:
        block = torch.ones(3, pin_memory=True)
        there = block.to(NAME, non_blocking=True)
        block.zero_()
        with pytest.raises(AssertionError, match="changed while it was being copied"):
            there.sum().item()
    assert (counts.to_device[0].pinned, counts.to_device[0].blocking) == (True, False)


def test_what_is_sent_together_arrives_as_it_was() -> None:
    given = [torch.arange(5), torch.rand(2, 3), torch.zeros(0, 4), torch.tensor([True]), torch.rand(3).double()]
    with pretended_device() as counts:
        there = send_together(given, DEVICE)
        assert all(isinstance(tensor, PretendedTensor) for tensor in there)
        assert len(counts.to_device) == 1
        for tensor, arrived in zip(given, there, strict=True):
            assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(arrived.cpu(), tensor)
    assert all(a is b for a, b in zip(given, send_together(given, CPU), strict=True))


def test_permutations_that_are_sent_ahead_are_the_processors_and_leave_no_trace() -> None:
    torch.manual_seed(0)
    here, there = RandomState(), RandomState()
    there.load_state_dict(here.state_dict())
    with pretended_device() as counts:
        for number in range(AHEAD + 10):
            for ours, theirs in zip(there.permutation(7, DEVICE), here.permutation(7), strict=True):
                assert torch.equal(ours.cpu(), theirs)
            if number == 5:  # what is saved is what a processor would save, and nothing is drawn twice
                assert torch.equal(there.get_extra_state(), here.get_extra_state())
        assert len(counts.to_device) == 3
        assert there.uniform() == here.uniform()


# --- switches


def test_a_run_leaves_the_switches_of_precision_and_determinism_as_they_are(tmp_path: Path) -> None:
    """Convolutions may use TF32, as PyTorch has it; similarities, which are matrix products, must not."""

    def switches() -> list[Any]:
        cudnn = torch.backends.cudnn
        return [
            torch.get_float32_matmul_precision(),
            *(cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
            torch.are_deterministic_algorithms_enabled(),
        ]

    before = switches()
    with pretended_device():
        take_steps(trainer_of("ressl", tmp_path, DEVICE, precision="fp16"), 1)
    assert switches() == before == ["highest", True, False, False, False]


def test_on_cuda_compiled_networks_are_graphs_or_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compile_nothing(function: Any, **options: Any) -> Any:
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    method = tiny_method(METHODS["ressl"])
    notes: list[str] = []
    monkeypatch.setattr("msvq.train.step.find_spec", lambda name: object())
    for device, mode in (("cuda", "reduce-overhead"), ("cpu", None)):
        asked.clear()
        compile_networks(method, torch.device(device), notes.append)
        assert asked == [{"dynamic": False, "mode": mode}] * 2  # the student and its teacher
        x = torch.randn(16, 3, 16, 16)
        assert method.student(x).shape == (16, 8)
    monkeypatch.setattr("msvq.train.step.find_spec", lambda name: None)
    asked.clear()
    compile_networks(method, torch.device("cuda"), notes.append)
    assert (asked, len(notes)) == ([], 1)
    assert "needs the package triton" in notes[0]


# --- bad input


def test_a_device_that_cannot_be_used_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"device 'xpu' is not there; this machine has: cpu"):
        resolve_device("xpu")
    with pretended_device():
        assert resolve_device("auto") == DEVICE
        with pytest.raises(BadInput, match="this machine has: cpu, pretend"):
            resolve_device("xpu")

    def too_old(*args: Any, **options: Any) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch, "empty", too_old)
    with pytest.raises(BadInput, match=r"the driver of device 'cuda' is too old .*11040.*; update it, .*--device cpu"):
        resolve_device("cuda")


def test_a_card_without_bf16_is_told_and_auto_takes_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: False)
    assert resolve_precision("auto", torch.device("cuda")) == "fp16"
    with pytest.raises(BadInput, match="device 'cuda:1' does not compute in bf16; use --precision fp16, or auto"):
        resolve_precision("bf16", torch.device("cuda:1"))


def test_a_device_that_is_full_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pretended_device():
        trainer = trainer_of("ressl", tmp_path, DEVICE)
        monkeypatch.setattr(trainer.method, "forward", full)
        with pytest.raises(OutOfMemory, match=r"does not fit into the memory of pretend:0; --set train\.accumulate=2"):
            take_steps(trainer, 1)


# --- whole runs

SMALL = [
    *("backbone.width=4", "backbone.name=resnet8", "data.limit=96", "data.size=16", "data.test_size=16"),
    *("train.batch_size=32", "train.log_every=1", "evaluate.every=1", "method.queue_size=64", "method.hidden_dim=16"),
]


def run_of(out: Path, device: str, *others: str, **options: Any) -> msvq.Run:
    given = {"epochs": 2, "precision": "fp32", **options}
    return msvq.pretrain(out=out, device=device, overrides=[*SMALL, *others], **given)


def steps_of(run: msvq.Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if line["kind"] == "step"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[msvq.Run, msvq.Run]]:
    """A run on the processor, and one on a device without fp64, such as Apple's."""
    out = tmp_path_factory.mktemp("runs")
    with pretended_device(lacks=(torch.float64,)):
        yield run_of(out / "cpu", "cpu"), run_of(out / "there", NAME)


def test_a_run_is_the_processors_run(runs: tuple[msvq.Run, msvq.Run]) -> None:
    here, there = runs
    assert steps_of(there) == pytest.approx(steps_of(here), rel=1e-3)
    numbers = [[line for line in run.metrics() if line["kind"] == "eval"][-1] for run in runs]
    for name in ("rank", "alignment", "student_teacher1", "disagreement", "same_class_share"):
        assert numbers[1][name] == pytest.approx(numbers[0][name], rel=1e-2)
    assert there.config.train.device == NAME


@pytest.mark.parametrize(
    ("protocol", "changes"),
    [("knn", {"k": 20}), ("probe", {}), ("linear", {"epochs": 1}), ("finetune", {"epochs": 1, "min_steps": 3})],
)
def test_protocols_measure_the_same(runs: tuple[msvq.Run, msvq.Run], protocol: str, changes: dict[str, Any]) -> None:
    found = [runs[1].evaluate(protocol, changes, device=device).top1 for device in ("cpu", NAME)]
    assert found[0] == pytest.approx(found[1], abs=2)  # of 200 test pictures


def test_features_searches_and_exports_are_the_same(runs: tuple[msvq.Run, msvq.Run], tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    here, there = (runs[1].embed(pictures, device=device) for device in ("cpu", NAME))
    np.testing.assert_allclose(here, there, atol=1e-5)
    text = [str(runs[1].path), "--data", "patterns", "--top", "3", "--device"]
    found = []
    for device in ("cpu", NAME):
        done = CliRunner().invoke(app, ["search", *text, device, "--query", "train 0", "--json"])
        assert done.exit_code == 0, done.output
        found.append(done.stdout)
    assert found[0] == found[1]
    assert (runs[1].export("safetensors", tmp_path / "out")).is_dir()


def test_a_run_goes_on_to_the_bit_in_parts_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"verdict": {"state": "unknown", "sentence": "nobody has looked", "advice": []}}
    monkeypatch.setattr("msvq.train.pretrain.evaluate_finished_run", lambda *a, **o: nothing)
    monkeypatch.setattr("msvq.api.write_report", lambda run: None)
    options = ["train.accumulate=2", "train.resolution=[[0.0, 12], [0.5, 16]]", "train.checkpoint_every=2"]
    options += ["data.limit=64", "evaluate.every=50"]
    step = Trainer.train_step
    with pretended_device():
        whole = run_of(tmp_path / "whole", NAME, *options, precision="bf16")
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train_step", lambda self, *a: 1 / (self.step < 3) and step(self, *a))
            with pytest.raises(ZeroDivisionError):
                run_of(tmp_path / "parts", NAME, *options, precision="bf16")
        parts = msvq.pretrain(out=tmp_path / "parts", resume=True)
    assert steps_of(parts) == steps_of(whole)


def test_bench_times_a_device() -> None:
    settings = [word for option in SMALL for word in ("--set", option)]
    with pretended_device() as counts:
        done = CliRunner().invoke(app, ["bench", "--steps", "3", "--json", "--device", NAME, *settings])
        assert done.exit_code == 0, done.output
        assert counts.waits["synchronize"] > 0  # what is timed is done
