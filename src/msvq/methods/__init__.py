"""The methods, each in one short file, by the names that commands and recipes use."""

from msvq.methods.base import METHODS, Batch, Loss, Method
from msvq.methods.byol import BYOL
from msvq.methods.cmsf import CMSF
from msvq.methods.co2 import CO2
from msvq.methods.mnn import MNN
from msvq.methods.mocov2 import MoCoV2
from msvq.methods.msf import MSF
from msvq.methods.msvq import MQ, MSV, MSVQ, MSVQX3, MSVQX5, MSVQDagger, ReSSL
from msvq.methods.nnclr import NNCLR
from msvq.methods.sce import SCE
from msvq.methods.simclr import SimCLR
from msvq.methods.simsiam import SimSiam
from msvq.methods.snclr import SNCLR
from msvq.methods.supervised import Supervised
from msvq.methods.unmix import UnMix

METHODS |= {
    "msvq": MSVQ,
    "msv": MSV,
    "mq": MQ,
    "msvq-dagger": MSVQDagger,
    "msvq-x3": MSVQX3,
    "msvq-x5": MSVQX5,
    "ressl": ReSSL,
    "mocov2": MoCoV2,
    "simclr": SimCLR,
    "byol": BYOL,
    "simsiam": SimSiam,
    "msf": MSF,
    "cmsf": CMSF,
    "mnn": MNN,
    "unmix": UnMix,
    "nnclr": NNCLR,
    "snclr": SNCLR,
    "sce": SCE,
    "co2": CO2,
    "supervised": Supervised,
}

__all__ = ["METHODS", "MSVQ", "Batch", "Loss", "Method"]
