"""Several processes that train one method: how they meet, agree, wait for each other and part (docs/scaling.md)."""

import hashlib
import inspect
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from msvq.core import distributed as ranks
from msvq.core.distributed import average_, gather, world_size
from msvq.core.errors import BadInput
from msvq.core.launch import is_main_process, local_rank, num_processes
from msvq.methods.base import Method, SoftLabel
from msvq.model.norm import running_statistics, whole_batch_norm

TIME_LIMIT = "MSVQ_TIME_LIMIT"  # seconds that a process waits for another in the middle of a step
DEFAULT_LIMIT = 60.0
PATIENCE = timedelta(days=30)  # where one process has work that all wait for, such as packing the pictures


class RaisedOnOtherRank(BadInput):
    """A mistake that another process tells the user about."""

    def __init__(self) -> None:
        super().__init__("")


class LostContact(ConnectionError):
    """Another process has died, or does not answer."""


@contextmanager
def process_group() -> Iterator[None]:
    """Compute together with the processes that torchrun started, until `leave` or the end."""
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
        ranks.long_timeout_group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))
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
    ranks.long_timeout_group = None
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
        sentences, "" if found is None else str(found) or type(found).__name__, group=ranks.long_timeout_group
    )
    if not any(sentences):
        return
    if is_main_process() and found is not None:
        _outlast_the_launcher()
        raise found
    number, sentence = next((number, sentence) for number, sentence in enumerate(sentences) if sentence)
    raise raise_once(BadInput(f"{sentence} (said by process {number})"))


def raise_once(error: BadInput) -> BadInput:
    """An error that every process raises, as this one is to raise it."""
    _outlast_the_launcher()
    return error if is_main_process() else RaisedOnOtherRank()


def _outlast_the_launcher() -> None:
    """torchrun ends the other processes as soon as one has gone; these are going, with an exit code of their own."""
    if num_processes() > 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def wait_for_first() -> None:
    """Wait until the first process is here too, however long that takes."""
    if world_size() > 1:
        dist.barrier(group=ranks.long_timeout_group)


def check_same_on_all_ranks(what: str) -> None:
    """Raise if the processes do not have the same settings and data, which `what` tells in full."""
    if world_size() == 1:
        return
    digest = torch.tensor(list(hashlib.sha256(what.encode()).digest()))
    others = gather(digest[None])
    different = (others != others[0]).any(1).nonzero()[:, 0].tolist()
    if different:
        raise raise_once(
            BadInput(
                f"process {different[0]} was started with other settings than process 0, or sees other pictures; "
                f"give all of them the same command and data"
            )
        )


def own_device(device: torch.device) -> torch.device:
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


def wrap_ddp(method: Method) -> nn.Module:
    """What to call instead of the method, so that gradients are means over the processes; the method itself alone."""
    if world_size() == 1:
        return method
    whole_batch_norm(method)
    # Buffers are queues and statistics, which the ranks keep alike by themselves. PyTorch has renamed the keyword.
    names = inspect.signature(DistributedDataParallel).parameters
    keyword = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    keywords: dict[str, Any] = {keyword: False}
    return DistributedDataParallel(method, **keywords)


def no_grad_sync(learner: nn.Module, more_to_come: bool) -> AbstractContextManager[None]:
    """While more of a batch is to come, gradients stay with the process that they were made in."""
    return learner.no_sync() if more_to_come and isinstance(learner, DistributedDataParallel) else nullcontext()


def sync_batchnorm_stats(method: Method) -> None:
    """Make the running statistics those of all processes, as they would be in one; after each step."""
    if world_size() > 1:
        average_(running_statistics(method))


def gather_soft_labels(soft_labels: Sequence[SoftLabel]) -> tuple[SoftLabel, ...]:
    """What the teachers saw in the whole batch."""
    return tuple(soft_label._replace(z=gather(soft_label.z)) for soft_label in soft_labels)
