"""The methods, each in one short file, by the names that commands and recipes use."""

from msvq.methods.base import Batch, Loss, Method
from msvq.methods.msvq import MQ, MSV, MSVQ, MSVQX3, MSVQX5, MSVQDagger, ReSSL

METHODS: dict[str, type[Method]] = {
    "msvq": MSVQ,
    "msv": MSV,
    "mq": MQ,
    "msvq-dagger": MSVQDagger,
    "msvq-x3": MSVQX3,
    "msvq-x5": MSVQX5,
    "ressl": ReSSL,
}

__all__ = ["METHODS", "Batch", "Loss", "Method"]
