"""Pictures that stay in their files and are decoded when they are needed, for data that should not be packed."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.store import Batch, ImageSplit
from msvq.data.to_rgb import Resizing
from msvq.data.workers import Result, Workers, chunked

if TYPE_CHECKING:
    from msvq.data.sources.base import EncodedSource

PIECE = 32  # pictures that one worker gets at a time


class DecodingStream:
    """The images uint8 [N, S, S, 3] of encoded pictures, the workers that decode them, and what these lost."""

    def __init__(
        self,
        source: "EncodedSource",
        *,
        side: int,
        resizing: Resizing | None = None,
        max_lost: int,
        num_workers: int | None,
    ) -> None:
        self.source, self.side, self.resizing, self.max_lost = source, side, resizing, max_lost
        self.shape, self.dtype = (len(source), side, side, 3), np.dtype(np.uint8)
        self.workers = Workers(num_workers)
        self.lost: dict[str, str] = {}
        self.on_lost: Callable[[str, str], None] = lambda name, reason: None

    def decode(self, chunks: Iterable[list[str | bytes]], *, ahead: int | None = None) -> Iterator[Result]:
        """Pixels of files, some at a time, in order."""
        return self.workers.map("decode", chunks, side=self.side, resizing=self.resizing, ahead=ahead)

    def lose(self, row: int, reason: str) -> None:
        """Remember that a picture that was readable is so no more."""
        name = self.source.names[row]
        if name not in self.lost:
            self.lost[name] = reason
            self.on_lost(name, reason)
        if len(self.lost) > self.max_lost:
            raise BadInput(
                f"{len(self.lost):,} pictures in {self.source.root!r} cannot be read any more ({name!r} {reason}), "
                f"more than data.max_skipped allows; make them readable again and continue with --resume"
            )


@dataclass(frozen=True)
class StreamedSplit(ImageSplit):
    """A split whose images are `rows` of a stream. A picture that cannot be read any more is replaced by the next."""

    images: DecodingStream  # type: ignore[assignment]  # all that others ask of it are the methods below, and its shape
    rows: NDArray[np.int64] = field(kw_only=True)

    def batches(self, chosen: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """Decoded batches, in order, worked on ahead of time; and which pictures they hold."""
        batches = iter(chosen)
        first = next(batches, None)
        if first is None:
            return
        plan: deque[NDArray[np.int64]] = deque()

        def work() -> Iterator[list[str | bytes]]:
            for batch in chain([first], batches):
                plan.append(batch)
                yield from chunked(self.images.source, self.rows[batch], PIECE)

        # Two batches ahead: the workers go on while one trains.
        ahead = 2 * -(-len(first) // PIECE) + self.images.workers.num
        results = self.images.decode(work(), ahead=ahead)
        for result in results:  # the first of a batch
            batch = plan.popleft()
            yield self._whole([result, *islice(results, -(-len(batch) // PIECE) - 1)], batch)

    def batches_in_order(self, num: int) -> Iterator[NDArray[np.uint8]]:
        """All pictures, in batches of `num`."""
        stretches = (np.arange(start, min(start + num, len(self))) for start in range(0, len(self), num))
        yield from (images for images, _ in self.batches(stretches))

    def labels_as_read(self) -> NDArray[np.int64]:
        """The labels of what `batches_in_order` has yielded: of the pictures in the places of lost ones."""
        names, lost = self.images.source.names, self.images.lost
        readable = np.flatnonzero([names[int(row)] not in lost for row in self.rows]) if lost else np.arange(0)
        if not len(readable):
            return self.labels
        shown: NDArray[np.int64] = readable[np.searchsorted(readable, np.arange(len(self))) % len(readable)]
        return self.labels[shown]

    def _whole(self, parts: list[Result], batch: NDArray[np.int64]) -> Batch:
        images = np.concatenate([part.rows for part in parts])
        bad = {n * PIECE + i: why for n, part in enumerate(parts) for i, why in part.reasons.items()}
        for place in set(range(len(batch))) - bad.keys() if self.images.lost else ():
            self.images.lost.pop(self.images.source.names[int(self.rows[batch[place]])], None)  # it can be read again
        batch = batch.copy() if bad else batch
        for place, reason in bad.items():
            self.images.lose(int(self.rows[batch[place]]), reason)
            batch[place], images[place] = self._next_readable(int(batch[place]))
        return images, batch

    def _next_readable(self, index: int) -> tuple[int, NDArray[np.uint8]]:
        stream = self.images
        for step in range(1, len(self)):
            other = (index + step) % len(self)
            row = int(self.rows[other])
            result = next(stream.decode([[stream.source[row]]]))
            if not result.reasons:
                return other, result.rows[0]
            stream.lose(row, result.reasons[0])
        raise BadInput(f"no picture in {stream.source.root!r} can be read any more; are they still there?")
