"""What an accelerator is given: the same numbers as a processor, few kernels, one block of random numbers, no waits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from msvq.config.settings import AugmentSettings, TrainSettings
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.store import ImageSplit
from msvq.methods import METHODS
from msvq.model.teacher import Network
from msvq.train.trainer import Trainer
from tests.conftest import tiny_method
from tests.pretended_device import DEVICE, Counts, pretended_device

CPU = torch.device("cpu")
# Convolutions, batch norms, ReLUs, sums, the pooling and a head of two layers: a ResNet-18, once forwards.
NETWORK = 20 + 20 + 17 + 8 + 1 + 3

# Kernels of a method's forward pass, and how often it sends pictures through a network. They may only shrink.
BUDGETS: dict[str, tuple[int, int]] = {}


class Double(Augment):
    """Views in fp64, so that what two devices round differently is far below what one of them does wrongly."""

    def __call__(self, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(view.double() for view in super().__call__(*args, **options))


def trainer_of(name: str, out: Path, device: torch.device, *, precision: Any = None, **settings: Any) -> Trainer:
    """Sixty-four pictures of 16 pixels in batches of 16, a ResNet-18 of width 4; in fp64 unless a precision is given."""
    torch.manual_seed(0)
    images, labels = torch.randint(256, (64, 16, 16, 3), dtype=torch.uint8), torch.arange(64) % 4
    method, kind = tiny_method(METHODS[name]), Augment if precision else Double
    return Trainer(
        method if precision else method.double(),
        Loader(ImageSplit(images.numpy(), labels.numpy()), batch_size=16, seed=0, device=device),
        kind(dict(AugmentSettings()), size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        TrainSettings(batch_size=16, epochs=1, warmup_epochs=0, **settings),
        directory=out,
        precision=precision or "fp32",
    )


def two_steps(trainer: Trainer, counts: Counts | None = None) -> None:
    """Counted is what the second one gives the device."""
    trainer.method.train()
    batches = trainer.loader.epoch(0)
    for _ in range(2):
        if counts is not None:
            counts.clear()
        trainer.train_step(*next(batches), 0.1)
        trainer.step += 1


def forward_kernels(trainer: Trainer, counts: Counts) -> list[int]:
    """Filled with the kernels of each forward pass, and how often a network was called in the last one."""
    found: list[int] = [0, 0]
    forward = trainer.method.forward

    def counted(batch: Any) -> Any:
        before, found[1] = counts.kernels.total(), 0
        loss = forward(batch)
        found[0] = counts.kernels.total() - before
        return loss

    def called(network: Any, inputs: Any) -> None:
        found[1] += 1

    trainer.method.forward = counted  # type: ignore[method-assign]
    for module in trainer.method.modules():
        if isinstance(module, Network):
            module.register_forward_pre_hook(called)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_the_processors_within_its_budget(name: str, tmp_path: Path) -> None:
    expected = trainer_of(name, tmp_path, CPU)
    two_steps(expected)
    with pretended_device() as counts:
        trainer = trainer_of(name, tmp_path, DEVICE, log_every=100)
        found = forward_kernels(trainer, counts)
        two_steps(trainer, counts)
        state = {key: value.cpu() for key, value in trainer.method.state_dict().items()}
    print(name, found, found[1] and found[0]/found[1]/NETWORK, counts.kernels.total(), counts.to_device, counts.waits)
    for key, value in expected.method.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-6, atol=1e-8)
