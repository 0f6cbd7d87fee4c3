"""The display: a live bar in a terminal, plain lines elsewhere."""

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import StepOutput


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    display = TrainingDisplay(Console(file=file, force_terminal=terminal, width=120, _environ={}))
    trainer: Any = SimpleNamespace(step=0, epoch=0, total_steps=20, settings=SimpleNamespace(epochs=2))
    display.on_train_start(trainer)
    display.on_epoch_end(trainer)
    trainer.step, trainer.epoch, trainer.images_per_second = 10, 1, 512.3
    trainer.epoch_loss, trainer.epoch_steps = 65.432, 10
    trainer.measured = {"knn_top1": 43.21, "knn_top1_best": 45.67}
    display.on_step(trainer, StepOutput(6.5432, {}, []))
    display.on_epoch_end(trainer)
    display.on_train_end(trainer)
    return file.getvalue()


def test_without_a_terminal_it_is_a_plain_line() -> None:
    text = shown(terminal=False)
    assert text.startswith("epoch 1/2  loss 6.543  kNN 43.2 % (best 45.7)  512 pictures/s  ")
    assert text.endswith(" left\n")
    assert "\x1b" not in text


def test_in_a_terminal_it_is_a_live_bar() -> None:
    text = shown(terminal=True)
    for words in ("epoch 1/2", "10/20", "loss 6.543", "kNN 43.2 % (best 45.7)", "512 pictures/s", "left"):
        assert words in text
    assert "\x1b[" in text
