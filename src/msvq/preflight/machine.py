"""What this machine has and what the process has used of it: memory and disk."""

import ctypes
import gc
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import torch

from msvq.core.files import expanduser

STATUS = "/proc/self/status"


def forget_peak(device: torch.device) -> None:
    """Begin to measure the peak anew, where the system can, without what was freed and not given back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # Linux alone
        with suppress(AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Most bytes held at once: of the GPU's memory on CUDA, else by the process. None if the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if (held := _read_bytes(STATUS, "VmHWM")) is not None:
        return held
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def held_memory(device: torch.device) -> int:
    """Bytes held now; 0 if the system does not tell."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _read_bytes(STATUS, "VmRSS") or 0


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process may hold in all, with what it holds now. None if the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    known = [bound for bound in (_free_memory(), group_limit()) if bound is not None]
    return min(known) if known else None


def _free_memory() -> int | None:
    if (free := _read_bytes("/proc/meminfo", "MemAvailable")) is not None:
        return free + (_read_bytes(STATUS, "VmRSS") or 0)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def group_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The lowest limit of the control groups that the process is in, as containers set it."""
    limits: list[int] = []
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                with suppress(OSError, ValueError):  # absent, or "max"
                    limits.append(int((folder / file).read_text()))
    return min(limits, default=None)


def _read_bytes(file: str, key: str) -> int | None:
    """A line such as "VmRSS:  512 kB" of a file that Linux has."""
    with suppress(OSError):
        found = re.search(rf"^{key}:\s*(\d+) kB", Path(file).read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def free_disk(path: Path) -> int:
    """Free bytes where `path` would be; it need not exist."""
    path = expanduser(path).absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
