"""A run's files, read once for the page. Every file may be missing: a run may be young, or measured in part.

What is there is checked here, as far as the page uses it, so that whoever shows it may rely on its types.
"""

import csv
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeGuard
from zipfile import BadZipFile

import numpy as np
import yaml
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from msvq.core.console import printable
from msvq.core.errors import BadInput, shorten
from msvq.core.schema import load_yaml
from msvq.runs.metrics import read_metrics

Points = list[tuple[float, float]]

KINDS = ("knn", "linear", "probe", "finetune")  # the order of the table
LARGEST = 1e300  # a number beyond it is none that a chart could show


def _square(matrix: list[list[int]]) -> list[list[int]]:
    if any(len(row) != len(matrix) for row in matrix):
        raise ValueError("a confusion matrix has as many rows as columns")
    return matrix


_Real = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
_Number = _Real | None  # null: nothing was there to be measured
_Count = Annotated[int, Ge(0), Le(2**53)]


class _Part(BaseModel):
    """A part of a file, with the keys that the page reads; each may be missing, and others may be there."""

    model_config = ConfigDict(strict=True)


class _Verdict(_Part):
    state: str = ""
    sentence: str | None = None
    advice: list[str] | None = None


class _FalseNegatives(_Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Number | dict[str, _Number]]  # what each view finds, and numbers about all
    all: dict[str, _Number] | None = None
    by_class: dict[str, dict[str, _Number]] | None = None


class _Analysis(_Part):
    verdict: _Verdict | None = None
    false_negatives: _FalseNegatives | None = None


class _Result(_Part):
    protocol: str
    kind: str = ""
    data: str = ""
    checkpoint: str = "last"
    top1: _Number = None
    top5: _Number = None
    top1_std: _Number = None
    top1_best: _Number = None
    scratch_top1: _Number = None
    labels: _Number = 1
    num_test: _Count | None = None
    step: _Count | None = None
    seeds: list[int] | None = None
    class_names: list[str] | None = None
    confusion: Annotated[list[list[_Count]], AfterValidator(_square)] | None = None


class _Method(_Part):
    name: str = ""


class _Data(_Part):
    source: str = ""


class _Train(_Part):
    epochs: _Count | None = None


class _Evaluate(_Part):
    knn_k: _Count | None = None


class _Settings(_Part):
    method: _Method | None = None
    data: _Data | None = None
    train: _Train | None = None
    evaluate: _Evaluate | None = None


@dataclass(frozen=True)
class Record:
    """What one run directory says."""

    path: Path
    title: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    results: Sequence[Mapping[str, Any]]
    demo: Mapping[str, float]
    analysis: Mapping[str, Any]
    num_skipped: int

    @property
    def method(self) -> str:
        """The method's name."""
        return str(_block(self.settings, "method").get("name", "unknown method"))

    @property
    def is_compiled(self) -> bool:
        """Whether it trained with compiled networks, when it was last gone on with."""
        return bool(_block(self.settings, "train").get("compile", False))

    @property
    def source(self) -> str:
        """The data's name or folder."""
        return str(_block(self.settings, "data").get("source", "unknown data"))

    @property
    def false_negatives(self) -> Mapping[str, Any]:
        """The audit of the soft labels; empty for a method without any."""
        return _block(self.analysis, "false_negatives")

    def curve(self, key: str, kind: str = "eval", *, in_steps: bool = False) -> Points:
        """(epoch, value) of a key of the log, dots for keys of keys; steps become parts of epochs, or stay."""
        lines = [line for line in self.metrics if line.get("kind") == kind and is_number(_dig(line, key))]
        if kind == "step":
            length = None if in_steps else self.steps_per_epoch
            return [(line["step"] / (length or 1.0), float(_dig(line, key))) for line in lines]
        return [(float(line["epoch"]), float(_dig(line, key))) for line in lines]

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps in an epoch; None while the first is not over, and its length not known."""
        whole = [line for line in self.metrics if line.get("kind") == "epoch" and line.get("epoch")]
        return float(whole[-1]["step"] / whole[-1]["epoch"]) if whole else None

    @property
    def last_step(self) -> int:
        """The last step that the log tells of."""
        return max((line.get("step", 0) for line in self.metrics), default=0)

    def result(self, kind: str) -> Mapping[str, Any]:
        """The result of a kind of protocol as it stands for the run, or nothing.

        It is of the last checkpoint, after all steps, with all labels, on the run's own data; the frozen protocol comes
        before one that was changed, more seeds before fewer, and a changed one counts for kNN alone, whose k the number
        of labelled pictures may lower.
        """
        last_step = self.last_step
        own = [
            result
            for result in self.results
            if result.get("kind") == kind
            and (result.get("labels", 1), result.get("checkpoint", "last")) == (1, "last")
            and not result.get("transfer")
            and (result.get("step") or last_step) >= last_step
        ]
        own.sort(key=lambda result: (bool(result.get("changes")), -len(result.get("seeds") or ())))
        return next((result for result in own if kind == "knn" or not result.get("changes")), {})

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of eval/<name>.npz, or nothing."""
        path = self.path / "eval" / f"{name}.npz"
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error):
            raise _damaged(path) from None


def read_record(run: Path) -> Record:
    """Read a run directory."""
    if not run.is_dir():
        raise BadInput(f"{str(run)!r} is not a run directory")
    found = {path: _read(path) for path in sorted((run / "eval").glob("*.json"))}
    results = [_checked(path, result, _Result) for path, result in found.items() if "protocol" in result]
    results.sort(key=lambda result: KINDS.index(result["kind"]) if result.get("kind") in KINDS else len(KINDS))
    return Record(
        path=run,
        title=printable(run.resolve().name),
        settings=_read(run / "config.yaml", _Settings),
        environment=_read(run / "environment.json"),
        metrics=[line for line in read_metrics(run / "metrics.jsonl") if "epoch" in line],
        results=results,
        demo=_read(run / "eval" / "demo.json", dict[str, _Real]),
        analysis=_read(run / "eval" / "analysis.json", _Analysis),
        num_skipped=_count_rows(run / "skipped.csv"),
    )


def read_records(runs: Iterable[Path]) -> list[Record]:
    """Read several runs; those of one name are told apart by their folders."""
    records = [read_record(run) for run in runs]
    paths = [record.path.resolve().parts[1:] for record in records]
    lengths = [1] * len(records)
    while True:
        titles = [printable("/".join(parts[-length:])) for parts, length in zip(paths, lengths, strict=True)]
        times = Counter(dict(zip(paths, titles, strict=True)).values())  # a run that was given twice counts once
        longer = [
            length + (times[title] > 1 and length < len(parts))
            for title, parts, length in zip(titles, paths, lengths, strict=True)
        ]
        if longer == lengths:
            return [replace(record, title=title) for record, title in zip(records, titles, strict=True)]
        lengths = longer


def _count_rows(path: Path) -> int:
    """Rows of a CSV file after its header."""
    if not path.is_file():
        return 0
    with path.open(encoding="utf-8", newline="") as file:
        return max(0, sum(1 for _ in csv.reader(file)) - 1)


def _read(path: Path, kind: Any = dict) -> dict[str, Any]:
    """A file of JSON or YAML, whose content must be of a kind; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _damaged(path) from None
    return _checked(path, found, kind)


def _checked(path: Path, found: Any, kind: Any) -> dict[str, Any]:
    try:
        TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        raise _damaged(path, ".".join(str(key) for key in error.errors()[0]["loc"][:3])) from None
    return dict(found)


def _damaged(path: Path, where: str = "") -> BadInput:
    way_out = "restore it" + (", or remove it to have a page without it" if path.name != "config.yaml" else "")
    return BadInput(f"{str(path)!r} is damaged{f' ({shorten(where)})' if where else ''}; {way_out}")


def _block(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _dig(line: Mapping[str, Any], key: str) -> Any:
    found: Any = line
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be shown: finite, and within all reason."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
