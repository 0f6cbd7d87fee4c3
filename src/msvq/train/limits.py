"""Whether a step fits: the batch its method, and the numbers the memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from msvq.errors import BadInput
from msvq.model.norm import SplitBatchNorm2d, check_whole
from msvq.model.queue import Queue
from msvq.model.teacher import Teacher
from msvq.ranks import world_size


class OutOfMemory(BadInput):
    """A step needs more memory than there is; the sentence says what to lower."""


def check_fit(method: nn.Module, batch_size: int, accumulate: int = 1) -> None:
    """Raise if the batch, in `accumulate` parts, suits not the processes, the method's batch-norm groups or queues."""
    if batch_size % accumulate or batch_size // accumulate < 2:
        raise BadInput(
            f"train.batch_size {batch_size} does not divide into {accumulate} parts of two pictures or more; "
            f"change train.accumulate"
        )
    part, ranks = batch_size // accumulate, world_size()
    size = f"train.batch_size {batch_size}" + (f" in {accumulate} parts" if accumulate > 1 else "")
    if part % ranks:
        raise BadInput(
            f"{size} does not divide among {ranks} processes; set train.batch_size to a multiple of "
            f"{ranks * accumulate}, or change torchrun's --nproc-per-node"
        )
    if ranks > 1:
        check_whole(method)
    for module in method.modules():
        if isinstance(module, SplitBatchNorm2d) and module.splits > 1 and module.splits % ranks:
            raise BadInput(
                f"the method's bn_splits {module.splits} do not divide among {ranks} processes; set method.bn_splits "
                f"to a multiple of {ranks} (or to 1), or change torchrun's --nproc-per-node"
            )
        if isinstance(module, SplitBatchNorm2d) and part % module.splits:
            raise BadInput(f"{size} is not a multiple of the method's bn_splits {module.splits}; change one of them")
        if isinstance(module, SplitBatchNorm2d) and part == module.splits > 1:
            raise BadInput(
                f"{size} leaves one picture in each of the method's bn_splits {module.splits}; lower bn_splits"
            )
        if isinstance(module, Queue) and len(module) < batch_size:
            raise BadInput(
                f"the method's queue_size {len(module)} is smaller than train.batch_size {batch_size}; "
                f"a queue holds at least one batch"
            )


def wait(method: nn.Module, *, teachers: bool, queues: bool) -> None:
    """Whether teachers and queues wait, while a batch is computed in parts; queues then store what has come in."""
    for module in method.modules():
        if isinstance(module, Teacher):
            module.waits = teachers
        elif isinstance(module, Queue):
            module.wait(queues)


@contextmanager
def or_too_large(sentence: str) -> Iterator[None]:
    """Turn a failed request for memory into a sentence that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(sentence) from error


def room_for_networks(device: torch.device) -> AbstractContextManager[None]:
    """For building a method."""
    return or_too_large(
        f"the networks and queues do not fit into the memory of {device}; lower backbone.width, method.queue_size "
        f"or the method's other sizes"
    )


def enough_memory(device: torch.device, batch_size: int, accumulate: int) -> AbstractContextManager[None]:
    """For a step."""
    return or_too_large(
        f"a step of {batch_size} pictures{f' in {accumulate} parts' if accumulate > 1 else ''} does not fit into "
        f"the memory of {device}; --set train.accumulate={2 * accumulate} holds half as much at a time (also "
        f"with --resume), or lower train.batch_size, data.size or backbone.width ('msvq plan' measures what fits)"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a request for memory failed, on any device: the processor's allocator has no class for it."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "storage size calculation overflowed")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
