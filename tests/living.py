"""Which processes live, by what Linux tells of them."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The processes that any of its threads has started."""
    try:
        return [int(n) for path in Path(f"/proc/{pid}/task").glob("*/children") for n in path.read_text().split()]
    except OSError:
        return []
