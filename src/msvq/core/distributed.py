"""One computation on several processes, the ranks: whose rows are whose, and how tensors meet.

Of W ranks, rank r holds the rows r, r + W, r + 2 W, ... of every batch. So rows come together by stacking, whatever the
batch; and with picture i in batch-norm group i mod S, a rank that takes its rows j mod S / W for its groups has S / W
whole groups of the batch. Where torch.distributed is not initialised there is one rank, and all of this does nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

long_timeout_group: dist.ProcessGroup | None = None  # for waits that may be long; set by who joins the ranks


def rank() -> int:
    """Which of the processes this is, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes compute together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank_slice() -> slice:
    """The rows of a whole batch that this rank holds."""
    return slice(rank(), None, world_size())


def gather(x: Tensor) -> Tensor:
    """The whole batch [W n, ...] of this rank's rows x [n, ...], in order; gradients come back from every rank."""
    return cast(Tensor, _Gather.apply(x)) if world_size() > 1 else x


def gather_permuted(x: Tensor, order: Tensor) -> Tensor:
    """This rank's rows of the whole batch put in another order: row p is row `order` [W n][p] of all the ranks' x.

    Only rows that change their rank cross the network.
    """
    return cast(Tensor, _Take.apply(x, order)) if world_size() > 1 else x[order.to(x.device)]


def flip(x: Tensor) -> Tensor:
    """This rank's rows of the whole batch reversed."""
    return gather_permuted(x, torch.arange(len(x) * world_size()).flip(0)) if world_size() > 1 else x.flip(0)


@torch.no_grad()
def average(x: Tensor) -> Tensor:
    """The mean of x over the ranks, without gradient."""
    if world_size() == 1:
        return x
    total = x.detach().clone()
    dist.all_reduce(total)
    return total / world_size()


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each of these tensors by its mean over the ranks."""
    if world_size() == 1 or not tensors:
        return
    means = average(torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, found in zip(tensors, means.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(found.view_as(tensor))


def largest(*numbers: int) -> list[int]:
    """Of each number the largest over the ranks, for decisions that all must take alike."""
    if world_size() == 1:
        return list(numbers)
    found = torch.tensor(numbers)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return [int(number) for number in found]


def map_sharded(num: int, work: Callable[[slice], Tensor]) -> Tensor:
    """`work`(all of `num` rows) -> [num, ...], of which each rank does a stretch."""
    if world_size() == 1:
        return work(slice(0, num))
    size = -(-num // world_size())
    starts = [min(r * size, num - size) for r in range(world_size())]  # of equal length: the last ones may overlap
    part = work(slice(starts[rank()], starts[rank()] + size)).contiguous()
    if long_timeout_group is not None:  # one rank's pictures may take minutes longer than another's
        dist.barrier(group=long_timeout_group)
    parts = [torch.empty_like(part) for _ in starts]
    dist.all_gather(parts, part)
    whole = part.new_empty(num, *part.shape[1:])
    for start, found in zip(starts, parts, strict=True):
        whole[start : start + size] = found
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Row j of rank r is row j W + r."""
        rows = _bytes(x)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows)
        return _like(torch.stack(parts, dim=1).flatten(0, 1), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """What every rank's loss asks of this rank's rows."""
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total[rank_slice()]


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        """Rows go to the ranks that want them."""
        ctx.order = order
        return _exchange(x, order.cpu())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """And back."""
        return _exchange(gradient, torch.argsort(ctx.order.cpu())), None


def _exchange(x: Tensor, order: Tensor) -> Tensor:
    """Row p of the result is row order[p] // W of rank order[p] mod W."""
    num_ranks, me = world_size(), rank()
    asked = [order[r::num_ranks] for r in range(num_ranks)]  # by rank
    given = [rows[rows % num_ranks == me] // num_ranks for rows in asked]
    origins = asked[me] % num_ranks
    sent = _bytes(x)[torch.cat(given).to(x.device)]
    received = sent.new_empty(len(origins), sent.shape[1])
    dist.all_to_all_single(
        received, sent, torch.bincount(origins, minlength=num_ranks).tolist(), [len(rows) for rows in given]
    )
    places = torch.argsort(origins, stable=True).to(x.device)  # where what came, rank by rank, belongs
    return _like(torch.empty_like(received).index_copy_(0, places, received), x)


def _bytes(x: Tensor) -> Tensor:
    """The rows of x as uint8 [n, bytes]: not every backend knows every number format."""
    rows = x.detach().permute(0, 2, 3, 1) if _channels_last(x) else x.detach()
    return rows.reshape(len(x), -1).contiguous().view(torch.uint8)


def _like(rows: Tensor, x: Tensor) -> Tensor:
    """The opposite: rows of the shape, number format and memory format of x."""
    if _channels_last(x):
        return rows.view(x.dtype).view(-1, *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)
    return rows.view(x.dtype).view(-1, *x.shape[1:])


def _channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
