"""The display: a live bar in a terminal, plain lines elsewhere."""

import io
import re
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import StepOutput


def shown(*, terminal: bool, width: int = 120, measured_at: int = 1, total_steps: int = 20) -> str:
    file = io.StringIO()
    display = TrainingDisplay(Console(file=file, force_terminal=terminal, width=width, _environ={}))
    trainer: Any = SimpleNamespace(step=0, epoch=0, total_steps=total_steps, settings=SimpleNamespace(epochs=2))
    display.on_train_start(trainer)
    display.on_epoch_end(trainer)
    trainer.step, trainer.epoch, trainer.images_per_second = 10, 1, 512.3
    trainer.epoch_loss, trainer.epoch_steps = 65.432, 10
    trainer.measured = {"knn_top1": 43.21, "knn_top1_best": 45.67, "rank": 3.0}
    trainer.measured_at = {"knn_top1": measured_at, "knn_top1_best": measured_at, "rank": 1}
    display.on_step(trainer, StepOutput(6.5432, {}, []))
    display.on_epoch_end(trainer)
    display.on_train_end(trainer)
    return file.getvalue()


def test_without_a_terminal_it_is_a_plain_line() -> None:
    text = shown(terminal=False)
    assert text.startswith("epoch 1/2  loss 6.543  kNN 43.2 %  (best 45.7 %)  512 pictures/s  ")
    assert text.endswith(" left\n")
    assert "\x1b" not in text


def test_in_a_terminal_it_is_a_live_bar() -> None:
    text = shown(terminal=True)
    for words in ("epoch 1/2", "10/20", "loss 6.543", "kNN 43.2 %  (best 45.7 %)", "512 pictures/s", "left"):
        assert words in text
    assert "\x1b[" in text


def test_a_narrow_terminal_loses_the_speed_before_the_time_left() -> None:
    lines = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", shown(terminal=True, width=80)).splitlines()
    last = [line for line in lines if line.strip()][-1]
    assert last.rstrip().endswith(" left") and "…" not in last and "pictures/s" not in last
    assert "kNN 43.2 %  (best 45.7 %)" in last and len(last.rstrip()) <= 80


def test_what_was_reached_is_the_last_to_go() -> None:
    text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", shown(terminal=True, width=80, total_steps=2_000_000))
    last = [line for line in text.splitlines() if line.strip()][-1]
    assert "kNN 43.2 %" in last and "best" not in last and len(last.rstrip()) <= 80
    text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", shown(terminal=True, width=68, total_steps=2_000_000))
    last = [line for line in text.splitlines() if line.strip()][-1]
    assert "kNN 43.2 %" in last and "loss" not in last and last.rstrip().endswith(" left")


def test_numbers_of_an_earlier_look_say_so() -> None:
    assert "loss 6.543  kNN 43.2 % untrained  512 pictures/s" in shown(terminal=False, measured_at=0)
    assert "kNN 43.2 %  (best 45.7 %)" not in shown(terminal=True, measured_at=0)


def test_the_last_measurement_is_shown_in_a_terminal() -> None:
    file = io.StringIO()
    display = TrainingDisplay(Console(file=file, force_terminal=True, width=120, _environ={}))
    trainer: Any = SimpleNamespace(step=0, epoch=0, total_steps=20, settings=SimpleNamespace(epochs=2))
    display.on_train_start(trainer)
    trainer.step, trainer.epoch, trainer.images_per_second = 20, 2, 512.3
    trainer.epoch_loss, trainer.epoch_steps, trainer.measured, trainer.measured_at = (
        65.4,
        10,
        {"knn_top1": 19.0},
        {"knn_top1": 1},
    )
    display.on_step(trainer, StepOutput(6.5, {}, []))
    trainer.measured, trainer.measured_at = {"knn_top1": 21.0}, {"knn_top1": 2}
    display.on_epoch_end(trainer)
    display.on_train_end(trainer)
    assert "kNN 21.0 %" in file.getvalue()
