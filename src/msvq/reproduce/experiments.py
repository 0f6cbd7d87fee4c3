"""What can be reproduced and the runs that it takes: studies and their rows, scales, and the cells of both."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from msvq.config.adapt import fill_from_method, fill_from_run
from msvq.config.resolve import read_config, resolve
from msvq.config.settings import Settings
from msvq.core.errors import BadInput, unknown
from msvq.core.files import FINISHED
from msvq.core.schema import MayChange, Section, diff, parse_assignment
from msvq.reproduce import paper

MADE_BY = "msvq reproduce"
CELLS = "cells"  # where a sweep has its runs, and their records
PRECISION = "train.precision=fp32"  # the paper's, whatever is faster: numbers of different machines stand in one table
MAX_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Row:
    """One row of a table or curve of a figure: a method, and what differs from the data set's recipe."""

    key: str
    label: str
    method: str
    overrides: tuple[str, ...] = ()
    only_on: tuple[str, ...] = ()  # data sets that have the row; empty: all

    def is_on(self, dataset: str) -> bool:
        """Whether the row exists there; the embedded data set stands in for CIFAR-10."""
        return not self.only_on or stand_in(dataset) in self.only_on


@dataclass(frozen=True)
class Study:
    """A table or a figure."""

    name: str
    number: str  # what the paper calls it, such as table4
    title: str
    kind: Literal["table", "curves", "false-negatives", "map"]
    rows: tuple[Row, ...]
    datasets: tuple[str, ...] = paper.DATASETS
    extra: tuple[Row, ...] = ()  # on request
    first_column: str = "method"


def stand_in(dataset: str) -> str:
    """The paper's data set whose grid of values a data set takes."""
    return dataset if dataset in paper.DATASETS else "cifar10"


_LABELS = {
    "supervised": "Supervised", "simclr": "SimCLR", "byol": "BYOL", "simsiam": "SimSiam", "mocov2": "MoCoV2",
    "ressl": "ReSSL", "cmsf": "CMSF", "unmix": "Un-Mix", "snclr": "SNCLR", "sce": "SCE",
    "msv": "MSV", "mq": "MQ", "msvq": "MSVQ", "msvq-dagger": "MSVQ-dagger",
}  # fmt: skip
MAIN = tuple(Row(key, label, key) for key, label in _LABELS.items())
# warm_start is not in the paper, so a run with it is never the paper's row.
WARM = Row("msvq-warm", "MSVQ with warm start (ours)", "msvq", ("method.warm_start=0.5",))
EXTRA = (
    Row("msvq-x3", "MSVQ, X3 in teacher 2", "msvq-x3"),
    Row("msvq-x5", "MSVQ with X5", "msvq-x5"),
    WARM,
    Row("msf", "MSF", "msf"),
    Row("mnn", "MNN (later than the paper)", "mnn"),
    Row("nnclr", "NNCLR", "nnclr"),
    Row("nnclr-k5", "NNCLR, k = 5", "nnclr", ("method.k=5",)),
    Row("co2", "CO2", "co2"),
)


def _rows(*keys: str) -> tuple[Row, ...]:
    named = {row.key: row for row in (*MAIN, *EXTRA)}
    return tuple(named[key] for key in keys)


def _ablation(name: str, number: str, title: str, symbol: str, setting: str) -> Study:
    """A row of MSVQ for each value of a setting, on the data sets for which the paper has it."""
    rows = []
    for value, accuracies in paper.ABLATIONS[name].items():
        there = tuple(name for name, number in zip(paper.DATASETS, accuracies, strict=True) if number is not None)
        rows.append(Row(value, value, "msvq", (f"method.{setting}={value}",), only_on=there))
    return Study(name, number, title, "table", tuple(rows), first_column=symbol)


_POSITION = _rows("msvq", "msvq-x3", "msvq-x5")
_CURVES = _rows("msvq", "ressl", "mocov2")
_REST = tuple(row for row in (*MAIN, *EXTRA) if row not in _CURVES)
_FALSE_NEGATIVES = "False negatives found by each soft label and by all"  # the paper does not say on which data set
_ALL = (
    Study("linear", "table4", "Linear evaluation", "table", MAIN, extra=EXTRA),
    Study("knn", "table5", "kNN evaluation (k = 200)", "table", MAIN, extra=EXTRA),
    _ablation("teacher-temperature", "table6", "Temperature of the teachers", "τ_t", "teacher_temp"),
    _ablation("teacher-augmentation", "table7", "Augmentation of the teachers' views", "views", "teacher_augmentation"),
    _ablation("teacher-momentum", "table8", "Momentum of the second teacher", "m_2", "momentum2"),
    _ablation("queue-size", "table9", "Size of the queues", "Q", "queue_size"),
    Study("view-position", "table10", "Where the views go", "table", _POSITION, first_column="variant"),
    Study("knn-curves", "figure4", "kNN accuracy over the epochs", "curves", _CURVES, ("cifar10", "cifar100"), _REST),
    Study("false-negatives", "figure5", _FALSE_NEGATIVES, "false-negatives", _rows("msvq"), ("cifar10",)),
    Study("tsne", "figure6", "t-SNE of the test pictures", "map", _rows("mocov2", "msvq"), ("cifar10",)),
)
STUDIES = {study.name: study for study in _ALL}
NUMBERS = {study.number: study for study in _ALL}


def find_study(name: str) -> Study:
    """By name, or by the paper's number."""
    study = STUDIES.get(name) or NUMBERS.get(name.lower().replace(" ", ""))
    if study is None:
        raise unknown("table or figure", name, [*STUDIES, *NUMBERS])
    return study


def choose_rows(study: Study, scale: "Scale", methods: Sequence[str] | None) -> tuple[Row, ...]:
    """The rows that `--methods` names, in the study's order; without it, the scale's, or the paper's."""
    if methods is None:
        return scale.rows_of(study) or study.rows
    known = {row.key: row for row in (*study.rows, *study.extra)}
    for name in methods:
        if name not in known:
            raise unknown("row", name, known)
    if not methods:
        raise BadInput(f"--methods names no row; known: {', '.join(known)}")
    return tuple(row for key, row in known.items() if key in methods)


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is: whose recipe a cell takes, and what is measured after it."""

    name: str
    note: str
    datasets: tuple[str, ...]
    recipe: str | None  # None: the data set's own
    num_seeds: int  # unless told otherwise
    protocols: tuple[str, ...]  # of linear accuracy: the 100-epoch one, or the probe in its place; the first counts
    overrides: tuple[str, ...] = (PRECISION,)  # what differs from the recipe
    rows: tuple[str, ...] = ()  # of the main tables, in the order in which they are trained; empty: all
    epochs: int | None = None  # None: the recipe's

    def rows_of(self, study: Study) -> tuple[Row, ...]:
        """Its own rows of a study, if it has some."""
        named = {row.key: row for row in study.rows}
        return tuple(named[key] for key in self.rows) if study.rows == MAIN else ()

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
        own = " or ".join(dict.fromkeys(str(train.epochs) for train in usual))
        length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
        note = f"{length} in place of {own}, all else as at scale {self.name}: {self.note}"
        return replace(self, name=f"{self.name}-{length.replace(' ', '-')}", note=note, epochs=epochs)


_PAPER = "the data sets' own recipes, exactly the paper's; for a GPU"
_NARROW = "CIFAR-10, the paper's recipe and length with a ResNet-18 of width 16, in bf16; half a day on two cores"
_MINI = "CIFAR-10, a narrow network, hours on two cores; kNN by 10,000 labels"
_SMOKE = "the embedded data set, minutes; shows that it works, nothing else"
SCALES = {
    "paper": Scale("paper", _PAPER, paper.DATASETS, recipe=None, num_seeds=1, protocols=("linear",)),
    "narrow": Scale(
        "narrow",
        _NARROW,
        ("cifar10",),
        recipe="cifar10",
        num_seeds=1,
        protocols=("linear", "probe"),
        overrides=("backbone.width=16", "evaluate.every=5", "train.checkpoint_every=3m", "train.precision=bf16"),
        rows=("msvq", "ressl", "mocov2", "simclr", "mq"),  # what the hours may not reach is last
    ),
    "mini": Scale("mini", _MINI, ("cifar10",), recipe="mini", num_seeds=3, protocols=("probe",)),
    "smoke": Scale("smoke", _SMOKE, ("patterns",), recipe="smoke", num_seeds=1, protocols=("probe",)),
}
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
class Cell:
    """One run of a sweep: method, data set, what differs from the recipe, and seed, at a scale."""

    made_by: ClassVar[str] = MADE_BY

    scale: str
    dataset: str
    method: str
    overrides: tuple[str, ...]  # none that the recipe has anyway
    seed: int

    @property
    def name(self) -> str:
        """Of its directory: it says what the run is."""
        changes = [text.removeprefix("method.").replace("=", "-") for text in self.overrides]
        return "-".join([self.dataset, self.method, *changes, f"s{self.seed}"])

    @property
    def arguments(self) -> dict[str, Any]:
        """What the run is given, by the names of `msvq.pretrain`."""
        scale = find_scale(self.scale)
        epochs = [] if scale.epochs is None else [f"train.epochs={scale.epochs}"]
        overrides = (*self.overrides, *epochs, *scale.overrides)
        place = {"recipe": scale.recipe_of(self.dataset), "data": self.dataset}
        return {**place, "method": self.method, "overrides": overrides, "seed": self.seed}

    def settings(self, data_root: Path | None = None) -> Settings:
        """What the run is to be done with, before data and machine complete it."""
        return resolve(**self.arguments, data_root=data_root)


@cache
def _plain_settings(scale: str, dataset: str, method: str) -> Settings:
    return Cell(scale, dataset, method, (), 0).settings()


def make_cell(scale: Scale, dataset: str, row: Row, seed: int) -> Cell:
    """The cell of a row. What the recipe says already is no override: so two tables share their common cells."""
    plain = _plain_settings(scale.name, dataset, row.method).method_options
    told = {text: parse_assignment(text) for text in row.overrides}
    changes = [text for text, (path, value) in told.items() if plain.get(path.removeprefix("method.")) != value]
    return Cell(scale.name, dataset, row.method, tuple(changes), seed)


Place = tuple[str, str, int]  # in a table: data set, row, seed


@dataclass(frozen=True)
class Request:
    """A study at a scale: its cells by data set, row and seed."""

    study: Study
    scale: Scale
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    linear: bool  # run the 100-epoch protocol where it does not belong to the scale
    asked: tuple[Place, ...] | None = None  # what a command named of it; None: all

    def is_asked(self, place: Place) -> bool:
        """Whether a cell is missing if it is not there."""
        return self.asked is None or place in self.asked

    def cells(self) -> dict[Place, Cell]:
        """Rows that come to the same share one cell."""
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
        return self.scale.protocols[0]

    def protocols(self, cell: Cell) -> tuple[str, ...]:
        """What is measured after the run. Outside the paper's scale `linear` runs once a method: on its first seed."""
        if self.study.kind == "map":
            return ("map",)
        if self.measure == "knn":
            return ()
        more = ("linear",) if self.linear and cell.seed == self.seeds[0] else ()
        return tuple(dict.fromkeys((*self.scale.protocols, *more)))


def is_finished(run: Path, protocols: Iterable[str] = ()) -> bool:
    """Whether a run is trained to its end and has these measurements."""
    results = ["eval/map.npz" if name == "map" else f"eval/{name}.json" for name in protocols]
    return all((run / name).is_file() for name in (*FINISHED, *results))


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


def make_tasks(out: Path, wanted: Iterable[tuple[Cell, Sequence[str]]]) -> list[Task]:
    """One task a cell, whoever asks for it."""
    tasks: dict[Cell, tuple[str, ...]] = {}
    for cell, protocols in wanted:
        tasks[cell] = tuple(dict.fromkeys((*tasks.get(cell, ()), *protocols)))
    return [Task(cell, out / CELLS / cell.name, protocols) for cell, protocols in tasks.items()]


FREE = (MayChange.PLACE, MayChange.UPKEEP)  # what two runs of one cell may differ in


def decisive(settings: Settings) -> dict[str, Any]:
    """The settings that decide what is learned, as JSON values."""
    sections = {name: type(section).model_fields for name, section in settings if isinstance(section, Section)}
    free = {
        name: {key for key, field in fields.items() if any(mark in field.metadata for mark in FREE)}
        for name, fields in sections.items()
    }
    return settings.model_dump(mode="json", exclude=free)


def check_settings(cell: Cell, found: Settings, where: str, way_out: str) -> None:
    """Raise if settings that a run had are not what the cell has now. What a run finds out itself is left open."""
    found = fill_from_method(found)
    for path, now, then, may_change in diff(fill_from_run(cell.settings(), found), found):
        if may_change not in FREE:
            raise BadInput(f"the cell {where} ran with another {path}: {then!r}, and it is {now!r} now; {way_out}")


def check_run(cell: Cell, run: Path) -> None:
    """Raise if a run that was begun is not what the cell is now."""
    if (run / "config.yaml").is_file():
        way_out = "choose another --out, or move that directory away to run it again"
        check_settings(cell, read_config(run / "config.yaml"), repr(str(run)), way_out)
