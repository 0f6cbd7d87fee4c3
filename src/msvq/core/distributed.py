"""Several processes that compute one thing: how they meet, agree and part, whose rows are whose, how tensors meet.

Of W ranks, rank r holds the rows r, r + W, r + 2 W, ... of every batch. So rows come together by stacking, whatever the
batch; and with picture i in batch-norm group i mod S, a rank that takes its rows j mod S / W for its groups has S / W
whole groups of the batch. Where torch.distributed is not initialised there is one rank, and all of this does nothing.
"""

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from msvq.core.errors import BadInput
from msvq.core.launch import is_main_process, local_rank, num_processes

TIME_LIMIT = "MSVQ_TIME_LIMIT"  # seconds that a process waits for another in the middle of a step
DEFAULT_LIMIT = 60.0
PATIENCE = timedelta(days=30)  # where one process has work that all wait for, such as packing the pictures
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


def all_gather(x: Tensor) -> Tensor:
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
def all_reduce_mean(x: Tensor) -> Tensor:
    """The mean of x over the ranks, without gradient."""
    if world_size() == 1:
        return x
    total = x.detach().clone()
    dist.all_reduce(total)
    return total / world_size()


@torch.no_grad()
def all_reduce_mean_(tensors: Sequence[Tensor]) -> None:
    """Replace each of these tensors by its mean over the ranks."""
    if world_size() == 1 or not tensors:
        return
    means = all_reduce_mean(torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, found in zip(tensors, means.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(found.view_as(tensor))


def all_reduce_max(*numbers: int) -> list[int]:
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


# --- how processes meet, agree and part


class RaisedOnOtherRank(BadInput):
    """A mistake that another process tells the user about."""

    def __init__(self) -> None:
        super().__init__("")


class LostContact(ConnectionError):
    """Another process has died, or does not answer."""


@contextmanager
def process_group() -> Iterator[None]:
    """Compute together with the processes that torchrun started, until `destroy_process_group` or the end."""
    global long_timeout_group
    if num_processes() == 1:
        yield
        return
    if dist.is_initialized():
        raise BadInput("torch.distributed is initialised already; msvq.pretrain does that itself")
    limit = time_limit()
    with_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, number, num = meeting_place(limit)
        backend = "cpu:gloo,cuda:nccl" if with_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=num, timeout=limit)
        long_timeout_group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))
        yield
    except RuntimeError as error:
        if not is_lost_contact(error):
            raise
        raise LostContact(
            "another process of the run has died or does not answer; what was saved is kept: start all of them again "
            "with --auto-resume (torchrun --max-restarts does so)"
        ) from error
    finally:
        destroy_process_group()


def time_limit() -> timedelta:
    """How long a process waits for another in the middle of a step."""
    text = os.environ.get(TIME_LIMIT, str(DEFAULT_LIMIT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < PATIENCE.total_seconds():
        raise BadInput(f"{TIME_LIMIT} is a number of seconds, such as 60, not {text!r}")
    return timedelta(seconds=seconds)


def meeting_place(limit: timedelta) -> tuple[Store, int, int]:
    """Where the processes find each other's addresses, which of them this is, and how many there are."""
    store, number, num = next(rendezvous("env://", timeout=limit))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun keeps the place when it starts the processes again, with the addresses of the dead in it. Only on
        # one machine does its count of restarts tell the times apart: it differs between machines.
        store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    return store, number, num


def destroy_process_group() -> None:
    """Go on alone."""
    global long_timeout_group
    long_timeout_group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_contact(error: RuntimeError) -> bool:
    """Whether an error is another process's end rather than this one's."""
    words = ("gloo", "connection closed", "connection reset", "nccl", "timed out")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


@contextmanager
def errors_on_all_ranks() -> Iterator[None]:
    """What one process finds wrong inside ends all of them, and is said once. Nothing inside may need the others."""
    if world_size() == 1:
        yield
        return
    found: Exception | None = None
    try:
        yield
    except (BadInput, OSError) as error:
        found = error
    sentences: list[str] = [""] * world_size()
    dist.all_gather_object(
        sentences, "" if found is None else str(found) or type(found).__name__, group=long_timeout_group
    )
    if not any(sentences):
        return
    if is_main_process() and found is not None:
        _outlast_the_launcher()
        raise found
    number, sentence = next((number, sentence) for number, sentence in enumerate(sentences) if sentence)
    raise_once(BadInput(f"{sentence} (said by process {number})"))


def raise_once(error: BadInput) -> NoReturn:
    """Raise an error that every process raises: the first one says it, the others leave without a word."""
    _outlast_the_launcher()
    raise error if is_main_process() else RaisedOnOtherRank()


def _outlast_the_launcher() -> None:
    """torchrun ends the other processes as soon as one has gone; these are going, with an exit code of their own."""
    if num_processes() > 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def barrier() -> None:
    """Wait until the first process is here too, however long that takes."""
    if world_size() > 1:
        dist.barrier(group=long_timeout_group)


def check_same_on_all_ranks(what: str) -> None:
    """Raise if the processes do not have the same settings and data, which `what` tells in full."""
    if world_size() == 1:
        return
    digest = torch.tensor(list(hashlib.sha256(what.encode()).digest()))
    others = all_gather(digest[None])
    different = (others != others[0]).any(1).nonzero()[:, 0].tolist()
    if different:
        raise_once(
            BadInput(
                f"process {different[0]} was started with other settings than process 0, or sees other pictures; "
                f"give all of them the same command and data"
            )
        )


def local_device(device: torch.device) -> torch.device:
    """The device of this process: its own of the GPUs of this machine, or the CPU that all share."""
    if num_processes() == 1 or device.type == "cpu":
        return device
    if str(device) not in ("cuda", "cuda:0"):
        raise BadInput(f"{num_processes()} processes cannot train on device {str(device)!r}; use 'cuda' or 'cpu'")
    if local_rank() >= torch.cuda.device_count():
        raise BadInput(
            f"there are more processes on this machine than its {torch.cuda.device_count()} GPUs; "
            f"lower torchrun's --nproc-per-node"
        )
    torch.cuda.set_device(local_rank())
    return torch.device("cuda", local_rank())
