"""Checkpoints: everything a run needs to go on, written so that a kill leaves the one before intact."""

from pathlib import Path
from typing import Any

import torch

from msvq.errors import BadInput
from msvq.files import write_atomically

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write `last.ckpt` and keep the one before it as `previous.ckpt`."""
    last = directory / LAST
    fresh = directory / f".{LAST}.new"
    write_atomically(fresh, lambda file: torch.save(state, file))
    if last.exists():
        last.replace(directory / PREVIOUS)
    fresh.replace(last)


def save_best(directory: Path, state: dict[str, Any]) -> None:
    """Write `best.ckpt`, which is kept for evaluation: no run goes on from it."""
    write_atomically(directory / BEST, lambda file: torch.save(state, file))


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """A checkpoint, without running anything that it may carry; None if it is damaged or something else."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever a file that is none makes PyTorch raise: KeyError, struct.error, ...
        return None
    return state if isinstance(state, dict) and "step" in state else None


def load_checkpoint(directory: Path) -> dict[str, Any]:
    """The newest checkpoint that can be read."""
    damaged: list[str] = []
    for name in (LAST, PREVIOUS):
        path = directory / name
        if not path.exists():
            continue
        state = read_checkpoint(path)
        if state is not None:
            return state
        damaged.append(name)
    what = f"{' and '.join(damaged)} cannot be read" if damaged else "there is no checkpoint"
    raise BadInput(f"cannot resume from {directory.parent}: {what}; start anew with --overwrite")
