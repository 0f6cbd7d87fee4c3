"""Checksums of what is kept on disk: it is read as it was written, or its damage is noticed."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import PATIENCE, Advance, Display

SEAL = "sha256"  # the key of a card's own checksum
_BLOCK = 1 << 20


class Damaged(Exception):
    """Something is not what was written; the text says what."""


def with_checksum(card: Mapping[str, Any], key: str = SEAL) -> dict[str, Any]:
    """The card with a checksum of all that it says."""
    return {**card, key: _hash_card(card)}


def verified(card: Mapping[str, Any], key: str = SEAL) -> dict[str, Any]:
    """What a sealed card says, or Damaged. Spaces and the order of its keys do not matter."""
    said = {name: value for name, value in card.items() if name != key}
    if card.get(key) != _hash_card(said):
        raise Damaged("it is not as it was written")
    return said


def read_sealed(path: Path, *, marks: Set[str]) -> dict[str, Any] | None:
    """A sealed card; None if there is no file, or one that was never sealed (it has none of `marks`); or Damaged."""
    try:
        card = json.loads(path.read_bytes())
        if isinstance(card, dict):
            return verified(card) if {SEAL, *marks} & card.keys() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, Damaged):
        pass
    raise Damaged(path.name)


def _hash_card(card: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def map_checked(
    folder: Path,
    kinds: Mapping[str, str],
    expected: Mapping[str, str],
    display: Display,
    what: str = "the packed pictures",
) -> dict[str, NDArray[Any]]:
    """Files as flat arrays of these kinds, mapped; Damaged where one has not the checksum that is expected of it."""
    with ExitStack() as stack:
        try:
            files = {name: stack.enter_context((folder / name).open("rb", buffering=0)) for name in kinds}
            with _patient_task(display, f"checking {what}", _size(files.values())) as advance:
                for name in expected.keys() & kinds.keys():
                    if _hash(files[name], advance) != expected[name]:
                        raise Damaged(name)
            # Copy-on-write, because torch wants arrays that could be written to; nothing ever is.
            return {name: np.memmap(file, kinds[name], "c") for name, file in files.items()}
        except OSError as error:
            raise Damaged(error.strerror or "it cannot be read") from None


def hash_files(paths: Sequence[Path], display: Display) -> dict[str, str]:
    """The checksum of each file, by its name."""
    with ExitStack() as stack:
        files = {path.name: stack.enter_context(path.open("rb", buffering=0)) for path in paths}
        with _patient_task(display, "adding checksums", _size(files.values())) as advance:
            return {name: _hash(file, advance) for name, file in files.items()}


def _hash(file: FileIO, advance: Advance) -> str:
    """SHA-256: some 1.2 GB per second of a core that has instructions for it, a third of that elsewhere."""
    digest, block = hashlib.sha256(), bytearray(_BLOCK)
    # Read, not mapped: what a failing disk refuses is an error here, and would end the process there.
    while num := file.readinto(block):
        digest.update(memoryview(block)[:num])
        advance(num)
    return digest.hexdigest()


def _size(files: Iterable[FileIO]) -> int:
    return sum(os.fstat(file.fileno()).st_size for file in files)


@contextmanager
def _patient_task(display: Display, description: str, total: int) -> Iterator[Advance]:
    """A bar for what is usually over at once: it appears after two seconds."""
    started, done = time.monotonic(), 0
    shown: Advance | None = None
    with ExitStack() as stack:

        def advance(num: int) -> None:
            nonlocal shown, done
            done += num
            if shown is not None:
                shown(num)
            elif time.monotonic() - started > PATIENCE:
                shown = stack.enter_context(display.task(description, total, in_bytes=True))
                shown(done)

        yield advance
