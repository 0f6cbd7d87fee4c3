"""What a step needs: a batch that fits its method and the memory, and networks that compile."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from msvq.core.distributed import world_size
from msvq.core.errors import BadInput, first_line
from msvq.core.runtime import or_too_large
from msvq.model.norm import SplitBatchNorm2d, check_sync_batchnorm
from msvq.model.queue import Queue
from msvq.model.teacher import Network, memory_format
from msvq.train.optim import lay_out_averages

VARIANTS = 64  # of one network's code: sizes of crops, student and teacher, groups of batch norm


def check_fit(method: nn.Module, batch_size: int, accumulate: int = 1) -> None:
    """Raise if the batch, in `accumulate` parts, does not fit the processes, batch-norm groups or queues."""
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
        check_sync_batchnorm(method)
    for module in method.modules():
        splits = module.splits if isinstance(module, SplitBatchNorm2d) else 1
        if splits > 1 and splits % ranks:
            raise BadInput(
                f"the method's bn_splits {splits} do not divide among {ranks} processes; set method.bn_splits "
                f"to a multiple of {ranks} (or to 1), or change torchrun's --nproc-per-node"
            )
        if part % splits:
            raise BadInput(f"{size} is not a multiple of the method's bn_splits {splits}; change one of them")
        if part == splits > 1:
            raise BadInput(f"{size} leaves one picture in each of the method's bn_splits {splits}; lower bn_splits")
        if isinstance(module, Queue) and len(module) < batch_size:
            raise BadInput(
                f"the method's queue_size {len(module)} is smaller than train.batch_size {batch_size}; "
                f"a queue holds at least one batch"
            )


def room_for_networks(device: torch.device) -> AbstractContextManager[None]:
    """For building a method, or sending it to a device."""
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


def compile_networks(
    method: nn.Module,
    optimiser: torch.optim.Optimizer,
    device: torch.device,
    announce: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Compile the backbones of a method's networks, which happens when they are first used.

    On a CUDA device they become graphs, one for each size of crops, whose kernels are launched together. Where that
    fails, for whatever reason, there is a note, and none of them is compiled.
    """
    networks = [module for module in method.modules() if isinstance(module, Network)]
    if not networks:
        raise BadInput(f"{type(method).__name__} has no msvq.model.teacher.Network to compile; leave out --compile")

    def go_on_without(error: Exception) -> None:
        for network in networks:
            network.leave_uncompiled()
        method.to(memory_format=memory_format(method, device, compiled=False))
        lay_out_averages(optimiser)
        reason = first_line(getattr(error, "inner_exception", error), 200)  # PyTorch's own first line only names it
        announce(
            f"note: the networks could not be compiled ({reason}), and are trained as they are; "
            f"--compile needs a C++ compiler, and on a GPU the package triton"
        )

    try:
        from torch._dynamo import config as dynamo  # slow to import
        from torch._functorch import config as functorch

        # Past its own limit of eight the compiler leaves the rest uncompiled, without a word.
        dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
        if hasattr(functorch, "force_non_lazy_backward_lowering"):  # in younger versions
            functorch.force_non_lazy_backward_lowering = True  # so that a failure shows before anything is computed
        for network in networks:
            network.compile_backbone(go_on_without, "reduce-overhead" if device.type == "cuda" else None)
    except Exception as error:  # this PyTorch does not compile on this system, or for this Python
        go_on_without(error)
