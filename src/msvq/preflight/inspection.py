"""What a look at all pictures tells before training: what they are, and which are copies."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.data.decode import IMAGE_RECORD
from msvq.data.sources import ImageSource

# Almost equal pictures differ in few bits of `dhash`, and little in their thumbnails: by eye, 99 of 100 such pairs of
# CIFAR-10 are one picture saved twice. Where a thumbnail has little contrast, it is noise, and the thumbnails must
# agree the better: flat pictures of two colours are two pictures.
BAND = 8  # bits; 8 bands: two hashes that differ in 7 bits have one band in common
MOST_BITS = 8 - 1
MOST_DIFFERENCE = 10.0  # of 255, on average over the thumbnail
FLAT_DIFFERENCE, PER_CONTRAST = 2.0, 0.3  # at most the first plus so much of the contrast (a standard deviation)
# Pictures of a fixed camera all look alike: each is compared with so many others per band, by thumbnail with so many
# in all, and no more once it has so many copies. It bounds the time, and hides nothing: there are plenty to report.
WINDOW, MOST_TRIES, ENOUGH_COPIES = 256, 64, 8

Pairs = NDArray[np.int64]  # [2, N]


@dataclass(frozen=True)
class Inspection:
    """All pictures that there are, and what is known of those that can be read."""

    names: Sequence[str]
    labels: NDArray[np.int64]  # -1 where unknown
    num_train: int  # the rest are test pictures
    readable: NDArray[np.int64]  # positions of the pictures that can be read
    records: NDArray[Any]  # IMAGE_RECORD, of those
    unreadable: tuple[tuple[int, str], ...] = ()  # position and reason

    @property
    def is_train(self) -> NDArray[np.bool_]:
        """Of the readable ones."""
        return self.readable < self.num_train


def inspect_pictures(source: ImageSource, num_workers: int | None, display: Display) -> Inspection:
    """Look at every picture once."""
    rows, unreadable, start = [np.zeros(0, IMAGE_RECORD)], [], 0
    task = display.task("looking at the pictures", len(source))
    with task as advance, closing(source.examined(num_workers)) as results:
        for result in results:
            unreadable += [(start + index, reason) for index, reason in sorted(result.reasons.items())]
            rows.append(np.delete(result.rows, list(result.reasons)))
            start += len(result.rows)
            advance(len(result.rows))
    readable = np.setdiff1d(np.arange(len(source)), [index for index, _ in unreadable]).astype(np.int64)
    return Inspection(source.names, source.labels, source.num_train, readable, np.concatenate(rows), tuple(unreadable))


class Copies(NamedTuple):
    """Pictures (positions among the readable) beside the first training picture that they equal."""

    exact: Pairs  # equal content
    near: Pairs  # almost equal, and not exact


def find_copies(records: NDArray[Any], is_train: NDArray[np.bool_]) -> tuple[Copies, Copies]:
    """Training pictures that repeat an earlier one, and test pictures that are also in train."""
    place = np.arange(len(records))
    _, content = np.unique(records["content"], return_inverse=True)
    same = _first_train(content, is_train, np.zeros((2, 0), np.int64))
    # Pictures with one dhash and one thumbnail become one, or a thousand blank ones would make a million pairs.
    dhash, thumbnails = np.ascontiguousarray(records["dhash"]), records["thumbnail"]
    whole = np.concatenate([dhash.view(np.uint8).reshape(-1, 8), thumbnails.reshape(-1, 192)], axis=1)
    _, first, kind = np.unique(whole.view("V200")[:, 0], return_index=True, return_inverse=True)
    pairs = near_pairs(dhash[first], thumbnails[first])
    alike = _first_train(kind, is_train, pairs)
    before = np.where(is_train, place, len(records))
    is_copy, exact = same < before, np.stack([place, same])
    near_only, near = (alike < before) & ~is_copy, np.stack([place, alike])
    return (
        Copies(exact[:, is_train & is_copy], near[:, is_train & near_only]),
        Copies(exact[:, ~is_train & is_copy], near[:, ~is_train & near_only]),
    )


def _first_train(kind: NDArray[np.int64], is_train: NDArray[np.bool_], pairs: Pairs) -> NDArray[np.int64]:
    """For each picture, the first training picture of its kind or of a kind that its own is paired with."""
    first = np.full(kind.max(initial=-1) + 1, len(kind))
    np.minimum.at(first, kind[is_train], np.flatnonzero(is_train))
    reached = first.copy()
    np.minimum.at(reached, pairs[0], first[pairs[1]])
    np.minimum.at(reached, pairs[1], first[pairs[0]])
    return reached[kind]


def near_pairs(dhash: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> Pairs:
    """Pairs of pictures that are almost equal.

    Two that differ in few bits agree in one band of them, and their thumbnails are about as bright: in the order of
    band, then brightness, they stand close together. Each is compared with those that follow until the band ends or
    the brightness differs too much.
    """
    flat = thumbnails.reshape(-1, 192)
    brightness = flat.mean(axis=1)
    contrast = thumbnails.reshape(-1, 64, 3).std(axis=1, dtype=np.float32).mean(axis=1, dtype=np.float64)
    tries, copies = np.zeros(len(dhash), np.int64), np.zeros(len(dhash), np.int64)
    found = [np.zeros((2, 0), np.int64)]
    for shift in range(0, 64, BAND):
        band = (dhash >> np.uint64(shift)) & np.uint64(2**BAND - 1)
        key = band.astype(np.float64) * 1000 + brightness  # bands are further apart than any brightness
        order = np.argsort(key)
        key, ordered = key[order], dhash[order]
        at = np.arange(len(order))
        for step in range(1, WINDOW + 1):
            at = at[at + step < len(order)]
            at = at[key[at + step] - key[at] <= MOST_DIFFERENCE]
            if not len(at):
                break
            close = at[_num_bits(ordered[at] ^ ordered[at + step]) <= MOST_BITS]
            if not len(close):
                continue
            pairs = np.stack([order[close], order[close + step]])
            allowed = np.minimum(MOST_DIFFERENCE, FLAT_DIFFERENCE + PER_CONTRAST * contrast[pairs].min(axis=0))
            alike = _difference(flat, pairs) <= allowed
            tries[pairs[0]] += 1  # no picture is there twice
            copies[pairs[0]] += alike
            found.append(pairs[:, alike])
            at = at[(tries[order[at]] < MOST_TRIES) & (copies[order[at]] < ENOUGH_COPIES)]
    first, second = np.sort(np.concatenate(found, axis=1), axis=0)
    return np.stack(np.divmod(np.unique(first * len(dhash) + second), max(len(dhash), 1)))


def _num_bits(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many bits are set in each: pairs of bits are added up, then fours, then bytes (numpy 1 cannot count them)."""
    one, two, four = (np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    words = words - ((words >> np.uint64(1)) & one)
    words = (words & two) + ((words >> np.uint64(2)) & two)
    words = (words + (words >> np.uint64(4))) & four
    return (words * np.uint64(0x0101010101010101)) >> np.uint64(56)


def _difference(flat: NDArray[np.uint8], pairs: Pairs) -> NDArray[np.float64]:
    """The mean difference of the thumbnails of each pair."""
    one, other = flat[pairs]
    mean: NDArray[np.float64] = (np.maximum(one, other) - np.minimum(one, other)).mean(axis=1)
    return mean
