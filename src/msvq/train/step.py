"""What a step needs: a batch that fits its method and the memory, and networks that compile."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from msvq.core.distributed import world_size
from msvq.core.errors import BadInput, first_line
from msvq.core.runtime import or_too_large
from msvq.model.norm import SplitBatchNorm2d, check_sync_batchnorm
from msvq.model.queue import Queue
from msvq.model.teacher import Network

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


def enough_memory(device: torch.device, batch_size: int, accumulate: int) -> AbstractContextManager[None]:
    """For a step."""
    return or_too_large(
        f"a step of {batch_size} pictures{f' in {accumulate} parts' if accumulate > 1 else ''} does not fit into "
        f"the memory of {device}; --set train.accumulate={2 * accumulate} holds half as much at a time (also "
        f"with --resume), or lower train.batch_size, data.size or backbone.width ('msvq plan' measures what fits)"
    )


def compile_networks(
    method: nn.Module, device: torch.device, announce: Callable[[str], None] = lambda sentence: None
) -> None:
    """Compile the backbones of a method's networks, which happens when they are first used.

    On a CUDA device they become graphs, one for each size of crops, whose kernels are launched together.
    """
    if device.type == "cuda" and find_spec("triton") is None:
        announce("note: --compile needs the package triton on a GPU; the networks are not compiled")
        return
    from torch._dynamo import config  # slow to import

    # Past its own limit of eight the compiler leaves the rest uncompiled, without a word.
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    networks = [module for module in method.modules() if isinstance(module, Network)]
    if not networks:
        raise BadInput(f"{type(method).__name__} has no msvq.model.teacher.Network to compile; leave out --compile")
    for network in networks:
        network.compile_backbone("reduce-overhead" if device.type == "cuda" else None)


@contextmanager
def compile_errors_as_sentence(wanted: bool) -> Iterator[None]:
    """Turn a failure of the compiler into a sentence."""
    try:
        yield
    except Exception as error:
        if not wanted or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        raise BadInput(
            f"the networks could not be compiled ({first_line(error, 200)}); leave out --compile (a run that goes on: "
            f"--set train.compile=false), or install a C++ compiler"
        ) from error
