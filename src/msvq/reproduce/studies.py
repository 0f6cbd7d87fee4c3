"""What can be reproduced: the paper's tables and figures by name, and the rows of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msvq.core.errors import BadInput, unknown
from msvq.reproduce import paper

Kind = Literal["table", "curves", "false-negatives", "map"]


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
    kind: Kind
    rows: tuple[Row, ...]
    datasets: tuple[str, ...] = paper.DATASETS
    extra: Mapping[str, Row] = field(default_factory=dict)  # rows on request
    first_column: str = "method"


def stand_in(dataset: str) -> str:
    """The paper's data set whose grid of values a data set takes."""
    return dataset if dataset in paper.DATASETS else "cifar10"


_LABELS = {
    "supervised": "Supervised",
    "simclr": "SimCLR",
    "byol": "BYOL",
    "simsiam": "SimSiam",
    "mocov2": "MoCoV2",
    "ressl": "ReSSL",
    "cmsf": "CMSF",
    "unmix": "Un-Mix",
    "snclr": "SNCLR",
    "sce": "SCE",
    "msv": "MSV",
    "mq": "MQ",
    "msvq": "MSVQ",
    "msvq-dagger": "MSVQ-dagger",
}
MAIN = tuple(Row(key, label, key) for key, label in _LABELS.items())
X3, X5 = Row("msvq-x3", "MSVQ, X3 in teacher 2", "msvq-x3"), Row("msvq-x5", "MSVQ with X5", "msvq-x5")
# warm_start is not in the paper, so a run with it is never the paper's row.
WARM = Row("msvq-warm", "MSVQ with warm start (ours)", "msvq", ("method.warm_start=0.5",))
EXTRA = {
    row.key: row
    for row in (
        X3,
        X5,
        WARM,
        Row("msf", "MSF", "msf"),
        Row("nnclr", "NNCLR", "nnclr"),
        Row("nnclr-k5", "NNCLR, k = 5", "nnclr", ("method.k=5",)),
        Row("co2", "CO2", "co2"),
    )
}
_ROW = {row.key: row for row in MAIN} | EXTRA


def _grid(table: Mapping[str, paper.Row], setting: str) -> tuple[Row, ...]:
    """A row of MSVQ for each value, on the data sets for which the paper has it."""
    rows = []
    for value, accuracies in table.items():
        there = tuple(name for name, number in zip(paper.DATASETS, accuracies, strict=True) if number is not None)
        rows.append(Row(value, value, "msvq", (f"method.{setting}={value}",), only_on=there))
    return tuple(rows)


_ALL = (
    Study("linear", "table4", "Linear evaluation", "table", MAIN, extra=EXTRA),
    Study("knn", "table5", "kNN evaluation (k = 200)", "table", MAIN, extra=EXTRA),
    Study(
        "teacher-temperature",
        "table6",
        "Temperature of the teachers",
        "table",
        _grid(paper.TEACHER_TEMPERATURE, "teacher_temp"),
        first_column="τ_t",
    ),
    Study(
        "teacher-augmentation",
        "table7",
        "Augmentation of the teachers' views",
        "table",
        _grid(paper.TEACHER_AUGMENTATION, "teacher_augmentation"),
        first_column="views",
    ),
    Study(
        "teacher-momentum",
        "table8",
        "Momentum of the second teacher",
        "table",
        _grid(paper.TEACHER_MOMENTUM, "momentum2"),
        first_column="m_2",
    ),
    Study(
        "queue-size",
        "table9",
        "Size of the queues",
        "table",
        _grid(paper.QUEUE_SIZE, "queue_size"),
        first_column="Q",
    ),
    Study(
        "view-position",
        "table10",
        "Where the views go",
        "table",
        (_ROW["msvq"], X3, X5),
        first_column="variant",
    ),
    Study(
        "knn-curves",
        "figure4",
        "kNN accuracy over the epochs",
        "curves",
        (_ROW["msvq"], _ROW["ressl"], _ROW["mocov2"]),
        ("cifar10", "cifar100"),
        extra={key: row for key, row in _ROW.items() if key not in ("msvq", "ressl", "mocov2")},
    ),
    # The paper does not say on which data set figure 5 was drawn.
    Study(
        "false-negatives",
        "figure5",
        "False negatives found by each soft label and by all",
        "false-negatives",
        (_ROW["msvq"],),
        ("cifar10",),
    ),
    Study(
        "tsne",
        "figure6",
        "t-SNE of the test pictures",
        "map",
        (_ROW["mocov2"], _ROW["msvq"]),
        ("cifar10",),
    ),
)
STUDIES = {study.name: study for study in _ALL}
NUMBERS = {study.number: study for study in _ALL}


def find_study(name: str) -> Study:
    """By name, or by the paper's number."""
    study = STUDIES.get(name) or NUMBERS.get(name.lower().replace(" ", ""))
    if study is None:
        raise unknown("table or figure", name, [*STUDIES, *NUMBERS])
    return study


def choose_rows(study: Study, methods: Sequence[str] | None) -> tuple[Row, ...]:
    """The rows that `--methods` names, in the study's order; without it, the paper's."""
    if methods is None:
        return study.rows
    known = {row.key: row for row in study.rows} | dict(study.extra)
    for name in methods:
        if name not in known:
            raise unknown("row", name, known)
    if not methods:
        raise BadInput(f"--methods names no row; known: {', '.join(known)}")
    return tuple(row for key, row in known.items() if key in methods)
