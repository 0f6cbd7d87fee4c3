"""Learn image encoders from unlabelled pictures: MSVQ, its family and its baselines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msvq.errors import BadInput
from msvq.version import __version__

if TYPE_CHECKING:
    from msvq.pretraining import pretrain
    from msvq.run import Run, load

__all__ = ["BadInput", "Run", "__version__", "load", "pretrain"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first used: `msvq --help` need not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module 'msvq' has no attribute {name!r}")
    return getattr(import_module("msvq.pretraining" if name == "pretrain" else "msvq.run"), name)
