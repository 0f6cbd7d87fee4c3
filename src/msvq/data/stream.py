"""Pictures that stay in their files and are decoded when they are needed, for data that should not be packed."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.items import Items, pieces
from msvq.data.workers import Result, Workers

PIECE = 32  # pictures that one worker gets at a time


class Stream:
    """The workers of a data set and what they could not read any more."""

    def __init__(self, items: Items, *, side: int, max_lost: int, num_workers: int | None) -> None:
        self.items, self.side, self.max_lost = items, side, max_lost
        self.workers = Workers(num_workers)
        self.lost: dict[str, str] = {}
        self.on_lost: Callable[[str, str], None] = lambda name, reason: None

    def lose(self, position: int, reason: str) -> None:
        """Remember that a picture that was readable is so no more."""
        name = self.items.names[position]
        if name not in self.lost:
            self.lost[name] = reason
            self.on_lost(name, reason)
        if len(self.lost) > self.max_lost:
            raise BadInput(
                f"{len(self.lost):,} pictures in {self.items.root!r} cannot be read any more ({name!r} {reason}), more "
                f"than data.max_skipped allows; make them readable again and continue with --resume"
            )


class Streamed:
    """Looks like an array uint8 [N, S, S, 3]; `positions` are its pictures' places among the stream's items."""

    def __init__(self, stream: Stream, positions: NDArray[np.int64]) -> None:
        self.stream, self.positions = stream, positions
        self.shape = (len(positions), stream.side, stream.side, 3)

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, start: int, stop: int | None) -> "Streamed":
        """A stretch of the pictures, still in their files."""
        return Streamed(self.stream, self.positions[start:stop])

    def batches(self, chosen: Iterable[NDArray[np.int64]]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Decoded batches, in order, worked on ahead of time; and which pictures they hold.

        A picture that cannot be read any more is replaced by the next one that can.
        """
        batches = iter(chosen)
        first = next(batches, None)
        if first is None:
            return
        plan: deque[NDArray[np.int64]] = deque()

        def work() -> Iterator[list[str | bytes]]:
            for batch in chain([first], batches):
                plan.append(batch)
                yield from pieces(self.stream.items, self.positions[batch], PIECE)

        # Two batches ahead: the workers go on while one trains.
        ahead = 2 * -(-len(first) // PIECE) + self.stream.workers.num
        parts: list[Result] = []
        for result in self.stream.workers.map("decode", work(), side=self.stream.side, ahead=ahead):
            parts.append(result)
            if sum(len(part.rows) for part in parts) == len(plan[0]):
                yield self._whole(parts, plan.popleft())
                parts = []

    def shown(self) -> NDArray[np.int64]:
        """Which picture stands in each place, where lost ones have been replaced."""
        own = np.arange(len(self))
        if not self.stream.lost:
            return own
        names, lost = self.stream.items.names, self.stream.lost
        readable = np.flatnonzero([names[int(position)] not in lost for position in self.positions])
        return readable[np.searchsorted(readable, own) % len(readable)] if len(readable) else own

    def _whole(self, parts: list[Result], batch: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = np.concatenate([part.rows for part in parts])
        starts = np.cumsum([0, *(len(part.rows) for part in parts)])
        bad = {int(s) + i: why for s, part in zip(starts[:-1], parts, strict=True) for i, why in part.reasons.items()}
        batch = batch.copy() if bad else batch
        for place, reason in bad.items():
            self.stream.lose(int(self.positions[batch[place]]), reason)
            batch[place], images[place] = self._next_readable(int(batch[place]))
        return images, batch

    def _next_readable(self, index: int) -> tuple[int, NDArray[np.uint8]]:
        for step in range(1, len(self)):
            other = (index + step) % len(self)
            position = int(self.positions[other])
            result = next(self.stream.workers.map("decode", [[self.stream.items[position]]], side=self.stream.side))
            if not result.reasons:
                return other, result.rows[0]
            self.stream.lose(position, result.reasons[0])
        raise BadInput(f"no picture in {self.stream.items.root!r} can be read any more; are they still there?")
