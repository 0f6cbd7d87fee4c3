"""Which labelled pictures a protocol learns from, and augmented batches of them."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy import int64
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.errors import BadInput, first_line
from msvq.core.runtime import RandomStream, derive_seed, eval_mode, is_out_of_memory, keep_freed_memory
from msvq.data.augment import Augment, ViewSettings
from msvq.data.store import ImageDataset, by_class

Rows = NDArray[int64]

PLAIN = ViewSettings(crop_area=(0.08, 1.0), flip=0.5)  # the paper's code's, for linear evaluation


def usable_rows(labels: NDArray[int64], rows: Rows | None = None) -> Rows:
    """Those of `rows` (None: of all) that have a label; two classes or more, or there is nothing to learn."""
    chosen = np.arange(len(labels)) if rows is None else np.asarray(rows, int64)
    known = chosen[labels[chosen] >= 0]
    if not len(known):
        raise BadInput("there is no labelled picture to learn from; give labelled data or a larger share of the labels")
    if (labels[known] == labels[known[0]]).all():
        raise BadInput(
            f"all of the {len(known)} labelled pictures to learn from are of one class; "
            f"give pictures of two classes or more"
        )
    return known


def chance(labels: NDArray[int64]) -> float:
    """Percent of the labelled pictures that are of the commonest class: what naming it always would get right."""
    known = labels[labels >= 0]
    return 100 * int(np.bincount(known).max()) / len(known) if len(known) else float("nan")


def _take(labels: NDArray[int64], seed: int, count: Callable[[int], int]) -> tuple[Rows, Rows]:
    """Sorted row numbers of `count(n)` of the n pictures of each class, at random, and of the others."""
    if not (labels >= 0).any():
        raise BadInput("there is no labelled picture to choose from; give labelled data")
    generator = np.random.default_rng(seed)
    taken, others = [], []
    for members in map(generator.permutation, by_class(labels)):
        # The first of one order, so that a smaller share is part of a larger one.
        num = count(len(members))
        taken.append(members[:num])
        others.append(members[num:])
    return np.sort(np.concatenate(taken)), np.sort(np.concatenate(others))


def _nearest(share: float, num: int) -> int:
    """`share * num`, a half rounded up whatever stands beside it: classes of one size stay of one size."""
    return int(np.floor(share * num + 0.5))


def stratified(labels: NDArray[int64], share: float, seed: int) -> Rows:
    """Sorted row numbers of a share of each class, the nearest whole number of pictures but at least one.

    Rows labelled -1 are never chosen; a smaller share of the same seed is part of a larger one.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a share of the labels lies above 0 and is at most 1, not {share}")
    return _take(labels, seed, lambda num: max(1, _nearest(share, num)))[0]


def held_out(labels: NDArray[int64], share: float, seed: int) -> tuple[Rows, Rows]:
    """Sorted row numbers of what remains and of a held-out share of each class: disjoint, together all labelled rows.

    Of a class of two pictures or more at least one is held out and at least one remains; a single one remains.
    """
    if not 0 < share < 1:
        raise BadInput(f"the share to hold out lies between 0 and 1, not {share}")
    held, rest = _take(labels, seed, lambda num: min(num - 1, max(1, _nearest(share, num))))
    return rest, held


def num_batches(num: int, batch_size: int, *, even: bool = False) -> int:
    """Of an epoch; `even`: so that each has two pictures or more, as batch norm needs."""
    usual = -(-num // batch_size)
    return max(1, min(usual, num // 2)) if even else usual


class LabelledViews:
    """Shuffled batches of augmented training crops with their labels, a pure function of (seed, epoch).

    The last batch of an epoch is as small as it comes; `even` makes all of them equal to within one picture instead,
    and none of one picture alone: the last three are then together, if need be.
    """

    def __init__(
        self,
        data: ImageDataset,
        rows: Rows | None,
        *,
        view: ViewSettings,
        batch_size: int,
        seed: int,
        device: torch.device,
        size: int | None = None,  # of the crops; None: that of pre-training
        even: bool = False,
    ) -> None:
        keep_freed_memory()
        self.pictures = data.labelled.select(usable_rows(data.labelled.labels, rows))
        self.labels = torch.from_numpy(self.pictures.labels)
        self.num_classes = max(
            data.num_classes, *(1 + int(part.labels.max(initial=-1)) for part in (data.labelled, data.test))
        )
        self.augment = Augment({"plain": view}, size=size or data.size, mean=data.mean, std=data.std)
        self.side = view.side(size or data.size)
        self.batch_size, self.seed, self.device, self.even = batch_size, seed, device, even

    @torch.no_grad()
    def check(self, network: nn.Module, way_out: str) -> None:
        """Raise if a network cannot take pictures of the crops' size, as transformers may not."""
        pictures = torch.zeros(2, 3, self.side, self.side, device=self.device)
        try:
            with eval_mode(network):
                network(pictures.to(memory_format=torch.channels_last))
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            if is_out_of_memory(error):
                raise
            told = first_line(error, 200)
            raise BadInput(f"the encoder cannot take crops of {self.side} pixels ({told}); {way_out}") from error

    def __len__(self) -> int:
        """Batches of an epoch."""
        return num_batches(len(self.pictures), self.batch_size, even=self.even)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches: views [N, 3, size, size], normalised, in channels_last; labels [N]."""
        shuffle, generator = (
            torch.Generator().manual_seed(derive_seed(self.seed, kind, epoch))
            for kind in (RandomStream.ORDER, RandomStream.VIEWS)
        )
        order = torch.randperm(len(self.pictures), generator=shuffle).numpy()
        cuts = range(self.batch_size, len(order), self.batch_size)
        batches = np.array_split(order, len(self)) if self.even else np.split(order, cuts)
        for images, indices in self.pictures.batches(batches):
            (views,) = self.augment(torch.from_numpy(images).to(self.device), ["plain"], generator)
            yield views, self.labels[torch.from_numpy(indices)].to(self.device)
