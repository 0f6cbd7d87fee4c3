"""What judging a run gives: the numbers that are mostly asked for, and the rest beside them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from msvq.core.console import Display


@dataclass(frozen=True)
class Accuracy:
    """What a protocol says of an encoder, in percent; means where there were several seeds."""

    top1: float
    top5: float
    protocol: str  # such as "knn-200-t0.1/1": what was changed in it stands behind its name
    path: Path  # of the result in RUN/eval
    record: Mapping[str, Any] = field(repr=False)  # all that is in that file

    def __str__(self) -> str:
        return f"{self.protocol}: {self.top1:.1f} % (top-5 {self.top5:.1f} %)"


@dataclass(frozen=True)
class Analysis:
    """Whether an encoder has collapsed, and what its teachers find."""

    state: str  # "healthy", "collapsing", "collapsed" or "unknown"
    sentence: str  # the same in words
    advice: tuple[str, ...]
    record: Mapping[str, Any] = field(repr=False)  # all that is in RUN/eval/analysis.json

    def __str__(self) -> str:
        return f"{self.state}: {self.sentence}"


class RunOptions(TypedDict, total=False):
    """Options of whatever opens a run and looks at it, as its command has them."""

    data: str | None
    data_root: str | Path | None
    checkpoint: str  # "last", "best" or a file
    device: str | None
    precision: str | None
    display: Display | None


class EvalOptions(RunOptions, total=False):
    """Options of every protocol."""

    download: bool
    labels: float  # the share of the labels that is used
    seeds: int
    overrides: Iterable[str]  # key=value
