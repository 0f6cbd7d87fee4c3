"""What a protocol says of an encoder: one type, written to RUN/eval and read from there. Needs no PyTorch."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from msvq.core.files import write_text

LONGEST_NAME = 150  # bytes of a result's file name; file systems take 255, with what is added while it is written


class EvalResult(BaseModel):
    """Accuracies in percent, means where there were several seeds, and all that tells them from other numbers.

    A protocol may add numbers of its own, such as `scratch_top1` or `confusion`: they are fields too.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    protocol: str  # such as "knn-200-t0.1/1": what was changed in it stands behind its name
    kind: str  # the protocol's plain name
    top1: float
    top5: float
    seeds: list[int]
    runs: list[dict[str, Any]]  # the numbers of each seed
    labels: float  # the share of the labels that was used
    num_labels: int
    num_test: int
    settings: dict[str, Any]
    precision: str
    msvq: str
    data: str
    data_fingerprint: str
    transfer: bool  # whether the pictures are others than the run's
    checkpoint: str
    step: int | None
    changes: dict[str, Any]  # what differs from the plain protocol

    @property
    def record(self) -> dict[str, Any]:
        """All of it, as it stands in its file."""
        return self.model_dump(mode="json")

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
        """Write it to a run's folder of results."""
        path = folder / self.file_name
        earlier = read_result(path) if self.transfer else None
        if earlier is not None and earlier.data_fingerprint != self.data_fingerprint:  # other data of that name
            path = path.with_name(f"{path.stem}-{self.data_fingerprint[:6]}.json")
        write_text(path, json.dumps(self.record, indent=1) + "\n")
        return path


def read_result(path: Path) -> EvalResult | None:
    """A result that was written; None if there is none, or something else."""
    try:
        return EvalResult.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def read_results(folder: Path) -> Sequence[EvalResult]:
    """All results of a run, by the names of their files."""
    found = (read_result(path) for path in sorted(folder.glob("*.json")))
    return [result for result in found if result is not None]
