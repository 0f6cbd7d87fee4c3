"""A run that is over in seconds, in child processes that can be killed, and how two such runs are compared."""

import atexit
import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import msvq
from msvq.data import sources
from msvq.evaluate.diagnostics import gallery
from msvq.runs.checkpoint import read_checkpoint

SETTINGS = [
    *("backbone.width=4", "data.limit=160", "data.size=16", "data.test_size=16", "train.batch_size=16"),
    *("method.queue_size=32", "method.hidden_dim=16", "method.output_dim=8", "method.bn_splits=2"),
    *("train.log_every=1", "evaluate.every=4", "analyze.map=0", "train.checkpoint_every=1"),
]
EPOCHS = 6


class Row(NamedTuple):
    """A line of the table."""

    fault: str
    tried: int
    outcome: str


def train(out: Path, **options: Any) -> msvq.Run:
    """The run, here."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        defaults: dict[str, Any] = {"data": "patterns", "epochs": EPOCHS, "overrides": SETTINGS, "precision": "fp32"}
        return msvq.pretrain(out=out, **{**defaults, **options})


@cache
def undisturbed() -> Path:
    """The run that nobody disturbs, made once: what the others have to come to."""
    folder = tempfile.TemporaryDirectory(prefix="msvq-faults-")
    atexit.register(folder.cleanup)
    return train(Path(folder.name) / "whole").path


def few_pictures() -> None:
    """Judge by 200 pictures, and have them made before any child is born."""
    sources.PATTERNS_TEST = 200
    sources.open_dataset(sources.DataSettings())
    gallery.LOOKED_AT = 2
    torch.set_num_threads(1)  # a fork keeps one


class Child:
    """A forked process that does something: born in a moment, for everything is imported already."""

    def __init__(self, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                before()
                work()
                code = 0
            except KeyboardInterrupt:
                code = 130
            except msvq.BadInput as error:
                sys.stderr.write(f"{error}\n")
                code = 2
            except OSError as error:
                sys.stderr.write(f"{error}\n")
                code = 2 if error.errno else 1
            except Exception:
                traceback.print_exc()
            finally:
                if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # a second one, before the first was written down
                    code = 130
                os._exit(code)

    def ended(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return None if pid == 0 else os.waitstatus_to_exitcode(status)

    def wait(self, seconds: float = 300.0) -> int:
        """Its exit code."""
        deadline = time.monotonic() + seconds
        while (code := self.ended()) is None:
            assert time.monotonic() < deadline, "a child does not end"
            time.sleep(0.002)
        return code

    def kill(self) -> int:
        """End it without a word."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


def assert_same(one: Path, other: Path) -> None:
    """Two finished runs: the same weights, teachers, queues and metrics, but for timings."""
    first, second = (read_checkpoint(path / "checkpoints" / "last.ckpt") for path in (one, other))
    assert first is not None and second is not None, "a last checkpoint cannot be read"
    different = list(differences({**first, "record": 0}, {**second, "record": 0}))
    assert not different, f"after {first['step']} steps: {different[:3]}"
    logs = [
        [{k: v for k, v in line.items() if k != "images_per_second"} for line in msvq.load(path).metrics()]
        for path in (one, other)
    ]
    assert logs[0] == logs[1], "the metrics differ"
    steps = [line["step"] for line in logs[1] if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1)), "a step is logged twice or not at all"
    weights = [(path / "encoder.safetensors").read_bytes() for path in (one, other)]
    assert weights[0] == weights[1], "the encoders differ"


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Where two states differ."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if not torch.equal(a, b):
            yield where
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from differences(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{where}[{index}]")
    elif a != b:
        yield where
