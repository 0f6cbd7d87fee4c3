"""Files that have an end. Worker processes load it: little is imported here."""

import stat
from pathlib import Path

from msvq.core.errors import BadInput

MOST_READ = 2**30  # bytes of a run's log or record


def ordinary_size(path: Path) -> int | None:
    """Bytes of an ordinary file; None: it is none, such as a pipe.

    A file that the system makes up as it is read (in /proc) has none, so that 0 also says: there may be no end to it.
    """
    status = path.stat()
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_ordinary(path: Path) -> bytes:
    """The bytes of a file that may be a stranger's: of a pipe, a device or a link to one there is no end."""
    size = ordinary_size(path)
    if size is None or size > MOST_READ:
        raise BadInput(f"{str(path)!r} is {'too large' if size else 'no ordinary file'}; restore it, or remove it")
    return path.read_bytes() if size else b""
