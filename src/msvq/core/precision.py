"""Which device, and which number format on it."""

from contextlib import AbstractContextManager
from typing import Literal, get_args

import torch

from msvq.core.errors import BadInput, unknown

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
    known: tuple[Precision, ...] = get_args(Precision)
    for precision in known:
        if name == precision:
            return precision
    raise unknown("precision", name, known)


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
    capabilities: dict[str, bool] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # older versions of PyTorch do not tell
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which networks run; losses leave it by themselves."""
    return torch.autocast(device.type, dtype=DTYPES.get(precision, torch.bfloat16), enabled=precision in DTYPES)


def loss_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Scales the loss where gradients would vanish in fp16, and leaves out steps whose gradients overflow.

    In the other formats it does nothing.
    """
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
