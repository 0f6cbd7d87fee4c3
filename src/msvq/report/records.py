"""A run's files, read once for the page. Every file may be missing: a run may be young, or measured in part."""

import csv
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml
from numpy.typing import NDArray

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.runs.metrics import read_metrics

Points = list[tuple[float, float]]

KINDS = ("knn", "linear", "probe", "finetune")  # the order of the table


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
        lines = [line for line in self.metrics if line.get("kind") == kind and _is_number(_dig(line, key))]
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
    config = run / "config.yaml"
    found = [_read_json(path) for path in sorted((run / "eval").glob("*.json"))]
    results = [result for result in found if "protocol" in result]
    results.sort(key=lambda result: KINDS.index(result["kind"]) if result.get("kind") in KINDS else len(KINDS))
    return Record(
        path=run,
        title=printable(run.resolve().name),
        settings=_read_yaml(config),
        environment=_read_json(run / "environment.json"),
        metrics=read_metrics(run / "metrics.jsonl"),
        results=results,
        demo=_read_json(run / "eval" / "demo.json"),
        analysis=_read_json(run / "eval" / "analysis.json"),
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _damaged(path) from None
    return found if isinstance(found, dict) else {}


def _damaged(path: Path) -> BadInput:
    return BadInput(f"{str(path)!r} is damaged; restore it, or remove it to have a page without it")


def _block(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _dig(line: Mapping[str, Any], key: str) -> Any:
    found: Any = line
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
