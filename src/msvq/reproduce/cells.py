"""A cell: one run of a sweep, as an ordinary run directory with a name that says what it is."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from msvq.config.resolve import read_config, resolve
from msvq.config.settings import Settings
from msvq.core.errors import BadInput, unknown
from msvq.core.schema import parse_assignment
from msvq.methods import METHODS
from msvq.methods.msvq import MSVQ
from msvq.reproduce import paper
from msvq.reproduce.studies import Row, Study

MADE_BY = "msvq reproduce"
FINISHED = ("encoder.safetensors", "encoder.json", "report.html")  # the last that a run leaves
# What two runs of one cell may differ in: where they run and how often they save, not what is learned.
FREE = {
    "method_defaults",
    "data.root",
    "data.mode",
    "data.workers",
    "data.max_skipped",
    "train.device",
    "train.compile",
    "train.checkpoint_every",
    "train.log_every",
    "analyze.map",
}

# What a run finds out from its data where the recipe leaves it open.
FOUND_OUT = {"data.size", "data.test_size", "backbone.stem", "method.num_classes", "method.num_pictures"}

PRECISION = "train.precision=fp32"  # the paper's, whatever is faster: numbers of different machines stand in one table

MAX_EPOCHS = 1_000_000

# Forward passes of the teachers in a step; the MSVQ family has one for each soft label.
TEACHER_VIEWS = {"mocov2": 1, "co2": 1, "unmix": 1, "byol": 2, "msf": 2, "snclr": 2, "sce": 2, "cmsf": 3}


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is: whose recipe a cell takes, and what is measured after it."""

    name: str
    note: str
    datasets: tuple[str, ...]
    recipe: str | None  # None: the data set's own
    num_seeds: int  # unless told otherwise
    linear: bool  # whether the 100-epoch protocol belongs to it; else the probe stands in
    epochs: int | None = None  # None: the recipe's

    def recipe_of(self, dataset: str) -> str:
        """The recipe of a data set's cells."""
        return self.recipe or dataset

    def lasting(self, epochs: int) -> "Scale":
        """The same, longer or shorter: a scale of its own, as its numbers do not compare with the other's."""
        if not 1 <= epochs <= MAX_EPOCHS:
            raise BadInput(f"--epochs is the length of every run, 1 to {MAX_EPOCHS:,}, not {epochs}")
        usual = [resolve(recipe=self.recipe_of(name), data=name).train for name in self.datasets]
        if all(train.epochs == epochs for train in usual):
            return self
        if any(train.warmup_epochs >= epochs for train in usual):
            least = max(train.warmup_epochs for train in usual)
            raise BadInput(f"--epochs {epochs} would be warm-up alone at scale {self.name}; give more than {least:g}")
        own = " or ".join(dict.fromkeys(str(train.epochs) for train in usual))
        length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
        note = f"{length} in place of {own}, all else as at scale {self.name}: {self.note}"
        return replace(self, name=f"{self.name}-{length.replace(' ', '-')}", note=note, epochs=epochs)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("paper", "the data sets' own recipes, exactly the paper's; for a GPU", paper.DATASETS, None, 1, True),
        Scale(
            "mini",
            "CIFAR-10, a narrow network, hours on two cores; kNN by 10,000 labels",
            ("cifar10",),
            "mini",
            3,
            False,
        ),
        Scale(
            "smoke",
            "the embedded data set, minutes; shows that it works, nothing else",
            ("patterns",),
            "smoke",
            1,
            False,
        ),
    )
}


@dataclass(frozen=True)
class Cell:
    """Method, data set, what differs from the recipe, and seed, at a scale."""

    scale: str
    dataset: str
    method: str
    overrides: tuple[str, ...]  # none that the recipe has anyway
    seed: int

    @property
    def name(self) -> str:
        """Of its directory."""
        changes = [text.removeprefix("method.").replace("=", "-") for text in self.overrides]
        return "-".join([self.dataset, self.method, *changes, f"s{self.seed}"])

    @property
    def assignments(self) -> tuple[str, ...]:
        """What the run is given over its recipe."""
        epochs = find_scale(self.scale).epochs
        return (*self.overrides, *([] if epochs is None else [f"train.epochs={epochs}"]), PRECISION)

    def settings(self) -> Settings:
        """What the run is to be done with, before data and machine complete it."""
        return resolve(
            recipe=find_scale(self.scale).recipe_of(self.dataset),
            data=self.dataset,
            method=self.method,
            overrides=self.assignments,
            seed=self.seed,
        )

    def cost(self) -> float:
        """How long a step takes beside other methods', by passes: 3 for the student's, 1 for a teacher's view."""
        kind = METHODS[self.method]
        views = len(kind.soft_label_specs) if issubclass(kind, MSVQ) else TEACHER_VIEWS.get(self.method, 0)
        return 3.0 * kind.student_passes + views


def make_cell(scale: Scale, dataset: str, row: Row, seed: int) -> Cell:
    """The cell of a row. What the recipe says already is no override: so two tables share their common cells."""
    plain = _plain_settings(scale.name, dataset, row.method).method_options
    changes = []
    for text in row.overrides:
        path, value = parse_assignment(text)
        if plain.get(path.removeprefix("method.")) != value:
            changes.append(text)
    return Cell(scale.name, dataset, row.method, tuple(changes), seed)


@cache
def _plain_settings(scale: str, dataset: str, method: str) -> Settings:
    return Cell(scale, dataset, method, (), 0).settings()


_LENGTH = re.compile(r"-([0-9]{1,9})-epochs?$")  # at the end of a scale's name


@cache
def find_scale(name: str) -> Scale:
    """By name; mini-12-epochs is mini with runs of that length."""
    length = _LENGTH.search(name)
    plain = name if length is None else name[: length.start()]
    if plain not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[plain] if length is None else SCALES[plain].lasting(int(length[1]))


def choose_datasets(study: Study, scale: Scale, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The study's data sets that the scale has, or those of them that `--datasets` names."""
    own = tuple(name for name in study.datasets if name in scale.datasets)
    known = own or scale.datasets  # the embedded data set stands in for the paper's
    if wanted is None:
        return known
    for name in wanted:
        if name not in known and name in study.datasets:
            other = [other.name for other in SCALES.values() if name in other.datasets][-1]  # the smallest
            raise BadInput(f"scale {scale.name} has {', '.join(known)} alone; {name} takes --scale {other}")
        if name not in known:
            raise unknown(f"data set of {study.name}", name, known)
    if not wanted:
        raise BadInput(f"--datasets names none; known: {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


@dataclass(frozen=True)
class Request:
    """A study at a scale: its cells by data set, row and seed."""

    study: Study
    scale: Scale
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    linear: bool  # run the 100-epoch protocol where it does not belong to the scale
    asked: tuple[tuple[str, str, int], ...] | None = None  # data set, row, seed: what a command named of it; None: all

    def is_asked(self, dataset: str, row: str, seed: int) -> bool:
        """Whether a cell is missing if it is not there."""
        return self.asked is None or (dataset, row, seed) in self.asked

    def cells(self) -> dict[tuple[str, str, int], Cell]:
        """(data set, row, seed) -> cell; rows that come to the same share one."""
        return {
            (dataset, row.key, seed): make_cell(self.scale, dataset, row, seed)
            for seed in self.seeds  # seed by seed, so that half a sweep is a whole table with fewer seeds
            for dataset in self.datasets
            for row in self.rows
            if row.is_on(dataset)
        }

    @property
    def fewer_vote(self) -> bool:
        """Whether kNN has fewer labels while a run trains than it has in the paper: in the end, all of them vote."""
        cells = self.cells().values()
        return any(_plain_settings(c.scale, c.dataset, c.method).evaluate.knn_bank is not None for c in cells)

    @property
    def measure(self) -> str:
        """What the table's accuracies are measured by: knn, linear, or the probe in its place."""
        if self.study.name == "knn" or self.study.kind != "table":
            return "knn"
        return "linear" if self.scale.linear else "probe"

    def protocols(self, cell: Cell) -> tuple[str, ...]:
        """What is measured after the run. Outside the paper's scale `linear` runs once a method: on its first seed."""
        if self.study.kind == "map":
            return ("map",)
        if self.measure == "knn":
            return ()
        more = self.linear and not self.scale.linear and cell.seed == self.seeds[0]
        return (self.measure, "linear") if more else (self.measure,)


def is_finished(run: Path, protocols: Iterable[str] = ()) -> bool:
    """Whether a run is trained to its end and has these measurements."""
    files = [*FINISHED, *(result_file(protocol) for protocol in protocols)]
    return all((run / name).is_file() for name in files)


@dataclass(frozen=True)
class Task:
    """A cell, where it goes, and what is measured after it."""

    cell: Cell
    run: Path
    protocols: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return is_finished(self.run, self.protocols)


def result_file(protocol: str) -> str:
    """Where in a run directory a measurement is."""
    return "eval/map.npz" if protocol == "map" else f"eval/{protocol}.json"


def check_same(cell: Cell, run: Path) -> None:
    """Raise if a run that was begun is not what the cell is now."""
    if not (run / "config.yaml").is_file():
        return
    wanted, found = cell.settings().model_dump(mode="json"), read_config(run / "config.yaml").model_dump(mode="json")
    changed = difference(wanted, found)
    if changed is not None:
        key, now, then = changed
        raise BadInput(
            f"the cell {str(run)!r} ran with another {key}: {then!r}, and it is {now!r} now; "
            f"choose another --out, or move that directory away to run it again"
        )


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any], path: str = "") -> tuple[str, Any, Any] | None:
    """The first setting in which they differ: name, wanted, found. What a run has to find out itself is left open."""
    for key in dict.fromkeys((*wanted, *found)):
        name, value, other = f"{path}{key}", wanted.get(key), found.get(key)
        if name in FREE or (name in FOUND_OUT and value in (None, "auto")):
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping | None):
            deeper = difference(value, other or {}, f"{name}.")
            if deeper is not None:
                return deeper
        elif value != other:
            return name, value, other
    return None
