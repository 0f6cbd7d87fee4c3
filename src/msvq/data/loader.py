"""Batches in a seeded order that is a pure function of (seed, epoch), so any position can be resumed."""

from collections.abc import Iterator

import torch
from torch import Tensor

from msvq.core.distributed import rank_slice
from msvq.core.errors import BadInput
from msvq.core.runtime import RandomStream, derive_seed, send_together
from msvq.data.store import ImageSplit


class Loader:
    """Shuffled batches of uint8 pictures; the last partial batch of an epoch is dropped.

    On several ranks each reads its own rows of a batch, of `batch_size` / W pictures.
    """

    def __init__(self, pictures: ImageSplit, *, batch_size: int, seed: int, device: torch.device) -> None:
        if len(pictures) < batch_size:
            few = "1 picture is" if len(pictures) == 1 else f"{len(pictures)} pictures are"
            lower = "lower train.batch_size or " if len(pictures) > 1 else ""  # a batch has two or more
            raise BadInput(f"{few} fewer than one batch of {batch_size}; {lower}give more pictures")
        self.pictures = pictures
        self.labels = torch.from_numpy(pictures.labels)
        self.batch_size = batch_size
        self.seed = seed
        self.device = device

    def __len__(self) -> int:
        return len(self.pictures) // self.batch_size

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches `start`, `start` + 1, ... of an epoch: images uint8 [N, H, W, 3], labels [N], indices [N]."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RandomStream.ORDER, epoch))
        order = torch.randperm(len(self.pictures), generator=generator).numpy()
        chosen = (order[i * self.batch_size : (i + 1) * self.batch_size][rank_slice()] for i in range(start, len(self)))
        for images, numbers in self.pictures.batches(chosen):
            indices = torch.from_numpy(numbers)
            batch = send_together([torch.from_numpy(images), self.labels[indices], indices], self.device)
            yield batch[0], batch[1], batch[2]
