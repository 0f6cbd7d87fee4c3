"""How processes are started: those of a run by torchrun, which says so in the environment; children by us."""

import os
import platform
import sys
from pathlib import Path

from msvq.core.errors import BadInput


def num_processes() -> int:
    """How many processes were started together; 1 without torchrun."""
    started = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return _number("WORLD_SIZE") if started else 1


def is_main_process() -> bool:
    """Whether this is the process that writes files and speaks for all of them."""
    return num_processes() == 1 or _number("RANK") == 0


def local_rank() -> int:
    """Which of the processes on this machine this is."""
    return _number("LOCAL_RANK") if num_processes() > 1 and "LOCAL_RANK" in os.environ else 0


def child_environment(**more: str) -> dict[str, str]:
    """For a Python process that finds the modules that this one finds, but none in the current folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(safe_path()), "PYTHONSAFEPATH": "1", **more}


def safe_path() -> list[str]:
    """`sys.path` without the current folder, by whatever name, and what else depends on it; and where msvq lies."""
    here, home = Path.cwd().resolve(), Path(__file__).parents[2]
    kept = [entry for entry in sys.path if Path(entry).is_absolute() and Path(entry).resolve() != here]
    return kept if str(home) in kept else [str(home), *kept]


def open_closed_streams() -> None:
    """Let standard input, output and error lead nowhere where they are closed: the next file would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # its number is the lowest that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def refuse_planted_driver() -> None:
    """Raise if the current folder has what PyTorch's CUDA libraries look for there, and would run (libcusparseLt)."""
    name = "libcuda.so.1"
    below = [path for folder in ("glibc-hwcaps", "tls", platform.machine()) for path in Path(folder).rglob(name)]
    for path in (Path(name), *below):
        if path.exists():
            raise BadInput(f"PyTorch would run {str(path)!r} of the current folder; start from another folder")


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise BadInput(f"the environment says {name}={text!r}, which is no number; torchrun sets it, or unset it")
    return int(text)
