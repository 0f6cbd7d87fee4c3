"""How the processes of a run were started: torchrun says it in the environment."""

import os


def num_processes() -> int:
    """How many processes were started together; 1 without torchrun."""
    started = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if started else 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks for all of them."""
    return num_processes() == 1 or int(os.environ["RANK"]) == 0


def local_rank() -> int:
    """Which of the processes on this machine this is."""
    return int(os.environ.get("LOCAL_RANK", "0")) if num_processes() > 1 else 0
