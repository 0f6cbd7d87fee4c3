"""The settings of training: a run's `train` section."""

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator

from msvq.core.precision import Precision
from msvq.core.schema import Section
from msvq.runs.checkpoint import parse_save_interval


def _rising(schedule: list[tuple[float, int]]) -> list[tuple[float, int]]:
    shares = [share for share, _ in schedule]
    if not schedule or shares[0] != 0 or shares != sorted(set(shares)) or shares[-1] >= 1:
        raise ValueError("give [share of the run, pixels] pairs whose shares rise from 0.0 and stay below 1")
    return schedule


Schedule = Annotated[list[tuple[float, Annotated[int, Ge(8)]]], AfterValidator(_rising)]


def _cadence(every: int | str) -> int | str:
    parse_save_interval(every)
    return every


class TrainSettings(Section):
    """How long and how fast to learn; the defaults are the paper's."""

    epochs: Annotated[int, Ge(1)] = 200  # passes over the pictures
    batch_size: Annotated[int, Ge(2)] = 256  # pictures in a step, over all processes
    resolution: Schedule | None = None  # [[share of the run, side of the crop], ...]; None: data.size throughout
    base_lr: Annotated[float, Gt(0)] = 0.06  # for a batch of 256; scaled with the batch
    warmup_epochs: Annotated[float, Ge(0)] = 5  # in which the rate rises from 0, step by step
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    decay_norm_and_bias: bool = True  # whether batch norm and biases decay too
    # Parts of a batch that are computed one after the other, to save memory. Teachers and queues move once a batch
    # (but for the queues of methods that store before they compare: once a part); batch norm, and losses that contrast
    # the pictures of a batch with each other, see one part at a time.
    accumulate: Annotated[int, Ge(1)] = 1
    compile: bool = False  # compile the networks: one to three minutes of waiting, then faster steps on some machines
    device: str = "auto"  # cpu, cuda, cuda:1, mps; auto: the best there is
    precision: Precision = "auto"  # auto: bf16 where native, fp16 on CUDA devices without it, else fp32
    checkpoint_every: Annotated[int | str, AfterValidator(_cadence)] = "5m"  # steps, or a time: 30s, 5m, 2h
    log_every: Annotated[int, Ge(1)] = 10  # steps
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0  # of all randomness
