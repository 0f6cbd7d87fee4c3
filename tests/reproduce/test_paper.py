"""The published numbers, spot-checked against the specification and against each other."""

import pytest

from msvq.methods import METHODS
from msvq.reproduce import paper
from msvq.reproduce.claims import EQUAL, MOMENTUM2, QUEUE
from msvq.reproduce.experiments import MAIN, STUDIES
from msvq.reproduce.paper import published


@pytest.mark.parametrize(
    ("study", "row", "dataset", "source", "value"),
    [
        ("linear", "supervised", "stl10", "copied", 82.55),
        ("linear", "simsiam", "tinyimagenet", "copied", 37.04),
        ("linear", "ressl", "cifar100", "reproduced", 64.22),
        ("linear", "ressl", "cifar100", "copied", 63.79),
        ("linear", "msvq", "cifar10", "paper", 91.46),
        ("linear", "msvq", "stl10", "readme", 90.36),
        ("linear", "byol", "cifar10", "benchmark", 89.54),
        ("linear", "sce", "tinyimagenet", "benchmark, before", 48.50),
        ("linear", "mnn", "cifar10", "later", 91.47),
        ("linear", "mnn", "cifar100", "later", 67.56),
        ("linear", "mnn", "stl10", "later", 91.61),
        ("linear", "mnn", "tinyimagenet", "later", 50.70),
        ("knn", "msvq-dagger", "tinyimagenet", "paper", 41.81),
        ("knn", "cmsf", "cifar100", "benchmark", 54.20),
        ("knn", "mocov2", "cifar10", "benchmark, before", 87.82),
        ("teacher-temperature", "0.07", "cifar100", "paper", 58.83),
        ("teacher-augmentation", "strong", "tinyimagenet", "paper", 39.44),
        ("teacher-momentum", "0.993", "stl10", "paper", 90.10),
        ("queue-size", "32768", "cifar100", "paper", 66.82),
        ("view-position", "msvq-x5", "cifar100", "paper", 67.14),
    ],
)
def test_numbers_are_those_of_the_specification(study: str, row: str, dataset: str, source: str, value: float) -> None:
    assert published(study, row, dataset)[source] == value


def test_what_was_not_published_is_absent() -> None:
    assert published("knn", "supervised", "cifar10") == {}
    assert published("knn", "simclr", "stl10") == {}
    assert published("teacher-momentum", "0.93", "stl10") == {}
    assert published("linear", "msvq", "patterns") == {}


def test_the_ablations_hold_the_main_tables_msvq() -> None:
    temperature = {"cifar10": "0.04", "cifar100": "0.03", "stl10": "0.04", "tinyimagenet": "0.04"}
    for dataset in paper.DATASETS:
        main = published("linear", "msvq", dataset)["paper"]
        for study, row in (
            ("teacher-temperature", temperature[dataset]),
            ("teacher-augmentation", "weak"),
            ("teacher-momentum", MOMENTUM2[dataset]),
            ("queue-size", QUEUE[dataset]),
            ("view-position", "msvq"),
        ):
            assert published(study, row, dataset)["paper"] == main, (study, dataset)
        assert published("teacher-momentum", EQUAL[dataset], dataset)


def test_what_was_measured_by_another_protocol_is_shown_and_not_compared_with() -> None:
    row = next(row for row in STUDIES["linear"].extra if row.key == "mnn")
    assert row.label == "MNN (later than the paper)"
    assert paper.main_value("linear", "mnn", "stl10") is paper.main_value("linear", "msf", "cifar10") is None
    assert paper.main_value("linear", "cmsf", "cifar10") == 91.00


def test_the_papers_cmsf_row_is_the_benchmarks_before_its_repair() -> None:
    for table in (paper.LINEAR, paper.KNN):
        for dataset in (0, 1, 3):
            assert table["cmsf"]["reproduced"][dataset] == table["cmsf"]["benchmark, before"][dataset]


def test_backprop_is_the_number_of_student_passes() -> None:
    for row in MAIN:
        if row.key != "supervised":
            assert paper.BACKPROP[row.key] == f"{METHODS[row.method].student_passes}x"


def test_every_source_is_explained_and_every_table_is_there() -> None:
    for table in (paper.LINEAR, paper.KNN):
        assert {source for sources in table.values() for source in sources} <= set(paper.SOURCES)
    assert [study.number for study in STUDIES.values()] == [
        *(f"table{number}" for number in range(4, 11)),
        *(f"figure{number}" for number in range(4, 7)),
    ]
