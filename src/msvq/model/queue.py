"""The memory of past teacher embeddings."""

import torch
from torch import Tensor, nn

from msvq.core.distributed import all_gather
from msvq.core.errors import BadInput
from msvq.model.losses import l2_normalize, similarity
from msvq.model.relations import rows_at_once


class Queue(nn.Module):
    """A first-in-first-out memory of unit vectors, with the labels of their pictures for analysis.

    All of it is in the `state_dict`. `keys` [Q, d] starts as random directions, `labels` [Q] as -1; `pushed` counts
    what was ever stored. `with_lengths`: the lengths that the vectors had are kept too, in `lengths` [Q].
    """

    keys: Tensor
    labels: Tensor
    pointer: Tensor
    pushed: Tensor
    lengths: Tensor | None

    def __init__(self, size: int, dim: int, *, with_lengths: bool = False) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a queue holds at least one key, not {size}")
        self.register_buffer("keys", l2_normalize(torch.randn(size, dim)))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("lengths", torch.ones(size) if with_lengths else None)
        self._deferred: list[tuple[Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def defer(self) -> None:
        """From here on, put aside what is pushed until `flush`."""
        self._deferred = self._deferred or []

    def flush(self) -> None:
        """Store what was put aside; what is pushed from here on is stored at once."""
        put_aside, self._deferred = self._deferred or [], None
        for z, labels in put_aside:
            self.push(z, labels)

    @torch.no_grad()
    def push(self, z: Tensor, labels: Tensor, *, at_once: bool = False) -> None:
        """Store embeddings [N, d] and labels [N] over the oldest entries, wrapping at the end.

        On several ranks each gives its rows of the batch, and every queue stores the whole of it. Call it after the
        loss. The write goes to a copy, because the backward pass still reads the keys
        that the loss was computed with. `at_once`: it is not deferred, for it is to be read in this very step.
        """
        if self._deferred is not None and not at_once:
            self._deferred.append((z.detach(), labels))
            return
        z, labels = all_gather(z.detach()), all_gather(labels)
        size = len(self)
        slots = (self.pointer + torch.arange(len(z), device=z.device)) % size
        slots, newest = slots[-size:], slice(-size, None)
        self.keys = self.keys.index_copy(0, slots, l2_normalize(z)[newest])
        self.labels = self.labels.index_copy(0, slots, labels[newest])
        if self.lengths is not None:
            self.lengths = self.lengths.index_copy(0, slots, z.to(self.lengths.dtype).norm(dim=1)[newest])
        self.pointer = (self.pointer + len(z)) % size
        self.pushed = self.pushed + len(z)

    @torch.no_grad()
    def nearest(self, z: Tensor, k: int) -> Tensor:
        """Slots [N, k] of the k keys most similar to each embedding of z [N, d], nearest first."""
        rows = rows_at_once(self.keys)
        return torch.cat([similarity(part, self.keys).topk(k, dim=1).indices for part in z.split(rows)])


def check_neighbours(num: int, queue_size: int, *, name: str = "k") -> None:
    """Raise if a queue cannot have so many neighbours; `name` is the setting that asks for them."""
    if num > queue_size:
        raise BadInput(f"the method's {name} {num} is larger than its queue_size {queue_size}; lower it")
