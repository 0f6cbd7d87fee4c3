"""The display: a live bar in a terminal, plain lines elsewhere."""

import io

from rich.console import Console

from msvq.train.progress import TrainingDisplay


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, _environ={})
    display = TrainingDisplay(console, total_steps=20, epochs=2)
    display.measured = {"knn_top1": 43.21, "knn_top1_best": 45.67}
    with display:
        display.start(0)
        display.step(10, 1, 6.5432, 512.3)
        display.epoch(10, 1, 6.5432, 512.3)
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
