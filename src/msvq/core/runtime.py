"""The machine and its randomness: devices, number formats, memory, learning rates, and streams of random numbers."""

import ctypes
import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from msvq.core.distributed import rank
from msvq.core.errors import BadInput, unknown

# --- device and number format

Precision = Literal["auto", "fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """A device that is there. "auto": a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        found = torch.accelerator.current_accelerator(check_available=True)
        there = "cpu" if found is None else f"cpu, {found.type}"
        raise BadInput(f"device {name!r} is not there; this machine has: {there} (or use 'auto')") from None
    if device.type == "meta":
        raise BadInput("device 'meta' holds no numbers, so nothing can be trained on it; use 'auto'")
    return device


def check_precision(name: str) -> Precision:
    """The name, if there is such a number format."""
    if name not in get_args(Precision):
        raise unknown("precision", name, get_args(Precision))
    return cast(Precision, name)


def resolve_precision(name: Precision, device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """ "auto": bf16 where the hardware computes in it natively; else fp16 on a CUDA device, fp32 elsewhere."""
    if name != "auto":
        return name
    if device.type == "cpu":
        return "bf16" if cpu_has_bf16() else "fp32"
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "fp32"


def cpu_has_bf16() -> bool:
    """Whether this processor multiplies in bf16 rather than emulating it."""
    # Older versions of PyTorch do not tell.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which networks run; losses leave it by themselves."""
    return torch.autocast(device.type, dtype=DTYPES.get(precision, torch.bfloat16), enabled=precision in DTYPES)


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in eval mode; then in the mode that it was in."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


# --- memory

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the numbers that glibc's mallopt gives its two settings
LARGE, OLD_MOST = 2**31 - 1, 2**25


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for its next request.

    glibc gives every large block back to the system, and so each layer of each step begins by faulting in pages of
    zeros: a tenth of a ResNet-18's step, and a quarter of the augmentation's. Other systems are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Older versions refuse more than 32 MB. Without the one setting the other would make things worse.
    if mallopt is not None and (mallopt(MMAP_THRESHOLD, LARGE) or mallopt(MMAP_THRESHOLD, OLD_MOST)):
        mallopt(TRIM_THRESHOLD, LARGE)


def synchronise(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given; a processor always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class OutOfMemory(BadInput):
    """A step needs more memory than there is; the sentence says what to lower."""


@contextmanager
def or_too_large(sentence: str) -> Iterator[None]:
    """Turn a failed request for memory into a sentence that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(sentence) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a request for memory failed, on any device: the processor's allocator has no class for it."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "storage size calculation overflowed")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


# --- schedule


def warmup_cosine(step: int, *, base_lr: float, warmup_steps: int, total_steps: int) -> float:
    """The learning rate of a step counted from 0: linear from 0 to `base_lr`, then half a cosine towards 0."""
    if step < warmup_steps:
        return base_lr * step / warmup_steps
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return base_lr / 2 * (1 + math.cos(math.pi * done))


# --- random numbers


class RandomStream(IntEnum):
    """What one seed feeds: each stream of random numbers has a number of its own, and keeps it for good."""

    ORDER = 0  # of the pictures in an epoch
    VIEWS = 1  # augmentation
    PROTOCOL = 2  # a classifier's first weights and a network's layers in linear-*/1 and finetune-*/1, which are frozen
    AUDIT = 3  # the views in which a finished run's soft labels are audited
    LAYERS = 4  # dropout and its kin while training


def derive_seed(*numbers: int) -> int:
    """A 62-bit seed from several numbers: nearby inputs give unrelated seeds. Zeros at the end change nothing."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 2)


@contextmanager
def step_rng(seed: int, stream: RandomStream, step: int, device: torch.device) -> Iterator[None]:
    """Inside, what layers draw follows from seed, step and rank; outside, nothing is changed by it.

    They draw from PyTorch's own generators, which no checkpoint holds.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, stream, step, rank()))
        yield


class RandomState(nn.Module):
    """A generator whose state is part of the module's `state_dict`.

    It is seeded from the global generator when built, as weights are, and is its own master from then on.
    It lives on the CPU, so the draws are the same on every device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(int(torch.randint(2**62, ())))

    def get_extra_state(self) -> Tensor:
        """The generator's state, as a byte tensor."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from a saved state."""
        self.generator.set_state(state.cpu())

    def permutation(self, num: int) -> Tensor:
        """A random order of `num` things."""
        return torch.randperm(num, generator=self.generator)

    def uniform(self) -> float:
        """A number from U(0, 1)."""
        return float(torch.rand((), generator=self.generator))

    def beta(self, alpha: float) -> float:
        """A number from Beta(alpha, alpha), as a share of two gamma draws."""
        a, b = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=self.generator).tolist()
        return float(a / (a + b))
