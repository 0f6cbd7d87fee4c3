"""Checkpoints: everything a run needs to go on, written so that a kill leaves the one before intact."""

import pickle
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch

from msvq.errors import BadInput
from msvq.files import write_atomically

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write `last.ckpt` and keep the one before it as `previous.ckpt`."""
    last = directory / LAST
    fresh = directory / f".{LAST}.new"
    write_atomically(fresh, lambda file: torch.save(state, file))
    if last.exists():
        last.replace(directory / PREVIOUS)
    fresh.replace(last)


def load_checkpoint(directory: Path) -> dict[str, Any]:
    """The newest checkpoint that can be read, without running anything that it may carry."""
    damaged: list[str] = []
    for name in (LAST, PREVIOUS):
        path = directory / name
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError, BadZipFile):
            damaged.append(name)
    what = f"{' and '.join(damaged)} cannot be read" if damaged else "there is no checkpoint"
    raise BadInput(f"cannot resume from {directory.parent}: {what}; start anew with --overwrite")
