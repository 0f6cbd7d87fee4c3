"""A method trained by several processes: gradients, batch-norm statistics and soft labels of the whole batch."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msvq.core.distributed import average_, gather, world_size
from msvq.methods.base import Method, SoftLabel
from msvq.model.norm import running_statistics, whole_batch_norm


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
