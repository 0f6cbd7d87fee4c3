"""Checkpoints: everything a run needs to go on, written so that a kill leaves the one before intact, and checked."""

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from msvq.config.settings import parse_save_interval
from msvq.core.errors import BadInput
from msvq.core.files import is_temporary, write_atomically

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"  # no run goes on from the best
FORMAT = 2  # of the content; 1 had neither a checksum nor the settings
# A checkpoint is a zip archive, as torch.save writes it. Its checksum is the archive's comment, which stands at the
# end behind its own length, so that torch.load reads the file as it is. The archive's own checksums do not cover its
# directory: one bit there, and PyTorch takes a tensor for an empty folder and loads whatever is in memory.
PIECE = 2**22
LARGEST = 2**53  # of the numbers in a checkpoint that are no weights: counts, sums, rates
_MISSING = object()


class SaveInterval:
    """When a checkpoint is due: every so many steps, or after so much time ("30s", "5m", "2h")."""

    def __init__(self, every: int | str, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.saved_at = now, now()
        self.steps, self.seconds = parse_save_interval(every)

    def due(self, step: int) -> bool:
        """Whether to save after so many steps."""
        if self.steps is not None:
            return step % self.steps == 0
        return self.now() - self.saved_at >= self.seconds

    def saved(self) -> None:
        """Note that a checkpoint was written just now."""
        self.saved_at = self.now()


def _comment(crc: int) -> bytes:
    """The end of an archive: its comment behind the comment's length."""
    text = b"msvq crc32 %08x" % crc
    return struct.pack("<H", len(text)) + text


class _Summed:
    """Writes to a file and sums up what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.crc = file, 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.crc = zlib.crc32(data, self.crc)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint, atomically, with its checksum."""

    def write(file: BinaryIO) -> None:
        summed = _Summed(file)
        try:
            torch.save({"format": FORMAT, **state}, cast(BinaryIO, summed))
        except RuntimeError:
            if summed.error is not None:  # a full disk, which PyTorch tells as a writer at an unexpected position
                raise summed.error from None
            raise
        file.seek(-2, 1)  # the archive ends with the length of its comment, which was none
        file.write(_comment(summed.crc))

    write_atomically(path, write)


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write `last.ckpt` and keep the one before it as `previous.ckpt`."""
    last = directory / LAST
    fresh = directory / f".{LAST}.new"
    write_checkpoint(fresh, state)
    if last.exists():
        last.replace(directory / PREVIOUS)
    fresh.replace(last)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """A checkpoint, without running anything that it may carry; None if it is damaged or something else."""
    if not is_whole(path):
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):  # nothing that the file says
        raise
    except Exception:  # whatever a file that is none makes PyTorch raise: KeyError, struct.error, ...
        return None
    return state if isinstance(state, dict) and state_mismatch({"format": FORMAT, "step": 0}, state) is None else None


def state_mismatch(own: Any, found: Any, path: str = "") -> str | None:
    """Where what was `found` is not built like `own`, a new run's: the first key that is missing or of another type.

    What is empty in a new run may have grown; a negative count or a number that is not finite belongs nowhere.
    """
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping):
            return path
        pairs: Iterable[tuple[Any, Any, Any]] = ((key, value, found.get(key, _MISSING)) for key, value in own.items())
    elif isinstance(own, list):
        if not isinstance(found, list) or (own and len(own) != len(found)):
            return path
        pairs = ((key, value, found[key]) for key, value in enumerate(own))
    elif isinstance(own, Tensor):
        alike = isinstance(found, Tensor) and (own.dtype, own.ndim) == (found.dtype, found.ndim)
        return None if alike and all(a in (0, b) for a, b in zip(own.shape, found.shape, strict=True)) else path
    elif isinstance(own, int | float) and not isinstance(own, bool):
        is_number = type(found) is int or (type(found) is float and isinstance(own, float))
        lowest = 0 if isinstance(own, int) else -LARGEST
        return None if is_number and lowest <= found <= LARGEST else path
    else:
        return None if own is None or type(own) is type(found) else path
    wrong = (state_mismatch(value, inner, f"{path}.{key}" if path else str(key)) for key, value, inner in pairs)
    return next((where for where in wrong if where is not None), None)


def is_whole(path: Path) -> bool:
    """Whether a file is, byte for byte, what its checksum says."""
    content = path.stat().st_size - len(_comment(0))
    if content <= 0:
        return False
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(min(PIECE, content)):
            crc, content = zlib.crc32(piece, crc), content - len(piece)
        comment = file.read()
    return comment == _comment(zlib.crc32(b"\0\0", crc))


def remove_leftovers(directory: Path) -> None:
    """Remove what a process that was killed while saving has left. Only for who holds the run's lock."""
    for path in filter(is_temporary, directory.glob(".*.tmp")):
        path.unlink(missing_ok=True)
    fresh, last = directory / f".{LAST}.new", directory / LAST
    if fresh.exists() and not last.exists() and is_whole(fresh):  # killed between the two renames
        fresh.replace(last)
    fresh.unlink(missing_ok=True)


@contextmanager
def checked_load(directory: Path, own: dict[str, Any], found: dict[str, Any]) -> Iterator[None]:
    """For loading what was `found` in a checkpoint where a new run has its `own`: whatever is wrong with it is told."""
    where = state_mismatch(own, found)
    try:
        if where is not None:
            raise ValueError(where)
        yield
    except (BadInput, torch.OutOfMemoryError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise BadInput(
            f"cannot resume from {directory.parent}: the checkpoint is damaged{f' ({where})' if where else ''}; "
            f"remove {LAST} to go on from {PREVIOUS}, or start anew with --overwrite"
        ) from error


def load_checkpoint(directory: Path, report: Callable[[str], None] = lambda sentence: None) -> dict[str, Any]:
    """The newest checkpoint that can be read; `report` is told of a damaged one that is passed over."""
    damaged: list[str] = []
    for name in (LAST, PREVIOUS):
        path = directory / name
        if not path.exists():
            continue
        state = read_checkpoint(path)
        if state is not None:
            if damaged:
                report(f"{damaged[0]} is damaged; the run goes on from {name}, {state['step']:,} steps in")
            return state
        damaged.append(name)
    what = f"{' and '.join(damaged)} cannot be read" if damaged else "there is no checkpoint"
    raise BadInput(f"cannot resume from {directory.parent}: {what}; start anew with --overwrite")
