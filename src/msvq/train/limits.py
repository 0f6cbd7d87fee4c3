"""Whether a step fits: the batch its method, and the numbers the memory."""

from contextlib import AbstractContextManager

import torch
from torch import nn

from msvq.core.distributed import world_size
from msvq.core.errors import BadInput
from msvq.core.runtime import or_too_large
from msvq.model.norm import SplitBatchNorm2d, check_whole
from msvq.model.queue import Queue


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
