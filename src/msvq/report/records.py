"""A run's files, read once for the page. Every file may be missing: a run may be young, or measured in part.

What is there is checked here, as far as the page uses it, so that whoever shows it may rely on its types.
"""

import csv
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, create_model

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.core.ordinary_files import read_ordinary
from msvq.evaluate.results import (
    LARGEST,
    LOGGED_DIGITS,
    Count,
    EvalResult,
    Real,
    damaged,
    percent,
    read_checked,
    read_results,
)
from msvq.runs.metrics import read_metrics

Points = list[tuple[float, float]]

_Number = Real | None  # null: nothing was there to be measured


class _FalseNegatives(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, _Number | dict[str, _Number]]  # what each view finds, and numbers about all
    all: dict[str, _Number] | None = None
    by_class: dict[str, dict[str, _Number]] | None = None


class _Compared(BaseModel):
    model_config = ConfigDict(strict=True)
    encoder: str
    num_features: Count
    rank: _Number
    copies: _Number
    neighbours: _Number
    seconds: _Number


def _keys(**kinds: Any) -> Any:
    """A part of a file, with the keys that the page reads; each may be missing, and others may be there."""
    fields: dict[str, Any] = {name: (kind, None) for name, kind in kinds.items()}
    return create_model("Part", __config__=ConfigDict(strict=True), **fields)


_ANALYSIS = _keys(
    verdict=_keys(state=str, sentence=str | None, advice=list[str] | None) | None,
    copies=_keys(pictures=Count, held_out=Count, recall=dict[str, dict[str, _Number]]) | None,
    knn=_keys(pictures=Count, chance=_Number, accuracy=dict[str, _Number]) | None,
    false_negatives=_FalseNegatives | None,
)
_SETTINGS = _keys(
    method=_keys(name=str) | None,
    backbone=_keys(name=str | None) | None,
    data=_keys(source=str) | None,
    train=_keys(epochs=Count | None, steps=Count | None, batch_size=Count | None, precision=str | None) | None,
    evaluate=_keys(knn_k=Count | None, knn_bank=Count | None) | None,
)
_BESIDE = _keys(data=str, pictures=Count, checkpoint=str, step=Count | None, beside=list[_Compared])


# What is in eval/*.npz: the kind of the numbers, and the sizes, of which those with one letter are equal; _: any but 0.
_PICTURE = "_ _ 3"
ARRAYS = {
    "map": {
        **{"labels": "i n", "names": "U n", "images": f"u n {_PICTURE}", "class_names": "U c"},
        **{"before": "f n 2", "after": "f n 2", "neighbours": "i n k"},
    },
    "neighbours": {
        **{"queries": f"u q {_PICTURE}", "query_labels": "i q", "class_names": "U c"},
        **{"before": f"u q b {_PICTURE}", "before_labels": "i q b"},
        **{"after": f"u q a {_PICTURE}", "after_labels": "i q a"},
    },
    "groups": {
        **{"sizes": "i g", "tightness": "f g"},
        **{"typical": f"u t {_PICTURE}", "typical_groups": "i t", "typical_names": "U t"},
        **{"odd": f"u o {_PICTURE}", "odd_reasons": "U o", "odd_names": "U o"},
    },
    "gallery": {
        **{"queries": f"u q {_PICTURE}", "query_labels": "i q", "views": "U v", "class_names": "U c"},
        **{"found_images": f"u v q k {_PICTURE}", "found_labels": "i v q k", "found_weights": "f v q k"},
        **{"worst_images": f"u w 2 {_PICTURE}", "worst_labels": "i w 2", "worst_weights": "f w"},
    },
}


@dataclass(frozen=True)
class Record:
    """What one run directory says."""

    path: Path
    title: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    results: Sequence[EvalResult]
    demo: Mapping[str, float]
    analysis: Mapping[str, Any]
    beside: Mapping[str, Any]  # how it compares with other encoders where there are no labels
    num_skipped: int

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.section("method").get("name", "unknown method"))

    @property
    def is_finished(self) -> bool:
        """Whether it was trained to its end."""
        return (self.path / "encoder.json").is_file()

    @property
    def is_compiled(self) -> bool:
        """Whether it trained with compiled networks, when it was last gone on with."""
        return bool(self.section("train").get("compile", False))

    @property
    def source(self) -> str:
        """The data's name or folder."""
        return str(self.section("data").get("source", "unknown data"))

    @property
    def verdict(self) -> Mapping[str, Any]:
        """What the analysis says of the run's health; empty without one."""
        return self.analysis.get("verdict") or {}

    @property
    def copies(self) -> Mapping[str, Any]:
        """How often changed copies find their originals; empty where that was not measured."""
        return self.analysis.get("copies") or {}

    @property
    def knn(self) -> Mapping[str, Any]:
        """kNN accuracy beside chance and what one has without training; empty where that was not measured."""
        return self.analysis.get("knn") or {}

    @property
    def accuracies(self) -> dict[str, float]:
        """kNN accuracy of the encoder "untrained" and "trained", of baselines and of chance, as far as it is known.

        It is that of the last evaluation; while there is none, that of the log.
        """
        scores = self.values("knn_top1")
        logged = {"untrained": scores[0], "trained": scores[-1] if len(scores) > 1 else None} if scores else {}
        known = {"chance": self.knn.get("chance"), **logged, **(self.knn.get("accuracy") or {})}
        return {name: value for name, value in known.items() if is_number(value)}

    @property
    def why_curve_differs(self) -> str:
        """How kNN was measured during the run, where the last evaluation did so otherwise, and found another number."""
        final, scores = self.result("knn"), self.values("knn_top1")
        if final is None or not scores or percent(scores[-1]) == percent(final.top1):
            return ""
        precision, bank = self.section("train").get("precision"), self.section("evaluate").get("knn_bank")
        ways = [f"in {precision}"] if precision and final.precision not in ("", precision) else []
        ways += [f"by {bank:,} labelled pictures"] if bank and bank < (final.num_labels or 0) else []
        return (
            f"Measured {' and '.join(ways)}; the last evaluation, which was not, says {percent(final.top1)}."
            if ways
            else ""
        )

    @property
    def false_negatives(self) -> Mapping[str, Any]:
        """The audit of the soft labels; empty for a method without any."""
        return self.analysis.get("false_negatives") or {}

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the settings."""
        return self.settings.get(name) or {}

    def curve(self, key: str, kind: str = "eval", *, in_steps: bool = False) -> Points:
        """(epoch, value) of a key of the log, dots for keys of keys; steps become parts of epochs, or stay."""
        lines = [line for line in self.metrics if line.get("kind") == kind and is_number(_dig(line, key))]
        by_step = kind == "step"
        length = 1.0 if by_step and in_steps else self.steps_per_epoch or (1.0 if by_step else None)
        return [
            (float(line["epoch"]) if length is None else line["step"] / length, float(_dig(line, key)))
            for line in lines
        ]

    def values(self, key: str, kind: str = "eval") -> list[float]:
        """The same without the epochs, rounded."""
        return [round(value, LOGGED_DIGITS) for _, value in self.curve(key, kind)]

    @property
    def num_epochs(self) -> int:
        """Epochs that are over."""
        return max((line["epoch"] for line in self.metrics if line.get("kind") == "epoch"), default=0)

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps in an epoch; None while the first is not over, and its length not known."""
        ends = [line for line in self.metrics if line.get("kind") == "epoch" and line.get("epoch")]
        return max((float(line["step"] / line["epoch"]) for line in ends), default=None)  # the last may be cut short

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None while the length of an epoch is not known."""
        train, length = self.section("train"), self.steps_per_epoch
        return train.get("steps") or (round(train["epochs"] * length) if length and train.get("epochs") else None)

    @property
    def last_step(self) -> int:
        """The last step that the log tells of."""
        return max((line.get("step", 0) for line in self.metrics), default=0)

    def result(self, kind: str) -> EvalResult | None:
        """The result of a kind of protocol as it stands for the run, or None.

        It is of the last checkpoint, after all steps, with all labels, on the run's own data; the frozen protocol comes
        before one that was changed, more seeds before fewer, and a changed one counts for kNN alone, whose k the number
        of labelled pictures may lower.
        """
        own = [
            result
            for result in self.results
            if (result.kind, result.labels, result.checkpoint, result.transfer) == (kind, 1, "last", False)
            and (result.step or self.last_step) >= self.last_step
        ]
        own.sort(key=lambda result: (bool(result.changes), -len(result.seeds)))
        return next((result for result in own if kind == "knn" or not result.changes), None)

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of eval/<name>.npz, or nothing; also where a run goes on that was over, and they are of then."""
        path = self.path / "eval" / f"{name}.npz"
        if not path.is_file() or not (self.is_finished or self.analysis):
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = {key: arrays[key] for key in arrays.files}
        except (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error):
            raise damaged(path) from None
        if not _fit(found, ARRAYS[name]):
            raise damaged(path)
        return found


def read_record(run: Path) -> Record:
    """Read a run directory."""
    if not run.is_dir():
        raise BadInput(f"{str(run)!r} is not a run directory")
    return Record(
        path=run,
        title=printable(run.resolve().name),
        settings=read_checked(run / "config.yaml", _SETTINGS),
        environment=read_checked(run / "environment.json"),
        metrics=[line for line in read_metrics(run / "metrics.jsonl") if "epoch" in line],
        results=read_results(run / "eval"),
        demo=read_checked(run / "eval" / "demo.json", dict[str, Real]),
        analysis=read_checked(run / "eval" / "analysis.json", _ANALYSIS),
        beside=read_checked(run / "eval" / "beside.json", _BESIDE),
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
    try:
        return max(0, sum(1 for _ in csv.reader(read_ordinary(path).decode(errors="replace").splitlines(True))) - 1)
    except csv.Error:  # a field without end, for one
        raise damaged(path) from None


def _fit(arrays: Mapping[str, NDArray[Any]], wanted: Mapping[str, str]) -> bool:
    """Whether arrays have the kinds and sizes that `wanted` tells of each."""
    known: dict[str, int] = {}
    for name, (kind, *sizes) in ((name, text.split()) for name, text in wanted.items()):
        found = arrays.get(name)
        if found is None or found.dtype.kind != kind or found.ndim != len(sizes):
            return False
        if kind == "u" and found.dtype != np.uint8:
            return False
        for size, num in zip(sizes, found.shape, strict=True):
            if (num == 0) if size == "_" else num != (int(size) if size.isdigit() else known.setdefault(size, num)):
                return False
    return True


def _dig(line: Mapping[str, Any], key: str) -> Any:
    found: Any = line
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be shown: finite, and within all reason."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
