"""Steps of methods on as many processes as there are: run by test_distributed.py, with and without torchrun.

    on_ranks.py FOLDER CASES

CASES is a JSON list of the keywords of `steps`. Leaves FOLDER/<rank>.pt with what it gives for each of them.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from msvq.config.settings import TrainSettings
from msvq.core.distributed import map_sharded, process_group, rank
from msvq.data.augment import STRONG, WEAK, Augment, ViewSettings
from msvq.data.loader import Loader
from msvq.data.patterns import make_patterns
from msvq.data.store import ImageSplit
from msvq.methods import METHODS
from msvq.model.resnet import ResNet
from msvq.train.trainer import Trainer

SMALL = {"queue_size": 64, "hidden_dim": 16, "output_dim": 8}
TINY = {**SMALL, "predictor_dim": 4, "num_classes": 10, "num_pictures": 96, "base_options": SMALL}


class Double(Augment):
    """Views in fp64, so that rounding does not hide a difference."""

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(view.double() for view in super().__call__(*arguments, **options))


@cache
def pictures() -> ImageSplit:
    images, labels = make_patterns(96, seed=3)
    return ImageSplit(images[:, ::2, ::2].copy(), labels)


def steps(
    name: str,
    *,
    num: int,
    precision: str = "fp64",
    optimiser: Literal["sgd", "adamw", "lars", "muon"] = "sgd",
    base_lr: float = 0.3,
    accumulate: int = 1,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a tiny method for a few steps: its losses, last gradients and state, and the pictures that were read."""
    torch.manual_seed(0)
    kind, double = METHODS[name], precision == "fp64"
    chosen = {key: value for key, value in TINY.items() if key in kind.hyperparameters()}
    method = kind(ResNet(width=4), **chosen | (options or {}))
    settings = TrainSettings(
        batch_size=32,
        epochs=10,
        warmup_epochs=0,
        optimiser=optimiser,
        base_lr=base_lr,
        device="cpu",
        precision="fp32",
        accumulate=accumulate,
    )
    views = {"strong": STRONG, "weak": WEAK, "plain": ViewSettings()}
    trainer = Trainer(
        method.double() if double else method,
        Loader(pictures(), batch_size=32, seed=0, device=torch.device("cpu")),
        (Double if double else Augment)(views, size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
        settings,
        directory=Path("nowhere"),
        precision="fp32",
    )
    losses: list[float] = []
    logs: list[dict[str, float]] = []
    read: list[Tensor] = []
    while trainer.step < num:
        for batch in trainer.loader.epoch(trainer.step // len(trainer.loader)):
            loss, found, _ = trainer.train_step(*batch, trainer.learning_rate())
            losses.append(loss)
            logs.append({key: float(value) for key, value in found.items()})
            read.append(batch[2])
            trainer.step += 1
            if trainer.step == num:
                break
    return {
        "losses": losses,
        "logs": logs,
        "read": torch.stack(read),
        "gradients": {key: p.grad for key, p in method.named_parameters() if p.requires_grad},
        "state": method.state_dict(),
        "generator": trainer.generator.get_state(),
    }


def main() -> None:
    folder, cases = sys.argv[1:]
    with process_group():
        for num in range(5):  # also where the shares cannot be equal
            assert map_sharded(num, torch.arange(num).__getitem__).tolist() == list(range(num))
        torch.save([steps(**case) for case in json.loads(cases)], Path(folder) / f"{rank()}.pt")


if __name__ == "__main__":
    main()
