"""Files that are never half written, and never somebody else's."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from msvq.errors import BadInput


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either the old content or the whole new one, on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # it may be a link, which would be followed
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file was being written when its process was killed."""
    return re.fullmatch(r"\..+\.\d+\.tmp", path.name) is not None


def check_no_link(path: Path) -> None:
    """Raise if what is written to a path would go elsewhere, through a link: that may be somebody else's."""
    if path.is_symlink():
        raise BadInput(
            f"{str(path)!r} is a link to {str(path.readlink())!r}, and nothing is written through it; "
            f"remove it, or move what is there into its place"
        )
    if path.is_file() and path.stat().st_nlink > 1:
        raise BadInput(
            f"{str(path)!r} is a file that has another name too (a hard link) and would change there as well; "
            f"put a copy of it in its place"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; what cannot be encoded (a file name's odd bytes) is written as an escape."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def at_home(path: str | Path) -> Path:
    """With the home directory in place of `~`; `~name` of a user who is not there stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def no_room(place: Path, needed: int, what: str, ways: str) -> BadInput:
    """The error for a disk with too little space; `what`: what takes it, and `ways` out besides freeing some."""
    free = shutil.disk_usage(place).free
    return BadInput(
        f"the disk of {str(place)!r} has {free / 1e9:.1f} GB left and {what} {needed / 1e9:.1f} GB; free some, {ways}"
    )
