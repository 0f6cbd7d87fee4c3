"""How the processes of a run were started: torchrun says it in the environment."""

import os

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


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise BadInput(f"the environment says {name}={text!r}, which is no number; torchrun sets it, or unset it")
    return int(text)
