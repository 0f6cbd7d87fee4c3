"""Learn image encoders from unlabelled pictures: MSVQ, its family and its baselines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msvq.core.errors import BadInput
from msvq.core.version import __version__

if TYPE_CHECKING:
    from msvq.api import Embedded, Run, load
    from msvq.embedder import Embedder
    from msvq.runs.results import Accuracy, Analysis
    from msvq.train.callbacks import Callback
    from msvq.train.pretrain import pretrain

__all__ = [
    "Accuracy",
    "Analysis",
    "BadInput",
    "Callback",
    "Embedded",
    "Embedder",
    "Run",
    "__version__",
    "load",
    "pretrain",
]

# Where a name that needs PyTorch lives: it is imported when it is first used, so `msvq --help` need not wait for it.
_HOMES = {
    "Accuracy": "runs.results",
    "Analysis": "runs.results",
    "Callback": "train.callbacks",
    "Embedded": "api",
    "Embedder": "embedder",
    "Run": "api",
    "load": "api",
    "pretrain": "train.pretrain",
}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this knows

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'msvq' has no attribute {name!r}")
        return getattr(import_module(f"msvq.{_HOMES[name]}"), name)
