"""Steps of methods on as many processes as there are: run by test_distributed.py, with and without torchrun.

    on_ranks.py FOLDER fp32|fp64 STEPS ACCUMULATE NAME[:keyword=value,...] ...

Leaves FOLDER/<rank>.pt: for each method its losses, the last gradients, all of its state, and the pictures that were
read.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from torch import Tensor

from msvq.data.augment import STRONG, WEAK, Augment, ViewSettings
from msvq.data.loader import Loader
from msvq.data.patterns import make_patterns
from msvq.data.store import Pictures
from msvq.methods import METHODS
from msvq.model.backbones import ResNet
from msvq.ranks import rank
from msvq.train.distributed import joined
from msvq.train.progress import TrainingDisplay
from msvq.train.settings import TrainSettings
from msvq.train.trainer import Trainer

SMALL = {"queue_size": 64, "hidden_dim": 16, "output_dim": 8}
TINY = {**SMALL, "predictor_dim": 4, "num_classes": 10, "num_pictures": 96, "base_options": {}}


class Double(Augment):
    """Views in fp64, so that rounding does not hide a difference."""

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(view.double() for view in super().__call__(*arguments, **options))


def pictures() -> Pictures:
    images, labels = make_patterns(96, seed=3)
    return Pictures(images[:, ::2, ::2].copy(), labels)


def steps(name: str, data: Pictures, *, double: bool, num: int, accumulate: int) -> dict[str, Any]:
    """Train a tiny method for a few steps."""
    torch.manual_seed(0)
    name, _, text = name.partition(":")
    kind = METHODS[name]
    options = {key: value for key, value in TINY.items() if key in kind.hyperparameters()}
    options |= yaml.safe_load("{" + text.replace("=", ": ") + "}") or {}
    method = kind(ResNet(width=4), **options)
    settings = TrainSettings(
        batch_size=32, epochs=10, warmup_epochs=0, base_lr=0.3, device="cpu", precision="fp32", accumulate=accumulate
    )
    views = {"strong": STRONG, "weak": WEAK, "plain": ViewSettings()}
    trainer = Trainer(
        method.double() if double else method,
        Loader(data, batch_size=32, seed=0, device=torch.device("cpu")),
        (Double if double else Augment)(views, size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
        settings,
        directory=Path("nowhere"),
        display=TrainingDisplay(Console(quiet=True), total_steps=num, epochs=1),
        precision="fp32",
    )
    losses: list[float] = []
    logs: list[dict[str, float]] = []
    read: list[Tensor] = []
    while trainer.step < num:
        for batch in trainer.loader.epoch(trainer.step // len(trainer.loader)):
            loss, found = trainer.train_step(*batch, trainer.learning_rate())
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
    folder, precision, num, accumulate, *names = sys.argv[1:]
    data = pictures()
    with joined():
        found = {
            name: steps(name, data, double=precision == "fp64", num=int(num), accumulate=int(accumulate))
            for name in names
        }
        torch.save(found, Path(folder) / f"{rank()}.pt")


if __name__ == "__main__":
    main()
