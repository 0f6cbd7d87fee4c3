"""What layers draw while training: dropout and its kin use PyTorch's own generators, which no checkpoint holds."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from msvq.core.distributed import rank
from msvq.data.loader import LAYERS, derive_seed


@contextmanager
def step_rng(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Inside, what is drawn follows from the seed, the step and the rank; outside, nothing is changed by it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, LAYERS, step, rank()))
        yield
