"""Features of many pictures, in shards on disk that are finished or not there: memory stays small, and what was killed
goes on.

A shard is an .npz file of some positions: the features of those that could be read, and why the others could not. Zip
files carry a checksum of each array, so a damaged shard is noticed, and computed again.
"""

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Advance, Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, check_no_link, is_temporary, write_atomically, write_text
from msvq.data.decode import PASSING, check_skipped
from msvq.data.sources.base import ImageSource, Positions
from msvq.runs.encoder import CHUNK, LoadedEncoder

BATCH_SIZE = 256
SHARD_SIZE = 16 * CHUNK  # pictures in a shard, and the most in a batch
RULES = 2  # raised when the same pictures and encoder give other shards
CARD, WHOLE, UNIT = "parts.json", "whole", "unit.f32"

Skipped = tuple[tuple[str, str], ...]  # name and reason


class Shard(NamedTuple):
    """Features [n, d] of the readable ones of some pictures, and the positions of the others, with the reason."""

    features: NDArray[np.float32]
    skipped: dict[int, str]


def compute_features(
    encoder: LoadedEncoder,
    source: ImageSource,
    stretches: Sequence[Positions],
    *,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    advance: Advance = lambda num: None,
) -> Iterator[Shard]:
    """A shard of each stretch of positions. Decoding goes on across them, while the network works."""
    batch_size = -(-batch_size // CHUNK) * CHUNK
    chunks = (chunk for stretch in stretches for chunk in _cut(stretch, CHUNK))
    with closing(source.decoded(chunks, encoder.preprocessing.side, workers=workers)) as results:
        for stretch in stretches:
            features: list[NDArray[np.float32]] = []
            skipped: dict[int, str] = {}
            for batch in _cut(stretch, batch_size):
                images = []
                for chunk in _cut(batch, CHUNK):
                    result = next(results)
                    skipped |= {int(chunk[index]): reason for index, reason in result.reasons.items()}
                    images.append(result.rows)
                # What could not be read goes through as black, so that every batch is where it always is.
                features.append(encoder(np.concatenate(images)))
                advance(len(batch))
            yield Shard(np.concatenate(features)[is_readable(stretch, skipped)], skipped)


def is_readable(positions: Positions, skipped: Mapping[int, str]) -> NDArray[np.bool_]:
    """Which of the positions were not skipped."""
    return ~np.isin(positions, list(skipped))


def _cut(positions: Positions, size: int) -> list[Positions]:
    return [positions[start : start + size] for start in range(0, len(positions), size)]


@dataclass
class FeatureShards:
    """The shards of some pictures of a source, in a folder of their own. The caller keeps other processes out of it."""

    folder: Path
    source: ImageSource
    positions: Positions  # which pictures of the source
    encoder: LoadedEncoder
    skipped: dict[int, str] = field(default_factory=dict)  # once complete: position and reason

    def complete(self, batch_size: int, display: Display) -> None:
        """Compute what is missing. Shards of other pictures or another encoder are thrown away first."""
        self._begin(display)
        missing = {}
        for number, stretch in enumerate(_cut(self.positions, SHARD_SIZE)):
            shard = self._read(number)
            if shard is None or may_pass(shard.skipped):
                missing[number] = stretch
            else:
                self.skipped |= shard.skipped
        num, total = sum(map(len, missing.values())), len(self.positions)
        if num < total:
            display.note(f"continuing: {total - num:,} of {total:,} pictures are done already")
        with display.task("embedding pictures", num) as advance:
            stretches = list(missing.values())
            shards = compute_features(self.encoder, self.source, stretches, batch_size=batch_size, advance=advance)
            for number, shard in zip(missing, shards, strict=True):
                self._write(number, shard)
                self.skipped |= shard.skipped

    @property
    def kept(self) -> Positions:
        """Positions of the pictures that have features, once complete."""
        return self.positions[is_readable(self.positions, self.skipped)]

    def features(self) -> Iterator[NDArray[np.float32]]:
        """Features of all kept pictures, shard by shard."""
        for number in range(-(-len(self.positions) // SHARD_SIZE)):
            shard = self._read(number)
            if shard is None:
                raise BadInput(f"{self._path(number)} was damaged meanwhile; the same command computes it again")
            yield shard.features

    def remove(self) -> None:
        """Delete them, the card last: without it the rest would be somebody else's."""
        with suppress(OSError):  # the folder holds something else too
            left = [*self._files(), *filter(is_temporary, self.folder.iterdir())]
            for path in (*left, *(self.folder / name for name in (WHOLE, UNIT, LOCK, CARD))):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _begin(self, display: Display) -> None:
        chosen = hashlib.sha256(np.ascontiguousarray(self.positions).data).hexdigest()
        key = f"{RULES} {SHARD_SIZE} {self.encoder.key} {self.source.fingerprint()} {chosen}"
        card = self.folder / CARD
        if card.is_file():
            if card.read_text(encoding="utf-8", errors="replace") == key:
                return
            display.note("the pictures or the encoder have changed since this was begun: starting anew")
        for path in self._files():
            path.unlink()
        write_text(card, key)

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob("*.npz") if re.fullmatch(r"\d{6,}", path.stem)]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.npz"

    def _read(self, number: int) -> Shard | None:
        """A shard, or None if it is not there or damaged."""
        try:
            with np.load(self._path(number), allow_pickle=False) as file:
                skipped = {int(place): str(why) for place, why in json.loads(file["skipped"].tobytes()).items()}
                shard = Shard(file["features"], skipped)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError):
            return None
        num = len(self.positions[number * SHARD_SIZE : (number + 1) * SHARD_SIZE]) - len(skipped)
        return shard if shard.features.shape == (num, self.encoder.feature_dim) else None

    def _write(self, number: int, shard: Shard) -> None:
        reasons = np.frombuffer(json.dumps(shard.skipped).encode(), np.uint8)
        write_atomically(self._path(number), lambda file: np.savez(file, features=shard.features, skipped=reasons))


def may_pass(skipped: Mapping[int, str]) -> bool:
    """Whether some of these pictures may be readable another time."""
    return any(reason.startswith(PASSING) for reason in skipped.values())


def name_skipped(source: ImageSource, skipped: Mapping[int, str]) -> Skipped:
    """What was left out of a source, and why: folders that could not be looked into, then pictures."""
    return (*source.unlisted, *((source.names[position], reason) for position, reason in sorted(skipped.items())))


def check_readable(source: ImageSource, skipped: Mapping[int, str]) -> None:
    """Raise if no picture at all could be read."""
    check_skipped(len(skipped), len(source), 1.0, Counter(skipped.values()))


def check_ours(folder: Path) -> None:
    """Raise if a folder for shards, which is deleted in the end, holds something else."""
    for path in (folder, folder / LOCK):
        check_no_link(path)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is in the way: parts go there; move it away, or choose another --out")
    if folder.is_dir() and not (folder / CARD).is_file() and any(path.name[0] != "." for path in folder.iterdir()):
        raise BadInput(f"{str(folder)!r} holds other files, and parts go there; move it away, or choose another --out")
