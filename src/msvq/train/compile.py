"""Compiled networks, and a sentence where they cannot be."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from msvq.core.errors import BadInput, first_line
from msvq.model.teacher import Network

VARIANTS = 64  # of one network's code: sizes of crops, student and teacher, groups of batch norm


def compile_networks(method: nn.Module) -> None:
    """Compile the backbones of a method's networks, which happens when they are first used."""
    from torch._dynamo import config  # slow to import

    # Past its own limit of eight the compiler leaves the rest uncompiled, without a word.
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    networks = [module for module in method.modules() if isinstance(module, Network)]
    if not networks:
        raise BadInput(f"{type(method).__name__} has no msvq.model.teacher.Network to compile; leave out --compile")
    for network in networks:
        network.compile_backbone()


@contextmanager
def compile_errors_as_sentence(wanted: bool) -> Iterator[None]:
    """Turn a failure of the compiler into a sentence."""
    try:
        yield
    except Exception as error:
        if not wanted or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        reason = first_line(error)
        raise BadInput(
            f"the networks could not be compiled ({reason[:200]}); leave out --compile (a run that goes on: "
            f"--set train.compile=false), or install a C++ compiler"
        ) from error
