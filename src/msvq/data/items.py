"""Pictures that are still encoded: what every source of them offers to those who decode."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Items(Protocol):
    """Pictures to pack, in the order of the store."""

    @property
    def root(self) -> str:
        """The folder that their names are relative to, where they are files."""
        ...

    @property
    def origin(self) -> str:
        """What they come from: packs of the same origin replace each other."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """What a person calls each."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> str | bytes:
        """The picture's file, or its content."""
        ...

    def fingerprint(self) -> str:
        """Changes when a picture does."""
        ...


def pieces(items: Items, order: Sequence[int] | NDArray[np.int64], num: int = 32) -> Iterator[list[str | bytes]]:
    """The items in portions for a worker."""
    for start in range(0, len(order), num):
        yield [items[int(i)] for i in order[start : start + num]]
