"""Where msvq keeps what it downloads and packs."""

import os
from pathlib import Path

from msvq.core.files import expanduser


def home() -> Path:
    """`$MSVQ_HOME`, or `msvq` in the user's cache folder."""
    if chosen := os.environ.get("MSVQ_HOME"):
        return expanduser(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "msvq"


def downloads() -> Path:
    """Where official data sets are looked for when no --data-root is given."""
    return home() / "datasets"


def packs() -> Path:
    """Where decoded folders are kept."""
    return home() / "packed"


def indexes() -> Path:
    """Where the features that are searched are kept."""
    return home() / "indexes"
