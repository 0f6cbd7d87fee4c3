"""The machine and its randomness: devices, number formats, memory, learning rates, and streams of random numbers."""

import ctypes
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from msvq.core.distributed import rank
from msvq.core.errors import BadInput, first_line, unknown

# --- device and number format

Precision = Literal["auto", "fp32", "bf16", "fp16"]
WITHOUT_FP64 = ("mps",)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """A device that is there. "auto": a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if "driver" in str(error) and "too old" in str(error):
            raise BadInput(
                f"the driver of device {name!r} is too old for this PyTorch ({first_line(error)}); update it, install "
                f"a PyTorch for an older CUDA, or use --device cpu"
            ) from None
        if is_out_of_memory(error):
            raise BadInput(
                f"the memory of device {name!r} is full; end what else uses it, or use --device cpu"
            ) from None
        found = torch.accelerator.current_accelerator(check_available=True)
        there = "cpu" if found is None else f"cpu, {found.type}"
        fails = found is not None and found.type == name.partition(":")[0]
        what = f"cannot be used ({first_line(error, 200)})" if fails else "is not there"
        raise BadInput(f"device {name!r} {what}; this machine has: {there} (or use 'auto')") from None
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
    if name == "bf16" and device.type == "cuda" and not cuda_has_bf16(device):
        raise BadInput(f"device '{device}' does not compute in bf16; use --precision fp16, or auto")
    if name != "auto":
        return name
    if device.type == "cpu":
        return "bf16" if cpu_has_bf16() else "fp32"
    if device.type == "cuda":
        return "bf16" if cuda_has_bf16(device) else "fp16"
    return "fp32"


def widest_float(device: torch.device) -> torch.dtype:
    """What sums over many numbers are computed in: fp64 where the device has it."""
    return torch.float32 if device.type in WITHOUT_FP64 else torch.float64


def cuda_has_bf16(device: torch.device) -> bool:
    """Whether this card multiplies in bf16 rather than emulating it."""
    with torch.cuda.device(device):  # PyTorch answers for the current one
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


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

ALIGNED = 16  # bytes: no dtype is longer
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


def send_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """A processor's tensors on a device: to an accelerator in one copy, from pinned memory, that nobody waits for."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    starts = [0, *accumulate(-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in tensors)]
    pinned = device.type != "mps"  # which shares the processor's memory
    block = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=pinned)
    for tensor, place in zip(tensors, _places(block, starts, tensors), strict=True):
        place.copy_(tensor)
    return _places(block.to(device, non_blocking=pinned), starts, tensors)


def _places(block: Tensor, starts: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Where in a block of bytes each tensor is, in its dtype and shape."""
    pieces = (block[start : start + tensor.nbytes] for start, tensor in zip(starts, tensors, strict=False))
    return [piece.view(tensor.dtype).view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@cache
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Numbers that a device is sent once; to be read only."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


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


AHEAD = 64  # permutations that an accelerator is sent at a time


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
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(derive_seed(seed, stream, step, rank()))
        yield


class _Ahead(NamedTuple):
    """Permutations that were drawn before they are needed."""

    state: Tensor  # of the generator before them
    orders: Tensor  # [2, AHEAD, num]: each, and what undoes it
    used: int


class RandomState(nn.Module):
    """A generator whose state is part of the module's `state_dict`.

    It is seeded from the global generator when built, as weights are, and is its own master from then on.
    It lives on the CPU, so the draws are the same on every device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(int(torch.randint(2**62, ())))
        self._ahead: _Ahead | None = None

    def get_extra_state(self) -> Tensor:
        """The generator's state, as a byte tensor."""
        self._forget_ahead()
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from a saved state."""
        self._ahead = None
        self.generator.set_state(state.cpu())

    def permutation(self, num: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """A random order of `num` things, and the order that undoes it, on a device.

        An accelerator is sent many at a time, so that a step sends none.
        """
        if device is None or device.type == "cpu":
            self._forget_ahead()
            order = torch.randperm(num, generator=self.generator)
            return order, torch.argsort(order)
        ahead = self._ahead
        if (
            ahead is None
            or ahead.used == AHEAD
            or ahead.orders.shape[2] != num
            or ahead.orders.device.type != device.type
        ):
            self._forget_ahead()
            state = self.generator.get_state()
            orders = torch.stack([torch.randperm(num, generator=self.generator) for _ in range(AHEAD)])
            ahead = _Ahead(state, send_together([torch.stack([orders, orders.argsort(1)])], device)[0], 0)
        self._ahead = ahead._replace(used=ahead.used + 1)
        order, back = ahead.orders[:, ahead.used].unbind()
        return order, back

    def _forget_ahead(self) -> None:
        """Put the generator where it would be if nothing had been drawn ahead."""
        if self._ahead is not None:
            self.generator.set_state(self._ahead.state)
            for _ in range(self._ahead.used):
                torch.randperm(self._ahead.orders.shape[2], generator=self.generator)
            self._ahead = None

    def uniform(self) -> float:
        """A number from U(0, 1)."""
        self._forget_ahead()
        return float(torch.rand((), generator=self.generator))

    def beta(self, alpha: float) -> float:
        """A number from Beta(alpha, alpha), as a share of two gamma draws."""
        self._forget_ahead()
        a, b = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=self.generator).tolist()
        return float(a / (a + b))
