"""What a step may be made of: parts, another resolution, fp16, compiled networks, and too little memory."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import msvq
from msvq.config.resolve import resolve
from msvq.config.settings import OTHER_OPTIMISERS, TrainSettings
from msvq.core.errors import BadInput
from msvq.core.runtime import TRIM_THRESHOLD, OutOfMemory, is_out_of_memory, keep_freed_memory
from msvq.data.augment import Augment, ViewSettings
from msvq.data.loader import Loader
from msvq.data.store import ImageSplit
from msvq.methods import METHODS, Batch, Loss, Method
from msvq.model.teacher import Network, Teacher
from msvq.runs.checkpoint import read_checkpoint, write_checkpoint
from msvq.train.step import check_fit, compile_networks
from msvq.train.trainer import NonFiniteLoss, Trainer

SMALL = [
    *("backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64", "method.hidden_dim=16"),
    *("train.log_every=1", "evaluate.every=50", "data.size=16", "data.test_size=16"),
]

OPTIMISERS = ("sgd", *OTHER_OPTIMISERS)


def sides_of(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sides of every step's views, filled as a run goes on."""
    seen: list[list[int]] = []
    make = Augment.__call__

    def noted(self: Augment, *args: Any, **options: Any) -> Any:
        views = make(self, *args, **options)
        if len(views) == 4:  # a step's; two are for the alignment
            seen.append([view.shape[-1] for view in views])
        return views

    monkeypatch.setattr(Augment, "__call__", noted)
    return seen


def test_the_resolution_follows_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sides_of(monkeypatch)
    schedule = "train.resolution=[[0.0, 8], [0.5, 12], [0.8, 16]]"
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=[*SMALL, schedule])
    seen = seen[:10]  # those after training look at the soft labels
    assert [sides[0] for sides in seen] == [8] * 5 + [12] * 3 + [16] * 2
    assert all(len(set(sides)) == 1 for sides in seen)
    assert run.config.train.resolution == [(0.0, 8), (0.5, 12), (0.8, 16)]


def test_teachers_may_see_smaller_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sides_of(monkeypatch)
    msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=[*SMALL, "augment.weak.scale=0.75"])
    assert seen[:10] == [[16, 12, 12, 12]] * 10


@pytest.mark.parametrize(
    "schedule",
    ["[]", "[[0.1, 16]]", "[[0.0, 16], [0.0, 24]]", "[[0.0, 16], [1.0, 24]]", "[[0.0, 4]]", "[[0.5, 16], 3]"],
)
def test_a_schedule_that_does_not_rise_from_the_start_is_refused(schedule: str) -> None:
    with pytest.raises(BadInput, match=r"train\.resolution"):
        resolve(overrides=[f"train.resolution={schedule}"])


class Pull(Method):
    """As simple as a method with a teacher can be: no batch norm, so that pictures do not see each other."""

    def __init__(self, side: int) -> None:
        super().__init__()
        backbone = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.Flatten(), nn.Linear(64, 6))
        self.student = Network(backbone, nn.Linear(6, 3))
        self.teacher = Teacher(self.student, momentum=0.5)
        self.views = ("weak", "weak")

    def forward(self, batch: Batch) -> Loss:
        self.teacher.ema_update(self.student)
        z, target = self.student(batch.views[0]), self.teacher(batch.views[1])
        return Loss((z - target - 1).square().mean(), {"size": z.detach().abs().mean()})


def trainer_of(tmp_path: Path, *, announce: Callable[[str], None] = print, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    images, labels = torch.randint(256, (8, 8, 8, 3), dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    train = TrainSettings(batch_size=8, epochs=1, **settings)
    return Trainer(
        Pull(8),
        Loader(ImageSplit(images.numpy(), labels.numpy()), batch_size=8, seed=0, device=torch.device("cpu")),
        Augment({"weak": ViewSettings(crop_area=(1.0, 1.0), flip=0)}, size=8, mean=(0.5,) * 3, std=(0.5,) * 3),
        train,
        directory=tmp_path,
        precision=train.precision,
        announce=announce,
    )


def step_of(trainer: Trainer) -> tuple[float, Any]:
    trainer.method.train()
    loss, logs, _ = trainer.train_step(*next(trainer.loader.epoch(0)), 0.1)
    return loss, logs


def test_parts_of_a_batch_make_the_same_step_as_the_whole(tmp_path: Path) -> None:
    whole, parts = (trainer_of(tmp_path, precision="fp32", accumulate=parts) for parts in (1, 4))
    for _ in range(3):
        (loss, logs), (other_loss, other_logs) = step_of(whole), step_of(parts)
        assert loss == pytest.approx(other_loss, rel=1e-5)
        torch.testing.assert_close(logs, other_logs)
    for mine, theirs in zip(whole.method.parameters(), parts.method.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)  # teachers too: they moved once a step


def test_a_batch_that_does_not_divide_into_parts_is_refused(tiny: Any) -> None:
    method = tiny(METHODS["msvq"], bn_splits=4)
    check_fit(method, 32, 4)
    for batch, parts, words in ((30, 4, "does not divide"), (32, 32, "does not divide"), (8, 2, "leaves one picture")):
        with pytest.raises(BadInput, match=words):
            check_fit(method, batch, parts)
    with pytest.raises(BadInput, match="32 in 16 parts is not a multiple of the method's bn_splits 4"):
        check_fit(method, 32, 16)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_fp16_trains_with_a_scaled_loss_and_leaves_out_what_overflows(tmp_path: Path, optimiser: str) -> None:
    trainer = trainer_of(tmp_path, precision="fp16", optimiser=optimiser)
    start = trainer.scaler.get_scale()
    before = [p.clone() for p in trainer.method.student.parameters()]
    for _ in range(12):  # the scale starts high and falls until gradients fit
        assert step_of(trainer)[0] > 0
    assert 1 < trainer.scaler.get_scale() < start
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.method.student.parameters(), strict=True))
    trainer.scaler.update(torch.finfo(torch.float32).max)  # so large that gradients overflow
    held = [p.clone() for p in trainer.method.student.parameters()]
    step_of(trainer)
    assert all(torch.equal(a, b) for a, b in zip(held, trainer.method.student.parameters(), strict=True))
    assert trainer.scaler.get_scale() < torch.finfo(torch.float32).max


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_eight_steps_of_an_optimiser_equal_four_a_checkpoint_and_four_more(
    tmp_path: Path, optimiser: str, precision: str
) -> None:
    whole, first, second = (trainer_of(tmp_path, optimiser=optimiser, precision=precision) for _ in range(3))
    for trainer in (whole, whole, first):
        for _ in range(4):
            step_of(trainer)
    write_checkpoint(tmp_path / "x", first.state_dict())
    state = read_checkpoint(tmp_path / "x")
    assert state is not None
    second.load(state)
    for _ in range(4):
        step_of(second)
    torch.testing.assert_close(second.method.state_dict(), whole.method.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(second.optimiser.state_dict(), whole.optimiser.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_state_that_is_not_the_optimisers_is_refused(tmp_path: Path, optimiser: str) -> None:
    trainer, other = (
        trainer_of(tmp_path, optimiser=name) for name in (optimiser, "sgd" if optimiser == "adamw" else "adamw")
    )
    own = trainer.state_dict()
    foreign = {**own, "optimiser": {**own["optimiser"], "state": other.optimiser.state_dict()["state"]}}
    with pytest.raises(BadInput, match=r"the checkpoint is damaged \(optimiser\.state\.0\."):
        trainer.load(foreign)
    for name, wrong in product(
        own["optimiser"]["state"][1], (torch.zeros(7, 2), torch.zeros(3, 3).int(), "text", None)
    ):
        states = {**own["optimiser"]["state"], 1: {**own["optimiser"]["state"][1], name: wrong}}
        with pytest.raises(BadInput, match=rf"the checkpoint is damaged \(optimiser\.state\.1\.{name}\)"):
            trainer.load({**own, "optimiser": {**own["optimiser"], "state": states}})


def test_fp16_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"epochs": 2, "overrides": [*SMALL, "data.limit=160"], "precision": "fp16"}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    step = Trainer.train_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda self, *a: 1 / (self.step < 7) and step(self, *a))
        with pytest.raises(ZeroDivisionError):
            msvq.pretrain(out=tmp_path / "parts", **options)
    parts = msvq.pretrain(out=tmp_path / "parts", resume=True)
    assert (whole.path / "encoder.safetensors").read_bytes() == (parts.path / "encoder.safetensors").read_bytes()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        MemoryError(),
    ],
)
def test_too_little_memory_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(self: Any, batch: Any) -> Any:
        raise error

    trainer = trainer_of(tmp_path, precision="fp32", accumulate=2)
    monkeypatch.setattr(Pull, "forward", fails)
    with pytest.raises(OutOfMemory, match=r"8 pictures in 2 parts .* memory of cpu; --set train\.accumulate=4"):
        step_of(trainer)


def test_a_real_request_for_too_much_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize("splits", [1, 4])
def test_compiled_networks_give_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: int) -> None:
    # The compiler's front end alone: its back end needs a C++ compiler and a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    options: dict[str, Any] = {"epochs": 1, "precision": "fp32"}
    sets = [*SMALL, f"method.bn_splits={splits}", "data.limit=96", "train.resolution=[[0.0, 12], [0.6, 16]]"]
    plain = msvq.pretrain(out=tmp_path / "plain", overrides=sets, **options)
    faster = msvq.pretrain(out=tmp_path / "compiled", overrides=sets, compile=True, **options)
    assert faster.config.train.compile
    losses = [[line["loss"] for line in run.metrics() if line["kind"] == "step"] for run in (plain, faster)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert len(losses[0]) == 3


def test_parts_of_a_batch_see_the_same_queue_and_teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    forward = METHODS["msvq"].forward

    def noted(self: Any, batch: Any) -> Any:
        loss = forward(self, batch)
        seen.append((self.queues["1"].keys.clone(), next(self.teachers[0].network.parameters()).clone()))
        return loss

    monkeypatch.setattr(METHODS["msvq"], "forward", noted)
    msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=[*SMALL, "train.accumulate=2", "data.limit=64"])
    for first, second in zip(seen[:4:2], seen[1:4:2], strict=True):  # two steps; what follows looks at soft labels
        assert all(map(torch.equal, first, second))
    new = (seen[2][0] != seen[0][0]).any(1)
    assert int(new.sum()) == 32  # both parts are stored in the end


def test_parts_of_a_batch_may_change_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"epochs": 2, "overrides": [*SMALL, "data.limit=64"], "precision": "fp32"}
    step = Trainer.train_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda self, *a: 1 / (self.step < 3) and step(self, *a))
        with pytest.raises(ZeroDivisionError):
            msvq.pretrain(out=tmp_path, overwrite=True, **options)
    run = msvq.pretrain(out=tmp_path, resume=True, overrides=["train.accumulate=2"])  # allowed: memory ran out, say
    assert run.config.train.accumulate == 2
    assert [line["step"] for line in run.metrics() if line["kind"] == "epoch"] == [2, 4]


def test_numbers_that_are_no_tensors_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Pull.forward
    plain: Any = {"answer": 42.0}
    monkeypatch.setattr(Pull, "forward", lambda self, batch: forward(self, batch)._replace(logs=plain))
    assert float(step_of(trainer_of(tmp_path, precision="fp32", accumulate=2))[1]["answer"]) == 42


def test_gradients_that_are_never_finite_stop_an_fp16_run(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, precision="fp16")
    step_of(trainer)
    trainer.scaler.update(2e-3)
    for p in trainer.method.student.parameters():
        p.register_hook(lambda gradient: gradient * float("nan"))
    step_of(trainer)  # the scale is halved
    with pytest.raises(NonFiniteLoss, match="gradients overflow in fp16"):
        step_of(trainer)


def test_a_resolution_beyond_the_stored_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"train\.resolution goes up to 40 pixels, but data\.size is 16"):
        msvq.pretrain(out=tmp_path / "x", overrides=[*SMALL, "train.resolution=[[0.0, 40]]"])


def test_no_size_of_a_schedule_is_left_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself the compiler gives up on a function after eight variants."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    method = nn.Sequential(Network(nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten()), nn.Identity()))
    compile_networks(method, torch.optim.SGD(method.parameters()), torch.device("cpu"))
    for size in (*range(4, 14), *range(4, 14)):
        method(torch.randn(2, 3, size, size))
    assert len(graphs) == 10  # each of them once


def test_a_copy_of_a_compiled_network_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    network = Network(nn.Linear(3, 4), nn.Identity())
    network.compile_backbone(lambda error: None)
    other = copy.deepcopy(network)
    nn.init.zeros_(other.backbone.weight)  # type: ignore[arg-type]
    nn.init.zeros_(other.backbone.bias)  # type: ignore[arg-type]
    x = torch.randn(2, 3)
    assert (other(x) == 0).all()
    assert (network(x) != 0).any()


def test_a_compiler_that_fails_is_told_and_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything, for the pass forwards, or only for the one backwards, which PyTorch compiles when it comes."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import TorchDynamoException

    def fails(*args: Any, **options: Any) -> Any:
        raise TorchDynamoException("no compiler here")

    compile, whole = torch.compile, aot_autograd(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=fails)
    expected = step_of(trainer_of(tmp_path / "plain", precision="fp32"))[0]
    for number, broken in enumerate(
        (fails, lambda function, **options: fails, partial(compile, backend=fails), partial(compile, backend=whole))
    ):
        told: list[str] = []
        monkeypatch.setattr(torch, "compile", broken)
        trainer = trainer_of(tmp_path / str(number), precision="fp32", announce=told.append, compile=True)
        assert step_of(trainer)[0] == pytest.approx(expected)
        step_of(trainer)
        assert len(told) == 1, told
        assert "could not be compiled" in told[0] and "no compiler here" in told[0] and "are trained as" in told[0]


@pytest.mark.parametrize(("most", "calls"), [(2**31 - 1, 2), (2**25, 3), (0, 2)])
def test_memory_settings_fall_back_where_the_system_refuses(
    most: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def mallopt(setting: int, value: int) -> int:
        asked.append((setting, value))
        return int(value <= most)

    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    keep_freed_memory()
    assert len(asked) == calls
    assert (TRIM_THRESHOLD in dict(asked)) is (most > 0)
