"""Learn image encoders from unlabelled pictures: MSVQ, its family and its baselines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msvq.core.errors import BadInput
from msvq.core.version import __version__

if TYPE_CHECKING:
    from msvq.api import (
        Accuracy,
        Analysis,
        Diagnosis,
        Embedded,
        Encoder,
        ImageEncoder,
        Plan,
        Run,
        doctor,
        load,
        load_encoder,
        plan,
        pretrain,
        save_run,
    )
    from msvq.reproduce.compare import Compared, compare
    from msvq.search.sklearn_embedder import Embedder
    from msvq.train.callbacks import Callback

__all__ = [
    "Accuracy",
    "Analysis",
    "BadInput",
    "Callback",
    "Compared",
    "Diagnosis",
    "Embedded",
    "Embedder",
    "Encoder",
    "ImageEncoder",
    "Plan",
    "Run",
    "__version__",
    "compare",
    "doctor",
    "load",
    "load_encoder",
    "plan",
    "pretrain",
    "save_run",
]

# Where a name lives that is not in `api`. Names are imported when they are first used, so that `msvq --help` need not
# wait for PyTorch, nor `msvq.load` for scikit-learn.
_HOMES = {
    "Callback": "train.callbacks",
    "Compared": "reproduce.compare",
    "Embedder": "search.sklearn_embedder",
    "compare": "reproduce.compare",
}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this knows

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'msvq' has no attribute {name!r}")
        return getattr(import_module(f"msvq.{_HOMES.get(name, 'api')}"), name)
