"""Features in parts on disk, each finished or not there: memory stays small, and what was killed goes on.

A part is an .npz file of some positions: the features of those that could be read, which they are, and why the others
could not. Zip files carry a checksum of each array, so a damaged part is noticed, and computed again.
"""

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Advance, Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, check_no_link, is_temporary, write_atomically, write_text
from msvq.data.decode import PASSING, check_skipped
from msvq.data.sources.base import ImageSource, Positions
from msvq.runs.encoder import CHUNK, LoadedEncoder

PART = 16 * CHUNK  # pictures in a part, and the most in a batch
RULES = 2  # raised when the same pictures and encoder give other parts
CARD, WHOLE = "parts.json", "whole"


@dataclass(frozen=True)
class Part:
    """A stretch of pictures: features float32 [n, d] of the readable ones, their positions, and the others."""

    features: NDArray[np.float32]
    kept: Positions
    skipped: dict[int, str]  # position and reason


@dataclass
class Parts:
    """The parts of some pictures of a source, in a folder of their own. The caller keeps other processes out of it."""

    folder: Path
    source: ImageSource
    positions: Positions  # which pictures of the source
    encoder: LoadedEncoder
    skipped: dict[int, str] = field(default_factory=dict)  # once complete: position and reason
    kept: Positions = field(default_factory=lambda: np.zeros(0, np.int64))  # once complete

    def __len__(self) -> int:
        return -(-len(self.positions) // PART)

    def complete(self, batch_size: int, display: Display) -> None:
        """Compute what is missing. Parts of other pictures or another encoder are thrown away first."""
        self._begin(display)
        missing, facts = [], {}
        for number in range(len(self)):
            part = self._read(number)
            if part is None or any(reason.startswith(PASSING) for reason in part.skipped.values()):
                missing.append(number)
            else:
                facts[number] = part.kept, part.skipped
        total = sum(len(self._stretch(number)) for number in missing)
        if facts:
            done = len(self.positions) - total
            display.note(f"continuing: {done:,} of {len(self.positions):,} pictures are done already")
        with display.task("embedding pictures", total) as advance:
            for number, part in zip(missing, self._compute(missing, batch_size, advance), strict=True):
                write_atomically(self._path(number), lambda file, part=part: _write(file, part))  # type: ignore[misc]
                facts[number] = part.kept, part.skipped
        in_order = [facts[number] for number in range(len(self))]
        self.kept = np.concatenate([np.zeros(0, np.int64), *(kept for kept, _ in in_order)])
        self.skipped = {position: reason for _, skipped in in_order for position, reason in skipped.items()}

    def features(self) -> Iterator[NDArray[np.float32]]:
        """Features of all kept pictures, part by part."""
        for number in range(len(self)):
            part = self._read(number)
            if part is None:
                raise BadInput(f"{self._path(number)} was damaged meanwhile; the same command computes it again")
            yield part.features

    def remove(self) -> None:
        """Delete them, the card last: without it the rest would be somebody else's."""
        with suppress(OSError):  # the folder holds something else too
            left = [*self._files(), *filter(is_temporary, self.folder.iterdir())]
            for path in (*left, *(self.folder / name for name in (WHOLE, LOCK, CARD))):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _begin(self, display: Display) -> None:
        chosen = hashlib.sha256(np.ascontiguousarray(self.positions).data).hexdigest()
        key = f"{RULES} {PART} {self.encoder.key} {self.source.fingerprint()} {chosen}"
        card = self.folder / CARD
        if card.is_file() and card.read_text(encoding="utf-8", errors="replace") == key:
            return
        if card.is_file():
            display.note("the pictures or the encoder have changed since this was begun: starting anew")
        for path in self._files():
            path.unlink()
        write_text(card, key)

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob("*.npz") if re.fullmatch(r"\d{6,}", path.stem)]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.npz"

    def _stretch(self, number: int) -> Positions:
        return self.positions[number * PART : (number + 1) * PART]

    def _read(self, number: int) -> Part | None:
        """A part, or None if it is not there or damaged."""
        try:
            with np.load(self._path(number), allow_pickle=False) as file:
                skipped = {int(place): str(why) for place, why in json.loads(file["skipped"].tobytes()).items()}
                part = Part(file["features"], file["kept"], skipped)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError):
            return None
        whole = part.features.shape == (len(part.kept), self.encoder.feature_dim)
        return part if whole and len(part.kept) + len(part.skipped) == len(self._stretch(number)) else None

    def _compute(self, numbers: list[int], batch_size: int, advance: Advance) -> Iterator[Part]:
        """The parts of these numbers. Decoding goes on across them, while the network works."""
        batch_size = min(PART, -(-batch_size // CHUNK) * CHUNK)
        pieces = (piece for number in numbers for piece in _cut(self._stretch(number)))
        with closing(self.source.decoded(pieces, self.encoder.size)) as results:
            for number in numbers:
                stretch, features = self._stretch(number), []
                skipped: dict[int, str] = {}
                waiting: list[NDArray[np.uint8]] = []
                done = 0
                for piece in _cut(stretch):
                    result = next(results)
                    skipped |= {int(piece[index]): reason for index, reason in result.reasons.items()}
                    waiting.append(result.rows)
                    done += len(piece)
                    # What could not be read goes through as black, so that every batch is where it always is.
                    if done % batch_size == 0 or done == len(stretch):
                        images = np.concatenate(waiting)
                        features.append(self.encoder(images))
                        waiting.clear()
                        advance(len(images))
                readable = np.array([int(position) not in skipped for position in stretch])
                yield Part(np.concatenate(features)[readable], stretch[readable], skipped)


def _cut(stretch: Positions) -> Iterator[Positions]:
    for start in range(0, len(stretch), CHUNK):
        yield stretch[start : start + CHUNK]


def _write(file: BinaryIO, part: Part) -> None:
    reasons = np.frombuffer(json.dumps(part.skipped).encode(), np.uint8)
    np.savez(file, features=part.features, kept=part.kept, skipped=reasons, allow_pickle=False)


def check_ours(folder: Path) -> None:
    """Raise if a folder for parts, which is deleted in the end, holds something else."""
    for path in (folder, folder / LOCK):
        check_no_link(path)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is in the way: parts go there; move it away, or choose another --out")
    if folder.is_dir() and not (folder / CARD).is_file() and any(path.name[0] != "." for path in folder.iterdir()):
        raise BadInput(f"{str(folder)!r} holds other files, and parts go there; move it away, or choose another --out")


def check_batch_size(batch_size: int) -> None:
    """Raise if there can be no such batch: it lies within a part."""
    if not 1 <= batch_size <= PART:
        raise BadInput(f"--batch-size is 1 to {PART:,}, not {batch_size}")


def check_readable(skipped: dict[int, str], total: int) -> None:
    """Raise if no picture at all could be read."""
    check_skipped(len(skipped), total, 1.0, Counter(skipped.values()))
