"""Learn image encoders from unlabelled pictures: MSVQ, its family and its baselines."""

from msvq.errors import BadInput
from msvq.pretraining import pretrain
from msvq.run import Run, load
from msvq.version import __version__

__all__ = ["BadInput", "Run", "__version__", "load", "pretrain"]
