"""Names of many pictures, without a string for each."""

import os
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Names(Sequence[str]):
    """One array of bytes, which may be mapped from disk: a name costs nothing until it is asked for."""

    def __init__(self, blob: NDArray[np.uint8], bounds: NDArray[np.int64]) -> None:
        self.blob, self.bounds = blob, bounds  # name i is blob[bounds[i]:bounds[i + 1]]

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """These names, in memory."""
        encoded = [os.fsencode(name) for name in names]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)]))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def part(self, start: int, stop: int | None) -> "Names":
        """A stretch of them, still on disk."""
        first, last, _ = slice(start, stop).indices(len(self))
        return Names(self.blob, self.bounds[first : last + 1])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return os.fsdecode(self.blob[self.bounds[place] : self.bounds[place + 1]].tobytes())
