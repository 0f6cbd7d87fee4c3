"""A batch in several processes or in several parts: gradients, statistics and soft labels of the whole of it."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from msvq.core.distributed import all_gather, all_reduce_mean_, world_size
from msvq.methods.base import Method, SoftLabel
from msvq.model.norm import convert_sync_batchnorm_, running_statistics


def wrap_ddp(method: Method) -> nn.Module:
    """What to call instead of the method, so that gradients are means over the processes; the method itself alone."""
    if world_size() == 1:
        return method
    convert_sync_batchnorm_(method)
    # Buffers are queues and statistics, which the ranks keep alike by themselves. PyTorch has renamed the keyword.
    names = inspect.signature(DistributedDataParallel).parameters
    keyword = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    keywords: dict[str, Any] = {keyword: False}
    return DistributedDataParallel(method, **keywords)


def micro_batches(batch: Sequence[Tensor], num: int, learner: nn.Module) -> Iterator[tuple[Tensor, ...]]:
    """The batch in `num` parts, whose gradients add up to the step of the whole.

    Teachers move before the first part, and queues store after the last, which is also when processes add up their
    gradients. `learner` is what `wrap_ddp` gives.
    """
    wrapped = learner if isinstance(learner, DistributedDataParallel) else None
    method = cast(Method, learner if wrapped is None else wrapped.module)
    for number, part in enumerate(zip(*(whole.chunk(num) for whole in batch), strict=True)):
        if num > 1:
            method.defer_updates(teachers=number > 0, queues=True)
        with nullcontext() if wrapped is None or number + 1 == num else wrapped.no_sync():
            yield part
    if num > 1:
        method.defer_updates(teachers=False, queues=False)


def sync_batchnorm_stats(method: Method) -> None:
    """Make the running statistics those of all processes, as they would be in one; after each step."""
    if world_size() > 1:
        all_reduce_mean_(running_statistics(method))


def gather_soft_labels(soft_labels: Sequence[SoftLabel]) -> tuple[SoftLabel, ...]:
    """What the teachers saw in the whole batch."""
    return tuple(soft_label._replace(z=all_gather(soft_label.z)) for soft_label in soft_labels)
