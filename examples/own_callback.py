"""Callbacks: one that collects a curve, and one that ends a run which no longer improves.

python examples/own_callback.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msvq


class Enough(Exception):
    """The run has stopped improving."""


class StopEarly:
    """Ends the run when kNN accuracy has not risen for so many measurements."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, 0.0, 0

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Every line of metrics.jsonl comes by: {"kind": "eval", "step": 40, "epoch": 1, "knn_top1": 31.5, ...}."""
        if "knn_top1" not in line:
            return
        better = line["knn_top1"] > self.best
        self.best = max(self.best, line["knn_top1"])
        self.waited = 0 if better else self.waited + 1
        if self.waited >= self.patience:
            raise Enough(f"no better than {self.best:.1f} % for {self.waited} measurements")


def main(out: str | Path = "runs/callback", epochs: int = 20, patience: int = 2, **options: Any) -> list[float]:
    """Train until it is enough; returns the losses that were heard."""
    losses: list[float] = []

    def collect(line: Mapping[str, Any]) -> None:
        if line["kind"] == "step":
            losses.append(line["loss"])

    try:
        msvq.pretrain(data="patterns", out=out, epochs=epochs, callbacks=[collect, StopEarly(patience)], **options)
    except Enough as reason:  # the run was saved first: msvq.pretrain(out=out, resume=True) would go on
        print(f"stopped: {reason}")
    print(msvq.load(out).knn(k=20))
    return losses


if __name__ == "__main__":
    main()
