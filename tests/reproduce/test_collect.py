"""Cells that were measured elsewhere: as files, and as rows of a table that nobody trains again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.test_sweep import shell
from tests.reproduce.test_tables import measurement

from msvq.core.errors import BadInput
from msvq.reproduce import collect
from msvq.reproduce.collect import Measured, Score, read_known, write_known
from msvq.reproduce.experiments import CELLS, Cell
from msvq.reproduce.reproduce import Sweep, plan_sweep


def recorded(folder: Path, *methods: str, scale: str = "smoke", dataset: str = "patterns", **changes: Any) -> Path:
    """The results of a sweep whose runs are gone: a cell of each method, and its seed 1 too."""
    runs, found = folder / "runs", []
    for method in methods:
        for seed in (0, 1):
            cell = Cell(scale, dataset, method, (), seed)
            settings = cell.settings()
            (runs / cell.name).mkdir(parents=True)
            (runs / cell.name / "config.yaml").write_text(settings.to_yaml())
            found.append(replace(measurement(cell.name, seed, 50.0 + seed, 49.0 + seed), **changes))
    write_known(folder, scale, found, runs)
    return folder


def test_a_cell_survives_its_run(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "msvq", memory=None)
    known = read_known(folder)
    assert known == read_known(folder / CELLS)
    record = known["patterns-msvq-s1"]
    assert record.measured == replace(measurement("patterns-msvq-s1", 1, 51.0, 50.0), memory=None)
    record.check(Cell("smoke", "patterns", "msvq", (), 1))
    text = (folder / CELLS / "patterns-msvq-s1.json").read_text()
    assert "root" not in json.loads(text)["settings"]["data"]  # nothing of the machine's folders


def test_a_known_cell_keeps_its_own_settings_beside_a_run_of_others(tmp_path: Path) -> None:
    folder, runs = recorded(tmp_path / "known", "msvq"), tmp_path / "runs"
    (runs / "patterns-msvq-s0").mkdir(parents=True)
    (runs / "patterns-msvq-s0" / "config.yaml").write_text("of a run that is not finished")
    known = read_known(folder)
    files = write_known(tmp_path / "new", "smoke", [known["patterns-msvq-s0"].measured], runs, known)
    assert [file.read_bytes() for file in files] == [known["patterns-msvq-s0"].path.read_bytes()]


def names_of(sweep: Sweep) -> list[str]:
    return [task.cell.name for task in sweep.tasks]


def test_a_known_cell_is_no_map(tmp_path: Path) -> None:
    sweep = plan_sweep("tsne", scale="smoke", out=tmp_path / "sweep", known=recorded(tmp_path, "msvq"))
    assert collect.collect(sweep.request, sweep.out, {}, sweep.known)[1] == {}


def test_a_known_cell_is_no_task(tmp_path: Path) -> None:
    known, out = recorded(tmp_path / "known", "msvq"), tmp_path / "sweep"

    def names(study: str = "knn", **options: Any) -> list[str]:
        return names_of(plan_sweep(study, scale="smoke", methods=["msvq", "ressl"], out=out, known=known, **options))

    assert names() == ["patterns-ressl-s0"]
    assert names("linear", seeds=2) == ["patterns-ressl-s0", "patterns-ressl-s1"]
    assert "patterns-msvq-s0" in names("linear", linear=True)  # its linear accuracy is not known
    assert "patterns-msvq-s0" in names_of(plan_sweep("tsne", scale="smoke", out=out, known=known))  # made of runs
    (out / "cells" / "patterns-msvq-s0").mkdir(parents=True)
    assert "patterns-msvq-s0" in names()  # begun here


def test_a_known_cell_stands_in_for_a_run_without_the_tables_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, out, here = recorded(tmp_path / "known", "msvq"), tmp_path / "sweep", "patterns-msvq-s0"
    plain = Measured(here, 0, scores={"knn": Score(1.0, 1.0)})  # of a run that only its kNN was asked of
    monkeypatch.setattr(collect, "read_run", lambda cell, run, known: plain if cell.name == here else None)
    for study, measure, expected in (("linear", "probe", 54.0), ("knn", "knn", 1.0)):
        sweep = plan_sweep(study, scale="smoke", methods=["msvq"], out=out, known=known)
        found = collect.collect(sweep.request, out, {}, sweep.known)[1]
        assert found["patterns", "msvq", 0].scores[measure].last == expected


def test_the_command_makes_a_table_of_known_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, out = recorded(tmp_path / "known", "msvq", "ressl", "mq"), tmp_path / "sweep"
    words = ("--scale", "smoke", "--methods", "msvq,ressl", "--seeds", "2", "--known", known, "--out", out)
    code, told, err = shell(capsys, "reproduce", "knn", *words)
    assert code == 0, err
    assert "0 cells" in told and "4 more are known from elsewhere" in told
    result = json.loads((out / "results" / "knn.json").read_text())
    rows = {row["row"]: row["cells"]["patterns"] for row in result["rows"]}
    assert list(rows) == ["ressl", "mq", "msvq"]  # a table shows every cell that is known
    assert rows["msvq"]["values"] == {"0": {"best": 50.0, "last": 49.0}, "1": {"best": 51.0, "last": 50.0}}
    assert f"--known {known}" in result["command"]
    assert not (out / "cells").exists()
    assert read_known(out / "results").keys() == read_known(known).keys()  # and so from sweep to sweep


def test_a_table_of_a_scale_with_its_own_rows_says_which_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {"knn": Score(80.0, 81.0), "linear": Score(83.0, 84.0), "probe": Score(82.0, 82.0)}
    known = recorded(tmp_path / "known", "msvq", "ressl", scale="narrow", dataset="cifar10", scores=scores)
    (known / CELLS / "cifar10-ressl-s1.json").unlink()
    words = ("--scale", "narrow", "--methods", "msvq,ressl", "--known", known, "--out", tmp_path / "sweep")
    for study in ("linear", "knn"):
        code, _, err = shell(capsys, "reproduce", study, *words)
        assert code == 0, err
    text = (tmp_path / "sweep" / "results" / "linear.md").read_text()
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert list(lines)[2:7] == ["SimCLR", "MoCoV2", "ReSSL", "MQ", "MSVQ"]
    assert "| 90.22 | 84.00 | 83.00 | -6.22 | 82.00 | 1 |" in lines["ReSSL"]
    assert " | - | - | - | - | - | " in lines["SimCLR"]
    assert "3 of the runs have not been made, or were not measured like this: SimCLR, MoCoV2, MQ." in text


def test_a_cell_of_other_settings_is_refused_or_passed_over(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "msvq", "mq")
    path = folder / CELLS / "patterns-msvq-s0.json"
    text = json.loads(path.read_text())
    text["settings"]["train"]["base_lr"] = 7.0
    path.write_text(json.dumps(text))
    with pytest.raises(BadInput, match=r"ran with another train\.base_lr: 7\.0"):
        plan_sweep("knn", scale="smoke", methods=["msvq"], known=folder)
    plan_sweep("knn", scale="smoke", methods=["ressl"], known=folder)  # it is not asked for
    record = read_known(folder)["patterns-mq-s0"]
    with pytest.raises(BadInput, match="is of scale smoke, not mini; leave out --known"):
        record.check(Cell("mini", "cifar10", "mq", (), 0))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"cell": "x", "scores": 1}'])
def test_what_is_no_cell_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="holds no cells"):
        read_known(tmp_path)
    (tmp_path / "notes.json").write_text(text)
    code, _, err = shell(capsys, "reproduce", "knn", "--known", tmp_path, "--out", tmp_path / "sweep")
    assert code == 2 and "notes.json' is no cell of a sweep, or damaged" in err
    with pytest.raises(BadInput, match="is not a folder"):
        read_known(tmp_path / "notes.json")


def test_known_cells_of_other_pictures_are_noticed_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, out = recorded(tmp_path / "known", "msvq"), tmp_path / "sweep"
    words = ("--scale", "smoke", "--methods", "msvq,ressl", "--known", known, "--out", out)
    code, _, err = shell(capsys, "reproduce", "knn", *words)
    assert code == 2 and "was trained on other pictures of patterns" in err and "or leave out --known" in err
    assert not (out / "cells").exists()
