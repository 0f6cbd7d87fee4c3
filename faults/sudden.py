"""Numbers and clocks that go wrong."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from faults.small import SETTINGS, Row, assert_same, train
from msvq.runs.checkpoint import read_checkpoint
from msvq.train.trainer import NonFiniteLoss, Trainer


def not_a_number(folder: Path, quick: bool) -> Row:
    """The weights, and with them the loss, become infinite or no number."""
    gradient = Trainer._forward_backward
    for value in (float("nan"), float("inf")):
        out, calls = folder / f"bad{value}", Counter[str]()

        def poisoned(self: Trainer, *args: Any, value: float = value, calls: Counter[str] = calls, **more: Any) -> Any:
            calls["steps"] += 1
            if calls["steps"] == 30:
                for parameter in self.method.parameters():
                    parameter.data.fill_(value)
            return gradient(self, *args, **more)

        said = ""
        with mock.patch.object(Trainer, "_forward_backward", poisoned):
            try:
                train(out)
            except NonFiniteLoss as error:
                said = str(error)
        assert "the last good checkpoint is kept" in said, said or "the run went on with a loss that is no number"
        saved = read_checkpoint(out / "checkpoints" / "last.ckpt")
        assert saved is not None and saved["step"] == 29
        assert all(bool(np.isfinite(v.float().numpy()).all()) for v in saved["method"].values())
    return Row("loss not finite (injected)", 2, "stopped in a sentence; the last good checkpoint kept")


def clock(folder: Path, quick: bool) -> Row:
    """The clock is set back while a run goes on."""
    whole = train(folder / "whole", epochs=2, overrides=[*SETTINGS, "train.checkpoint_every=1s"]).path
    now, real = [0], (time.time, time.monotonic)

    def backwards(clock: Callable[[], float]) -> Callable[[], float]:
        def tell() -> float:
            now[0] += 1
            return clock() - (3600.0 * (now[0] // 5))

        return tell

    with mock.patch("time.time", backwards(real[0])), mock.patch("time.monotonic", backwards(real[1])):
        out = train(folder / "back", epochs=2, overrides=[*SETTINGS, "train.checkpoint_every=1s"]).path
    assert_same(whole, out)
    return Row("clock set back (injected)", now[0] // 5, "nothing happened; equal to the bit")
