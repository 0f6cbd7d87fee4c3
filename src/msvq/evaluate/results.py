"""What a protocol says of an encoder: one type, written to RUN/eval and read from there. Needs no PyTorch."""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from msvq.core.errors import BadInput, shorten
from msvq.core.files import write_text
from msvq.core.ordinary_files import read_ordinary
from msvq.core.schema import load_yaml

LONGEST_NAME = 150  # bytes of a result's file name; file systems take 255, with what is added while it is written
KINDS = ("knn", "linear", "probe", "finetune")  # the order of results
LOGGED_DIGITS = 4  # behind the point, that an accuracy of the log has: it was a number of 32 bits
LARGEST = 1e300  # a number beyond it is none that a chart could show

Real = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
Count = Annotated[int, Ge(0), Le(2**53)]


def standard_error(share: float, num: int) -> float:
    """Of a share of so many, by Wilson's interval: not 0 where none or all were right."""
    return math.sqrt(share * (1 - share) / num + 1 / (4 * num**2)) / (1 + 1 / num)


def percent(value: float, error: float | None = None) -> str:
    """An accuracy as it is told everywhere; 15.55 is logged as 15.549999, and would be told as 15.5 beside 15.6."""
    told = f"{round(value, LOGGED_DIGITS):.1f}"
    return f"{told} %" if error is None else f"{told} ± {error:.1f} %"


def percent_error(percent: float, num: int | None) -> float | None:
    """The standard error of an accuracy on so many pictures, in points; None where their number is not known."""
    return 100 * standard_error(percent / 100, num) if num and 0 <= percent <= 100 else None


def _square(matrix: list[list[int]]) -> list[list[int]]:
    if any(len(row) != len(matrix) for row in matrix):
        raise ValueError("a confusion matrix has as many rows as columns")
    return matrix


class EvalResult(BaseModel):
    """Accuracies in percent, means where there were several seeds, and all that tells them from other numbers.

    What a file does not say has its default. A protocol may add numbers of its own, which are fields too.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    protocol: str  # such as "knn-200-t0.1/1": what was changed in it stands behind its name
    kind: str  # the protocol's plain name
    top1: Real
    top5: Real
    seeds: list[int] = []
    runs: list[dict[str, Any]] = []  # the numbers of each seed
    labels: Real = 1.0  # the share of the labels that was used
    num_labels: Count | None = None
    num_test: Count | None = None
    chance: Real | None = None  # accuracy of naming the commonest class of the test pictures, always
    settings: dict[str, Any] = {}
    precision: str = ""
    msvq: str = ""
    data: str = ""
    data_fingerprint: str = ""
    transfer: bool = False  # whether the pictures are others than the run's
    checkpoint: str = "last"
    step: Count | None = None
    changes: dict[str, Any] = {}  # what differs from the plain protocol
    beside: list[dict[str, Any]] = []  # the same of other encoders, this one first: name, accuracies, seconds
    # of some protocols
    class_names: list[str] = []
    confusion: Annotated[list[list[Count]], AfterValidator(_square)] = []  # rows: truth, columns: guess
    mistakes: list[dict[str, str]] = []  # the files that are taken wrongly: name, class, guess
    top1_best: Real | None = None  # of all epochs
    top5_best: Real | None = None
    scratch_top1: Real | None = None  # of the same network without the run's weights
    scratch_top5: Real | None = None
    top1_std: Real | None = None  # over the seeds

    @property
    def top1_error(self) -> float | None:
        """One standard error of `top1`, by the number of test pictures; of several seeds, their deviation."""
        return self.top1_std if len(self.seeds) > 1 else percent_error(self.top1, self.num_test)

    @property
    def record(self) -> dict[str, Any]:
        """All of it, as it stands in its file."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def file_name(self) -> str:
        """Where in RUN/eval it is kept: what differs from the plain protocol is in the name."""
        parts = [self.kind]
        if self.transfer:
            parts += ["on", self.data]
        if self.labels < 1:
            parts += ["labels", f"{self.labels:g}"]
        if len(self.seeds) > 1:
            parts += ["seeds", str(len(self.seeds))]
        parts += [f"{key}-{value}" for key, value in self.changes.items()]
        if self.checkpoint != "last":
            parts.append(self.checkpoint)
        name = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in "-".join(parts))
        if len(name.encode()) > LONGEST_NAME:
            told = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}-{told}"
        return f"{name}.json"

    def save(self, folder: Path) -> Path:
        """Write it to a run's folder of results; of other encoders, what was measured of them before stays there."""
        path = folder / self.file_name
        before = _earlier(path)
        if self.transfer and before is not None and before.data_fingerprint != self.data_fingerprint:
            path = path.with_name(f"{path.stem}-{self.data_fingerprint[:6]}.json")
            before = _earlier(path)
        result = self if before is None else self.model_copy(update=self._rows_of(before))
        write_text(path, json.dumps(result.record, indent=1) + "\n")
        return path

    def _rows_of(self, before: "EvalResult") -> dict[str, Any]:
        """`beside` with the rows of an earlier result that were not measured now, if all else is the same."""
        same = ("protocol", "data_fingerprint", "checkpoint", "step")
        if not before.beside or any(getattr(self, key) != getattr(before, key) for key in same):
            return {}
        measured = {row.get("encoder") for row in self.beside}
        own, *others = before.beside
        kept = [row for row in others if row.get("encoder") not in measured]
        return {"beside": [*(self.beside or [own]), *kept]}


def _earlier(path: Path) -> EvalResult | None:
    """The result that a file holds already."""
    try:
        return EvalResult.model_validate_json(read_ordinary(path))
    except (OSError, BadInput, ValidationError):
        return None


def read_results(folder: Path) -> Sequence[EvalResult]:
    """All results in a run's folder of them, by protocols and the names of files; other JSON is passed over."""
    found = {path: read_checked(path) for path in sorted(folder.glob("*.json"))}
    results = [_checked(path, content, EvalResult) for path, content in found.items() if "protocol" in content]
    return sorted(results, key=lambda result: (*KINDS, result.kind).index(result.kind))


def read_checked(path: Path, kind: Any = dict) -> dict[str, Any]:
    """What a run's file of JSON or YAML says, which must be of a kind; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        text = read_ordinary(path).decode()
        found = json.loads(text) if path.suffix == ".json" else load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise damaged(path) from None
    _checked(path, found, kind)
    return dict(found)


def _checked(path: Path, found: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        raise damaged(path, ".".join(str(key) for key in error.errors()[0]["loc"][:3])) from None


def damaged(path: Path, where: str = "") -> BadInput:
    """The error for a file of a run that is not as it was written."""
    way_out = "restore it" + (", or remove it to have a page without it" if path.name != "config.yaml" else "")
    return BadInput(f"{str(path)!r} is damaged{f' ({shorten(where)})' if where else ''}; {way_out}")
