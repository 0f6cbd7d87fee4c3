"""Files that are never half written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from msvq.core.errors import BadInput


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either the old content or the whole new one, on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; what cannot be encoded (a file name's odd bytes) is written as an escape."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def expanduser(path: str | Path) -> Path:
    """With the home directory in place of `~`; `~name` of a user who is not there stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def disk_full_error(place: Path, needed: int, what: str, ways: str) -> BadInput:
    """The error for a disk with too little space; `what`: what takes it, and `ways` out besides freeing some."""
    free = shutil.disk_usage(place).free
    return BadInput(
        f"the disk of {str(place)!r} has {free / 1e9:.1f} GB left and {what} {needed / 1e9:.1f} GB; free some, {ways}"
    )
