"""What is read of runs, and which of it curves, verdict and tables show."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.report.fixtures import change_log, make_run, write_json

from msvq.report.curves import MAIN, MORE, charts
from msvq.report.figures import _knn_curves, _places
from msvq.report.numbers import confused_pairs, confusion, verdict
from msvq.report.records import read_record, read_records


def chart_of(drawn: list[dict[str, Any]], title: str) -> str:
    (found,) = [one["chart"] for one in drawn if one["title"] == title]
    return str(found)


def test_runs_that_share_their_last_folders_have_titles_and_curves_of_their_own(tmp_path: Path) -> None:
    names = ("a/seeds/0", "b/seeds/0", "b/seeds/1")
    records = read_records([make_run(tmp_path / name) for name in names])
    assert [record.title for record in records] == ["a/seeds/0", "b/seeds/0", "1"]
    figure = Figure()
    _knn_curves(records)(figure)
    assert [str(line.get_label()).strip() for line in figure.axes[0].lines] == ["a/seeds/0", "b/seeds/0", "1"]


def test_a_run_given_twice_is_drawn_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    figure = Figure()
    _knn_curves(read_records([run, run]))(figure)
    assert len(figure.axes[0].lines) == 2


def test_the_result_of_most_seeds_stands_for_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    linear = json.loads((run / "eval" / "linear.json").read_text())
    for name, top1, num in (("linear", 70.0, 1), ("linear-seeds-2", 72.0, 2), ("linear-seeds-3", 71.0, 3)):
        write_json(run / "eval" / f"{name}.json", {**linear, "top1": top1, "seeds": list(range(num))})
    assert (found := read_record(run).result("linear")) is not None and found.top1 == 71.0


def test_a_changed_protocol_of_many_seeds_does_not_stand_before_the_plain_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    knn = json.loads((run / "eval" / "knn.json").read_text())
    write_json(run / "eval" / "knn-k-7.json", {**knn, "top1": 1.0, "seeds": [0, 1, 2], "changes": {"k": 7}})
    assert (found := read_record(run).result("knn")) is not None and found.top1 == 61.5


def test_beside_a_run_in_its_first_epoch_all_are_drawn_by_steps(tmp_path: Path) -> None:
    old, young = make_run(tmp_path / "old"), make_run(tmp_path / "young")
    change_log(young, lambda line: line if line["kind"] == "step" and line["step"] < 33 else None)
    records = read_records([old, young])
    assert [record.steps_per_epoch for record in records] == [33, None]
    together = chart_of(charts(records, MAIN), "Loss")
    assert "Loss over step: old from 5 to 4.1; young from 5 to 4.7" in together
    assert ">80<" in together  # a tick of the axis: steps, of which an epoch has 33
    assert "kNN accuracy over epoch" in chart_of(charts(records, MAIN), "kNN accuracy")
    assert records[0].curve("knn_top1", in_steps=True)[-1][0] == 3
    assert "Loss over epoch" in chart_of(charts(records[:1], MAIN), "Loss")
    assert records[0].curve("loss", "step")[-1] == pytest.approx((90 / 33, 4.1))
    assert records[0].curve("loss", "step", in_steps=True)[-1] == (90, 4.1)


def test_a_run_that_ends_within_an_epoch_is_drawn_to_scale(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    change_log(run, lambda line: {**line, "step": 80} if line["step"] == 99 else line)  # of 3 epochs of 33
    record = read_record(run)
    assert record.steps_per_epoch == 33
    assert [round(epoch, 2) for epoch, _ in record.curve("knn_top1")][-2:] == [2, round(80 / 33, 2)]


def test_the_spread_that_is_shown_does_not_depend_on_the_width(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=())
    more = {"feature_std": 0.01, "embedding_std": 0.02, "embedding_spread": 0.75}  # as a run logs them
    change_log(run, lambda line: {**line, **more} if line["kind"] == "eval" else line)
    record = read_record(run)
    assert {"name": "spread, from 0.50", "value": "0.53"} in verdict(record)["numbers"]
    drawn = charts([record], [*MAIN, *MORE])
    assert "Spread of the features over epoch: from 0.5 to 0.53" in chart_of(drawn, "Spread of the features")
    assert "from 0.75 to 0.75" in chart_of(drawn, "Spread of the embedding")


def test_a_matrix_too_large_to_read_is_not_made_into_cells(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=tuple(f"class-{index}" for index in range(200)))
    record = read_record(run)
    tracemalloc.start()
    table = confusion(record)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (table["rows"], table["num_classes"], len(table["pairs"])) == ([], 200, 15)
    assert peak < 1e6  # 40,000 cells would take ten times as much


def test_pairs_confused_equally_often_keep_the_order_of_their_classes() -> None:
    pairs = confused_pairs([[0, 2, 1], [1, 0, 2], [2, 1, 0]], ["a", "b", "c"], num=4)
    assert [pair["truth"] + pair["guess"] for pair in pairs] == ["ab", "bc", "ca", "ac"]


def test_a_class_has_its_place_in_the_first_list_that_names_it() -> None:
    first = {"class_names": np.array(["cat", "dog"]), "labels": np.array([0, 1, 2, -1])}
    second = {"class_names": np.array(["cow", "cat"]), "labels": np.array([1, 0])}
    panels = [("x", first, None), ("y", second, None)]
    assert _places(panels) == {"": -1, "cat": 0, "dog": 1, "class 2": 2, "cow": 0}
    unlabelled = {"class_names": np.array([], str), "labels": np.full(3, -1)}
    assert _places([("x", unlabelled, None)]) == {"": -1}
