"""What an accelerator is given: the same numbers as a processor, few kernels, one block of random numbers, no waits.

The accelerator is pretended (tests/pretended_device.py). The counts stand in docs/performance.md.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import tiny_method
from tests.pretended_device import DEVICE, NAME, Counts, PretendedTensor, pretended_device
from torch import Tensor, nn
from typer.testing import CliRunner

import msvq
from msvq.cli import app, main
from msvq.config.settings import AugmentSettings, TrainSettings
from msvq.core.errors import BadInput
from msvq.core.runtime import (
    AHEAD,
    RandomState,
    RandomStream,
    resolve_device,
    resolve_precision,
    send_together,
    step_rng,
)
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.store import ImageSplit
from msvq.evaluate.diagnostics.false_negatives import Audit
from msvq.methods import METHODS
from msvq.model.teacher import Network
from msvq.preflight.timing import PARTS
from msvq.runs.checkpoint import load_checkpoint
from msvq.train.step import compile_networks
from msvq.train.trainer import NonFiniteLoss, Trainer

CPU = torch.device("cpu")
FITTING_SCALE = 128.0  # of a loss in fp16: small enough for all of these networks
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


BF16_BUDGET = (520, 1045)  # MSVQ's in what a CUDA device computes in by itself: weights and inputs are cast


class Double(Augment):
    """Views in fp64, so that what two devices round differently is far below what one of them does wrongly."""

    def __call__(self, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(view.double() for view in super().__call__(*args, **options))


def trainer_of(
    name: str,
    out: Path,
    device: torch.device,
    *,
    precision: Any = None,
    announce: Callable[[str], None] = print,
    **settings: Any,
) -> Trainer:
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
        announce=announce,
    )
    if precision == "fp16":  # PyTorch begins with 65,536, and leaves out updates until the scale fits
        trainer.scaler = torch.amp.GradScaler(device.type, init_scale=FITTING_SCALE)
    trainer.method.train()
    return trainer


def take_steps(trainer: Trainer, num: int, counts: Counts | None = None) -> None:
    """Counted is what the last of them gives the device."""
    batches = trainer.loader.epoch(0, start=trainer.step)
    for _ in range(num):
        if counts is not None:
            counts.clear()
        trainer.train_step(*next(batches), 0.1)
        trainer.step += 1


def weights_of(trainer: Trainer) -> Tensor:
    """All that learns, in one row."""
    return torch.cat([p.detach().cpu().flatten() for p in trainer.method.parameters() if p.requires_grad])


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


def test_the_page_has_the_budgets() -> None:
    text = (Path(__file__).parents[1] / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, (networks, of_forward, _) in BUDGETS.items():
        own = NETWORK * networks
        kernels = rf"\| {name} \| {own} \| [\d,]+ \| {of_forward} \({of_forward / own:.1f}\)"
        assert re.search(rf"^{kernels} \| \d+ \| 2 \| 1 \| 0 \|$", text, re.M), name
    assert set(BUDGETS) == set(METHODS)
    of_forward, of_step = BF16_BUDGET
    assert f"MSVQ's forward pass is {of_forward} kernels and its step {of_step:,}" in text


def test_a_step_in_bf16_is_within_its_budget(tmp_path: Path) -> None:
    with pretended_device() as counts:
        trainer = trainer_of("msvq", tmp_path, DEVICE, precision="bf16", log_every=100)
        forward = Forward(trainer.method, counts)
        take_steps(trainer, 2, counts)
        assert (len(counts.to_device), counts.waits.total()) == (2, 0)
        assert forward.kernels <= BF16_BUDGET[0]
        assert counts.kernels.total() <= BF16_BUDGET[1]


@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
def test_a_logged_step_waits_once_and_its_numbers_are_the_steps(precision: str | None, tmp_path: Path) -> None:
    expected = trainer_of("msvq", tmp_path, CPU, precision=precision)
    losses = [expected.train_step(*batch, 0.0)[:2] for batch in expected.loader.epoch(0)]
    near = partial(pytest.approx, rel=0.05, abs=0.01) if precision else pytest.approx
    with pretended_device() as counts:
        trainer = trainer_of("msvq", tmp_path, DEVICE, precision=precision, log_every=2)
        for number, batch in enumerate(trainer.loader.epoch(0)):
            counts.clear()
            output = trainer.train_step(*batch, 0.0)
            trainer.step += 1
            assert counts.waits.total() == (1, 1, 0, 1)[number]  # the first is read, for there is none before it
            if number % 2:
                assert output.loss == near(losses[number][0])
                assert float(output.logs["kl"]) == near(float(losses[number][1]["kl"]))
    assert trainer.epoch_loss == near(sum(loss for loss, _ in losses))
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
    losses, moved = [], []
    for device in (CPU, DEVICE):
        with pretended_device() as counts:
            trainer = trainer_of("ressl", tmp_path, device, precision=precision, optimiser=optimiser, log_every=100)
            before = weights_of(trainer)
            take_steps(trainer, 2, counts)
            waits = dict(counts.waits)
            trainer._read_losses(trainer.step)
            losses.append(trainer.epoch_loss)
            moved.append(weights_of(trainer) - before)
            assert trainer.scaler.is_enabled() == (precision == "fp16")
            if precision == "fp16":
                assert trainer.scaler.get_scale() == FITTING_SCALE  # no update was left out
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    # Rounded as coarsely as that, in another order: up to 0.18 where both are that far from fp32.
    assert 0 < float((moved[1] - moved[0]).norm()) < 0.25 * float(moved[0].norm())
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
        assert (
            float((there + torch.tensor(2.0)).sum()) == 9
        )  # where kernels are pointwise, a single number may come from anywhere
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            torch.stack([there.sum(), here.sum()])
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([here, there])
        with pytest.raises(RuntimeError, match="same device"):
            here[there.long()]
        with pytest.raises((TypeError, RuntimeError), match=r"(?i)numpy"):
            there.numpy()
        weight = torch.ones(2, 3, device=NAME, requires_grad=True)
        weight.grad = torch.ones(3, 2, device=NAME).T
        with pytest.raises(RuntimeError, match="the same layout"):
            torch.optim.SGD([weight], fused=True).step()
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


def test_an_audit_of_soft_labels_waits_for_nothing_until_it_is_read(tmp_path: Path) -> None:
    found = []
    with pretended_device() as counts:
        for device in (CPU, DEVICE):
            trainer, audit = trainer_of("msvq", tmp_path, device, log_every=100), Audit()
            for batch in trainer.loader.epoch(0):
                ((soft_labels, labels),) = trainer.train_step(*batch, 0.1).soft_labels
                trainer.step += 1
                counts.clear()
                audit.add(soft_labels, labels)
                assert (counts.kernels.total() > 0) == (device == DEVICE) and counts.waits.total() == 0
            found.append(audit.result())
    here, there = found
    for name in ("view2", "view3", "all", "one_hot"):
        assert there[name] == pytest.approx(here[name], rel=1e-6)
    assert there["same_class_share"] == here["same_class_share"] > 0
    assert there["disagreement"] == pytest.approx(here["disagreement"], rel=1e-6)
    assert (there["num_samples"], there["num_labelled"]) == (64, 64)


@pytest.mark.parametrize("name", ["msvq", "simclr"])
def test_a_batch_in_parts_sends_a_block_for_the_views_of_each(name: str, tmp_path: Path) -> None:
    """And learns what the processor learns of it."""
    expected = trainer_of(name, tmp_path, CPU, precision="fp32", accumulate=2)
    take_steps(expected, 2)
    with pretended_device() as counts:
        trainer = trainer_of(name, tmp_path, DEVICE, precision="fp32", accumulate=2, log_every=100)
        take_steps(trainer, 2, counts)
        assert [(copy.pinned, copy.blocking) for copy in counts.to_device] == [(True, False)] * (1 + 2)
        assert counts.waits.total() == 0
        trainer._read_losses(trainer.step)
    assert trainer.epoch_loss == pytest.approx(expected.epoch_loss, rel=1e-4)


def test_a_step_leaves_the_devices_own_generator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, module = [1], torch.get_device_module(NAME)
    monkeypatch.setattr(module, "manual_seed_all", seeds.append)
    monkeypatch.setattr(module, "get_rng_state", lambda device=None: torch.tensor(seeds[-1]))
    monkeypatch.setattr(module, "set_rng_state", lambda state, device=None: seeds.append(int(state)))
    with pretended_device(), step_rng(0, RandomStream.LAYERS, 3, DEVICE):
        assert seeds[-1] > 1
    assert seeds[-1] == 1


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


def test_on_cuda_compiled_networks_are_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compile_nothing(function: Any, **options: Any) -> Any:
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    method = tiny_method(METHODS["ressl"])
    for device, mode in (("cuda", "reduce-overhead"), ("cpu", None)):
        asked.clear()
        compile_networks(method, torch.optim.SGD(method.parameters()), torch.device(device))
        assert asked == [{"dynamic": False, "mode": mode}] * 2  # the student and its teacher
        x = torch.randn(16, 3, 16, 16)
        assert method.student(x).shape == (16, 8)


def test_networks_that_do_not_compile_are_trained_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In planes, where batch-norm groups stay interleaved, as if nobody had asked."""

    def fails(function: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("no working triton here\nand more")

        return call

    plain = trainer_of("ressl", tmp_path, CPU)
    take_steps(plain, 2)
    monkeypatch.setattr(torch, "compile", fails)
    notes: list[str] = []
    with pretended_device() as counts:
        trainer = trainer_of("ressl", tmp_path, DEVICE, announce=notes.append, compile=True, log_every=100)
        take_steps(trainer, 2, counts)
        kernels = counts.kernels.total()
        trainer._read_losses(trainer.step)
    assert len(notes) == 1
    assert "note: the networks could not be compiled (no working triton here), and are trained as they are" in notes[0]
    assert trainer.epoch_loss == pytest.approx(plain.epoch_loss, rel=1e-6)
    assert kernels <= BUDGETS["ressl"][2]
    for p, averages in trainer.optimiser.state.items():
        assert averages["momentum_buffer"].stride() == p.stride()


@pytest.mark.parametrize(("first", "then"), [(CPU, DEVICE), (DEVICE, CPU)])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_run_goes_on_on_another_device(
    first: torch.device, then: torch.device, optimiser: str, tmp_path: Path
) -> None:
    """Where parameters, and so their averages, lie otherwise in memory."""
    with pretended_device():
        whole, begun, gone_on = (trainer_of("ressl", tmp_path, d, optimiser=optimiser) for d in (CPU, first, then))
        take_steps(whole, 4)
        take_steps(begun, 2)
        begun.save()
        gone_on.load(load_checkpoint(begun.checkpoints))
        take_steps(gone_on, 2)
        gone_on._read_losses(gone_on.step)
        state = {key: value.cpu() for key, value in gone_on.method.state_dict().items()}
    assert gone_on.epoch_loss == pytest.approx(whole.epoch_loss, rel=1e-6)
    for key, value in whole.method.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-7)


# --- bad input


def told_by(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command says that a person got wrong: one sentence, and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2, captured
    said = " ".join(captured)
    assert said.count("msvq: ") == 1 and "Traceback" not in said
    return said[said.index("msvq: ") :]


def test_a_device_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "device 'xpu' is not there; this machine has: cpu (or use 'auto')" in told_by(
        capsys, "pretrain", "--device", "xpu", "--out", tmp_path / "run"
    )
    with pretended_device():
        assert resolve_device("auto") == DEVICE
        with pytest.raises(BadInput, match="this machine has: cpu, pretend"):
            resolve_device("xpu")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("CUDA error: out of memory\nmore", "the memory of device 'pretend' is full; end what .*, or use --device cpu"),
        (
            "CUDA error: uncorrectable ECC error\nmore",
            r"device 'pretend' cannot be used \(CUDA error: uncorrectable ECC error\); .*: cpu, pretend",
        ),
    ],
)
def test_a_card_that_is_there_and_full_or_broken_is_not_called_absent(
    error: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **options: Any) -> Tensor:
        raise RuntimeError(error)

    with pretended_device():
        monkeypatch.setattr(torch, "empty", fails)
        with pytest.raises(BadInput, match=told):
            resolve_device(NAME)


def test_a_driver_that_is_too_old_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = torch.empty

    def too_old(*args: Any, **options: Any) -> Tensor:
        if options.get("device") == torch.device("cuda"):
            raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", too_old)
    said = told_by(capsys, "pretrain", "--device", "cuda", "--out", tmp_path / "run")
    assert re.search(r"the driver of device 'cuda' is too old .*11040.*; update it, .*--device cpu", said)


def test_a_card_without_bf16_is_told_and_auto_takes_fp16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch answers for the current card, so each is asked as the current one."""
    current: list[torch.device] = []

    @contextmanager
    def switched_to(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", switched_to)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: current[-1].index == 0)
    assert resolve_precision("auto", torch.device("cuda:0")) == "bf16"
    assert resolve_precision("auto", torch.device("cuda:1")) == "fp16"
    monkeypatch.setattr("msvq.train.pretrain.resolve_device", torch.device)
    monkeypatch.setattr("msvq.train.pretrain.local_device", lambda device: device)
    said = told_by(capsys, "pretrain", "--device", "cuda:1", "--precision", "bf16", "--out", tmp_path / "run")
    assert "device 'cuda:1' does not compute in bf16; use --precision fp16, or auto" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("full", "told"),
    [
        (
            "msvq.methods.msvq.MSVQ.forward",
            "32 pictures does not fit into .* pretend; --set train.accumulate=2",
        ),
        ("msvq.methods.msvq.MSVQ.to", "the networks and queues do not fit into .* pretend; lower backbone.width"),
        ("msvq.evaluate.features.eval_view", "features of .* do not fit into .* pretend; lower .* --device cpu"),
    ],
)
def test_a_device_that_is_full_says_what_to_lower(
    full: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(full, fails)
    settings = [word for option in SMALL for word in ("--set", option)]
    with pretended_device():
        said = told_by(capsys, "pretrain", "--epochs", "1", "--device", NAME, "--out", tmp_path / "run", *settings)
    assert re.search(told, said)


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


class Runs(NamedTuple):
    """A run on the processor, and one on a device without fp64, such as Apple's, which goes on counting."""

    here: msvq.Run
    there: msvq.Run
    counts: Counts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    out = tmp_path_factory.mktemp("runs")
    with pretended_device(lacks=(torch.float64,)) as counts:
        yield Runs(run_of(out / "cpu", "cpu"), run_of(out / "there", NAME), counts)


def test_a_run_is_the_processors_run(runs: Runs) -> None:
    here, there, _ = runs
    assert steps_of(there) == pytest.approx(steps_of(here), rel=1e-3)
    numbers = [[line for line in run.metrics() if line["kind"] == "eval"][-1] for run in (here, there)]
    for name in ("rank", "alignment", "student_teacher1", "disagreement", "same_class_share"):
        assert numbers[1][name] == pytest.approx(numbers[0][name], rel=1e-2)
    assert there.config.train.device == NAME


@pytest.mark.parametrize(
    ("protocol", "changes"),
    [("knn", {"k": 20}), ("probe", {}), ("linear", {"epochs": 1}), ("finetune", {"epochs": 1, "min_steps": 3})],
)
def test_protocols_measure_the_same(runs: Runs, protocol: str, changes: dict[str, Any]) -> None:
    found = []
    for device in ("cpu", NAME):
        runs.counts.clear()
        found.append(runs.there.evaluate(protocol, changes, device=device).top1)
        assert (runs.counts.kernels.total() > 0) == (device == NAME)
    # Of 200 test pictures; where a classifier or network is trained, its steps round otherwise.
    assert found[0] == pytest.approx(found[1], abs=0.5 if protocol in ("knn", "probe") else 2)


@pytest.mark.parametrize("side", [16, 23])
def test_features_are_the_same(runs: Runs, side: int) -> None:
    """Also of pictures that are resized first, which the device does."""
    pictures = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), np.uint8)
    here = runs.there.embed(pictures, device="cpu")
    runs.counts.clear()
    there = runs.there.embed(pictures, device=NAME)
    assert runs.counts.kernels["aten.convolution.default"] > 0
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_the_weights_go_to_the_device_once(runs: Runs) -> None:
    pictures = np.zeros((2, 16, 16, 3), np.uint8)
    weights = sum(value.nbytes for value in runs.there.encoder.state_dict().values())
    for embed in (
        partial(msvq.load(runs.there.path).embed, device=NAME),
        msvq.Embedder(runs.there, device=NAME).transform,
    ):
        went = []
        for _ in range(3):
            runs.counts.clear()
            embed(pictures)
            went.append(sum(copy.num_bytes for copy in runs.counts.to_device))
        assert went[0] > weights > went[1] == went[2] > 0


def test_searches_and_exports_are_the_same(runs: Runs, tmp_path: Path) -> None:
    text = [str(runs.there.path), "--data", "patterns", "--top", "3", "--device"]
    found = []
    for device in ("cpu", NAME):
        runs.counts.clear()
        done = CliRunner().invoke(app, ["search", *text, device, "--query", "train 0", "--json"])
        assert done.exit_code == 0, done.output
        assert (runs.counts.kernels.total() > 0) == (device == NAME)
        found.append(done.stdout)
    assert found[0] == found[1]
    assert runs.there.export("safetensors", tmp_path / "out").is_dir()  # which checks what it has written


@pytest.mark.parametrize(
    ("words", "full"),
    [
        (("evaluate", "RUN"), "torch.nn.Module.to"),
        (("analyze", "RUN"), "torch.nn.Module.to"),
        (("embed", "RUN", "--data", "patterns", "--out", "out.npz"), "torch.nn.Module.to"),
        (("bench", "--steps", "3"), "msvq.preflight.timing.replay"),
    ],
)
def test_a_device_that_is_full_is_told_by_every_command(
    words: tuple[str, ...],
    full: str,
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    to = nn.Module.to

    def fails(self: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(self, nn.Module) or any(getattr(value, "type", None) == NAME for value in args):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation.")
        return to(self, *args, **options)

    monkeypatch.setattr(full, fails)
    monkeypatch.chdir(tmp_path)
    given = [str(runs.there.path) if word == "RUN" else word for word in words]
    settings = [word for option in SMALL if "bench" in words for word in ("--set", option)]
    said = told_by(capsys, *given, "--device", NAME, *settings)
    assert re.search(r"too little memory \(CUDA out of memory\. .* GiB\.\); use --device cpu .*train\.batch_size", said)


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end when they are trained."""
    nothing = {"verdict": {"state": "unknown", "sentence": "nobody has looked", "advice": []}}
    monkeypatch.setattr("msvq.train.pretrain.evaluate_finished_run", lambda *a, **o: nothing)
    monkeypatch.setattr("msvq.api.write_report", lambda run: None)


def health_of(run: msvq.Run) -> list[dict[str, float]]:
    """What was found of the features at each evaluation, without accuracies: one picture is much of these."""
    lines = [line for line in run.metrics() if line["kind"] == "eval"]
    return [{k: v for k, v in line.items() if isinstance(v, float) and not k.startswith("knn")} for line in lines]


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_every_method_is_the_processors_in_every_precision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = METHODS[name].hyperparameters()
    small = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8, "predictor_dim": 4, "bn_splits": 4}
    options = [f"method.{key}={value}" for key, value in small.items() if key in takes]
    options += ["backbone.width=4", "backbone.name=resnet8", "data.limit=48", "data.size=16", "data.test_size=16"]
    options += ["train.batch_size=16", "train.log_every=1", "train.optimiser=sgd", "analyze.batches=1"]
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=FITTING_SCALE))
    found = {}
    for device, precision in (("cpu", "fp32"), (NAME, "fp32"), (NAME, "bf16"), (NAME, "fp16")):
        given: dict[str, Any] = {"device": device, "precision": precision, "method": name, "epochs": 1}
        # Scaled losses take fp64 on any device but Apple's, which PyTorch asks for by name.
        with pretended_device(lacks=() if precision == "fp16" else (torch.float64,)):
            found[device, precision] = msvq.pretrain(out=tmp_path / f"{device}-{precision}", overrides=options, **given)
    here, there = found["cpu", "fp32"], found[NAME, "fp32"]
    assert len(steps_of(there)) == 3
    assert steps_of(there) == pytest.approx(steps_of(here), rel=1e-4, abs=1e-5)
    for expected, measured in zip(health_of(here), health_of(there), strict=True):
        assert measured == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert len(expected) > 3
    # Rounded as coarsely as that, some pictures soon have other nearest neighbours.
    for precision in ("bf16", "fp16"):
        assert steps_of(found[NAME, precision])[:2] == pytest.approx(steps_of(here)[:2], rel=0.2, abs=0.05)
    scaler = load_checkpoint(found[NAME, "fp16"].path / "checkpoints")["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (FITTING_SCALE, 3)  # no update was left out


@pytest.mark.usefixtures("unjudged")
def test_pictures_that_stay_on_disk_are_the_processors_too(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (48, 20, 20, 3), np.uint8)
    for number, picture in enumerate(pictures):
        (tmp_path / "pictures" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{number % 2}" / f"{number}.png")
    options = ["data.mode=stream", "data.workers=2", "data.limit=null", "train.batch_size=16"]
    with pretended_device() as counts:
        here = run_of(tmp_path / "cpu", "cpu", *options, data=tmp_path / "pictures", epochs=1)
        assert not counts.kernels
        there = run_of(tmp_path / NAME, NAME, *options, data=tmp_path / "pictures", epochs=1)
        assert counts.kernels["aten.convolution_backward.default"] > 0
    assert len(steps_of(there)) >= 2
    assert steps_of(there) == pytest.approx(steps_of(here), rel=1e-4)


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_goes_on_to_the_bit_in_parts_in_half_precision(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=FITTING_SCALE))
    options = ["train.accumulate=2", "train.resolution=[[0.0, 12], [0.5, 16]]", "train.checkpoint_every=2"]
    options += ["data.limit=64", "evaluate.every=50"]
    step = Trainer.train_step
    with pretended_device():
        whole = run_of(tmp_path / "whole", NAME, *options, precision=precision)
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train_step", lambda self, *a: 1 / (self.step < 3) and step(self, *a))
            with pytest.raises(ZeroDivisionError):
                run_of(tmp_path / "parts", NAME, *options, precision=precision)
        parts = msvq.pretrain(out=tmp_path / "parts", resume=True)
    assert steps_of(parts) == steps_of(whole)


def test_bench_times_a_device() -> None:
    settings = [word for option in SMALL for word in ("--set", option)]
    with pretended_device() as counts:
        done = CliRunner().invoke(app, ["bench", "--steps", "3", "--json", "--device", NAME, *settings])
        assert done.exit_code == 0, done.output
        assert counts.waits["synchronize"] > 0  # what is timed is done
    report = json.loads(done.stdout)
    assert report["device"] == NAME
    (timing,) = report["resolutions"]
    assert [part["name"] for part in timing["parts"]] == list(PARTS)
    assert timing["step"]["pictures_per_second"] > 0 and timing["limit"]["pictures_per_second"] > 0
