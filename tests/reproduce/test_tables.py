"""From measurements to tables: the JSON says everything, and every other form says the same."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from msvq.core.errors import BadInput
from msvq.core.files import FINISHED
from msvq.reproduce.claims import judge, judge_false_negatives
from msvq.reproduce.collect import Measured, Score, check_same_pictures, read_run
from msvq.reproduce.experiments import Cell, Request
from msvq.reproduce.formats import (
    as_csv,
    claims_csv,
    draw_curves,
    latex,
    markdown,
    notes,
    number,
    spread,
    write_page,
    write_study,
)
from msvq.reproduce.reproduce import Outcome, plan_sweep, show
from msvq.reproduce.sweep import MANIFEST
from msvq.reproduce.tables import build_result, crossings, mean_curve

# Best and last accuracy of three seeds, made up.
SCORES = {
    "mocov2": [(48.0, 47.5), (49.0, 48.8), (47.0, 47.0)],
    "ressl": [(46.0, 46.0), (47.5, 47.0), (46.0, 45.5)],
    "msv": [(47.0, 46.5), (48.0, 47.9), (48.0, 47.0)],
    "msvq": [(50.0, 49.0), (51.0, 51.0), (52.0, 51.5)],
}


def measurement(cell: str, seed: int, best: float, last: float, seconds: float = 1e-3) -> Measured:
    return Measured(
        cell=cell,
        seed=seed,
        scores={"knn": Score(last, best), "knn-all": Score(last + 1, last + 1), "probe": Score(last + 5, last + 5)},
        knn_curve=[(0, 20.0), (1, last - 5), (2, best), (3, last)],
        false_negatives={"view2": [(1, 1.0), (2, 2.0)], "view3": [(1, 1.0), (2, 2.0)], "all": [(1, 1.5), (2, 3.0)]},
        steps_per_epoch=781,
        seconds_per_picture=seconds,
        seconds=600.0,
        memory=int(1e12 * seconds),
        machine={"data_fingerprint": "x"},
    )


def made_up(name: str, **options: Any) -> tuple[Request, dict[tuple[str, str, int], Measured]]:
    request = plan_sweep(name, scale="mini", seeds=3, **options).request
    found = {}
    for (dataset, row, seed), cell in request.cells().items():
        if row in SCORES:
            best, last = SCORES[row][seed]
            seconds = 1.5e-3 if row == "msvq" else 1e-3
            found[dataset, row, seed] = measurement(cell.name, seed, best, last, seconds)
    return request, found


def result(name: str = "knn", **options: Any) -> dict[str, Any]:
    request, found = made_up(name, **options)
    return build_result(request, found, command=f"msvq reproduce {name}")


def row_of(table: dict[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in table["rows"] if row["row"] == key)["cells"]["cifar10"]
    return found


def test_a_place_of_a_table_by_hand() -> None:
    table = result()
    place = row_of(table, "msvq")
    assert place["best"] == {"mean": 51.0, "std": 1.0}
    assert place["last"]["mean"] == pytest.approx(50.5)
    assert place["published"] == 90.16
    assert place["difference"] == pytest.approx(51.5 - 90.16)  # at this scale all labels vote in the last epoch alone
    assert place["values"]["1"] == {"best": 51.0, "last": 51.0}


def test_where_all_labels_vote_the_difference_is_on_the_best_epoch() -> None:
    paper = plan_sweep("knn", scale="paper", methods=["msvq", "ressl"], datasets=["cifar10"]).request
    found = {("cifar10", row, 0): measurement(f"cifar10-{row}-s0", 0, 51.0, 50.0) for row in ("msvq", "ressl")}
    table = build_result(paper, found, command="")
    assert row_of(table, "msvq")["difference"] == pytest.approx(51.0 - 90.16)
    assert "last epoch, all labels" not in markdown(table)
    assert "MSVQ beats ReSSL" in claims_of(table) and "MSVQ beats ReSSL, by all labels" not in claims_of(table)


def test_a_row_without_published_or_measured_value_shows_a_dash() -> None:
    table = result()
    assert row_of(table, "supervised")["published"] is None
    supervised = next(line for line in markdown(table).splitlines() if line.startswith("| Supervised"))
    assert supervised == "| Supervised | - | - | - | - | - | - | - | - |"
    moco = row_of(table, "mocov2")  # the paper has no kNN of it; its authors' benchmark has
    assert (moco["published"], moco["difference"]) == (None, None)
    assert [other["value"] for other in moco["others"]] == [88.05, 87.82]


def test_both_published_values_of_ressl_are_told() -> None:
    place = row_of(result("linear"), "ressl")
    assert (place["published"], place["source"]) == (90.22, "reproduced")
    assert {other["source"]: other["value"] for other in place["others"]} == {"copied": 90.20, "benchmark": 89.97}


def test_the_probe_is_not_compared_with_the_papers_protocol() -> None:
    table = result("linear")
    assert table["measure"] == "probe"
    place = row_of(table, "msvq")
    assert place["difference"] is None
    assert place["best"] == place["last"]
    assert place["knn"]["best"]["mean"] == 51.0
    assert "not the paper's protocol" in markdown(table)


def claims_of(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {claim["claim"]: claim for claim in table["claims"]}


def test_claims_are_judged_seed_by_seed() -> None:
    claims = claims_of(result())
    held = claims["MSVQ beats MSV"]  # differences 3, 3, 4
    assert (held["verdict"], held["seeds"]) == ("held", 3)
    assert held["difference"] == pytest.approx(10 / 3)
    assert held["published_difference"] == pytest.approx(90.16 - 89.64)
    assert claims["MSV beats ReSSL"]["verdict"] == "held, within the noise"  # 1, 0.5, 2
    lost = next(claim for text, claim in claims.items() if text.startswith("ReSSL beats MoCoV2"))
    assert (lost["verdict"], lost["difference"]) == ("not held", -1.5)  # -2, -1.5, -1
    everyone = claims["MSVQ beats MSV, by all labels"]  # differences of the last epoch: 2.5, 3.1, 4.5
    assert everyone["difference"] == pytest.approx(10.1 / 3)
    assert lost["published_difference"] is None
    assert claims["MSVQ beats ReSSL"]["verdict"] == "held"
    assert claims["MSVQ beats MQ"]["verdict"] == "not measured"
    for what in ("time", "memory"):
        cost = next(claim for text, claim in claims.items() if f"times the {what} of ReSSL" in text)
        assert cost["verdict"] == "not held"
        assert cost["ratios"] == {str(seed): pytest.approx(1.5) for seed in range(3)}


@pytest.mark.parametrize("other", [{"threads": 8}, {"compiled": True}])
def test_times_of_different_machines_are_not_compared(other: dict[str, Any]) -> None:
    request, found = made_up("knn")
    place = ("cifar10", "ressl", 1)
    found[place] = replace(found[place], machine={**found[place].machine, **other})
    cost = next(
        c for c in build_result(request, found, command="")["claims"] if "times the time of ReSSL" in c["claim"]
    )
    assert list(cost["ratios"]) == ["0", "2"]


def test_times_that_a_compiler_was_waited_for_are_not_compared() -> None:
    request, found = made_up("knn")
    found = {place: replace(one, machine={**one.machine, "compiled": True}) for place, one in found.items()}
    claims = claims_of(build_result(request, found, command=""))
    ratios = {text: claim["ratios"] for text, claim in claims.items() if "of ReSSL (" in text}
    assert [len(of) for of in ratios.values()] == [0, 3]  # time, memory


def test_claims_need_their_rows() -> None:
    for methods, claim in (
        (["msvq", "mocov2"], "MSVQ beats MoCoV2 (as the tables show; the text does not claim it)"),
        (["msvq", "mq"], "MSVQ beats MQ"),
        (["ressl", "mocov2"], "ReSSL beats MoCoV2 (as the tables show; the text does not claim it)"),
    ):
        assert list(claims_of(result(methods=methods))) == [claim, f"{claim}, by all labels"]


def test_claims_of_the_ablations_on_the_papers_own_numbers() -> None:
    expected = {
        "teacher-temperature": [0.26, 0.66, 0.85, 0.28],
        "teacher-augmentation": [3.13, 6.89, 4.27, 8.65],
        "teacher-momentum": [0.58, 0.81, 0.23, 0.04],
    }
    queues = build_result(plan_sweep("queue-size", scale="paper").request, {}, command="")["claims"]
    assert all(claim["published_difference"] > 0 for claim in queues)  # no claim that the paper's own table refutes
    for name, differences in expected.items():
        request = plan_sweep(name, scale="paper").request
        claims = build_result(request, {}, command="")["claims"]
        assert [claim["published_difference"] for claim in claims] == pytest.approx(differences)
        assert {claim["verdict"] for claim in claims} == {"not measured"}


def test_all_against_one_view() -> None:
    claim = result("false-negatives")["claims"][0]
    assert claim["ratios"] == {str(seed): pytest.approx(1.5) for seed in range(3)}
    assert claim["verdict"] == "not held"
    assert claim["published_difference"] is None
    assert "| 2 times | 1.50 times ± 0.00 | 3 |" in markdown(result("false-negatives"))
    assert list(result("false-negatives")["panels"][0]["series"]) == ["X2", "X3", "all"]
    apart = {"view2": dict.fromkeys(range(3), 1.0), "all": {0: 1.85, 1: 2.15, 2: 2.0}}
    assert judge_false_negatives("cifar10", apart)["std"] == pytest.approx(0.15)  # of the ratio


@pytest.mark.parametrize(("ratio", "words"), [(1.5, "not held"), (1.8, "held"), (2.2, "held"), (2.9, "not held")])
def test_close_to_twice_has_two_sides(ratio: float, words: str) -> None:
    found = {"view2": {0: 1.0, 1: 1.0}, "view3": {0: 1.0, 1: 1.0}, "all": {0: ratio, 1: ratio}}
    assert judge_false_negatives("cifar10", found)["verdict"] == words


def numbers_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.])[+-]?\d+\.\d+", text)]


@pytest.mark.parametrize("name", ["knn", "linear", "teacher-temperature"])
def test_markdown_latex_and_csv_agree_with_the_json(name: str) -> None:
    table: dict[str, Any] = json.loads(json.dumps(result(name)))
    tables = {"markdown": markdown(table), "latex": latex(table).replace("$-$", "-")}
    for form, text in tables.items():
        for row in table["rows"]:
            start = f"| {row['label']} |" if form == "markdown" else f"{row['label']} &"
            line = next(line for line in text.splitlines() if line.startswith(start))
            place = row["cells"]["cifar10"]
            shown = numbers_in(line.split("(")[0].removeprefix(start))
            expected = [place["published"]] if place["published"] is not None else []
            parts = [place["best"], place["last"], (place["knn-all"] or {"last": None})["last"]]
            if name != "knn":
                knn = place["knn"] or {"best": None, "last": None}
                parts = [place["last"], knn["best"], knn["last"]]
            for part in parts:
                expected += [] if part is None else [part["mean"], part["std"]]
            expected += [] if place["difference"] is None else [place["difference"]]
            assert shown[: len(expected)] == pytest.approx(expected, abs=0.006), (form, line)
    lines = list(csv.DictReader(io.StringIO(as_csv(table))))
    told = {entry["row"]: entry for entry in lines if entry["measure"] == table["measure"]}
    assert list(told) == [row["row"] for row in table["rows"]]
    others = {entry["row"]: entry for entry in lines if entry["measure"] == "knn-all"}
    places = {row["row"]: row["cells"]["cifar10"]["knn-all"] for row in table["rows"]}
    expected_others = {row: place["last"]["mean"] for row, place in places.items() if place}
    assert {row: float(entry["last_mean"]) for row, entry in others.items()} == expected_others
    for key, entry in others.items():  # by all labels, as in the paper, if the table is of kNN
        place = row_of(table, key)
        compared = [place["published"], place["difference"]] if name == "knn" else [None, None]
        assert [entry["published"], entry["difference"]] == ["" if value is None else str(value) for value in compared]
    for row in table["rows"]:
        place, entry = row["cells"]["cifar10"], told[row["row"]]
        for kind in ("best", "last"):
            part = place[kind] or {"mean": None, "std": None}
            for key, value in part.items():
                assert entry[f"{kind}_{key}"] == ("" if value is None else str(value))
        assert entry["published"] == ("" if place["published"] is None else str(place["published"]))


def test_every_claim_is_a_line_of_csv() -> None:
    table = result("knn")
    lines = list(csv.DictReader(io.StringIO(claims_csv(table))))
    assert [line["claim"] for line in lines] == [claim["claim"] for claim in table["claims"]]
    for line, claim in zip(lines, table["claims"], strict=True):
        assert (line["study"], line["scale"], line["verdict"]) == ("knn", "mini", claim["verdict"])
        assert line["difference"] == ("" if claim["difference"] is None else str(claim["difference"]))
    assert result("false-negatives")["claims"][0]["published_ratio"] == 2
    assert ",2.0,1.5," in claims_csv(result("false-negatives"))


def test_the_linear_protocol_in_its_own_columns_is_compared_with_the_published_number() -> None:
    request, found = made_up("linear", linear=True)
    place = ("cifar10", "msvq", 0)
    found[place] = replace(found[place], scores={**found[place].scores, "linear": Score(60.0, 61.0)})
    table = build_result(request, found, command="msvq reproduce linear --linear")
    row = next(row for row in table["rows"] if row["row"] == "msvq")["cells"]["cifar10"]
    assert row["linear_difference"] == pytest.approx(61.0 - 91.46)
    assert f"{61.0 - 91.46:+.2f}" in markdown(table)
    lines = [line for line in csv.DictReader(io.StringIO(as_csv(table))) if line["measure"] == "linear"]
    assert [(line["row"], line["published"], line["best_mean"]) for line in lines] == [("msvq", "91.46", "61.0")]


def test_latex_escapes_what_it_must() -> None:
    text = latex(result("teacher-temperature"))
    assert r"$\tau_t$ & published" in text
    assert "±" not in text and "τ" not in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2  # numbers and claims


def test_numbers_and_spreads() -> None:
    assert (number(None), number(1.234), number(-0.5, sign=True), number(2, sign=True)) == (
        "-",
        "1.23",
        "-0.50",
        "+2.00",
    )
    assert spread({"mean": 1.0, "std": None}) == "1.00"
    assert spread({"mean": 1.0, "std": 0.25}) == "1.00 ± 0.25"


def test_mean_curves_and_their_crossings() -> None:
    assert mean_curve([[(0, 1.0), (1, 3.0)], [(0, 2.0), (1, 5.0), (2, 9.0)]])[1] == {
        "epoch": 1, "mean": 4.0, "std": pytest.approx(2**0.5),
    }  # fmt: skip
    slow = {0: [(0.0, 9.0), (1.0, 10.0), (2.0, 20.0), (3.0, 40.0)]}
    fast = {0: [(0.0, 1.0), (1.0, 20.0), (2.0, 30.0), (3.0, 35.0)]}
    once = [{"ahead": "slow", "behind": "fast", "after": 2.0, "until": 3.0, "seeds": 1, "seeds_ahead": 1}]
    assert crossings({"slow": slow, "fast": fast}) == once
    assert crossings({"slow": slow, "none": {}}) == []
    lucky = {1: [(epoch, value + 50) for epoch, value in slow[0]]}
    assert crossings({"slow": slow | lucky, "fast": fast}) == once  # by the seed that both have
    assert crossings({"slow": lucky, "fast": fast}) == []
    assert crossings({"slow": slow | {1: []}, "fast": fast | lucky}) == once  # a run without a curve is no seed


def test_a_figure_says_how_many_seeds_its_curves_have_and_where_they_cross() -> None:
    request, found = made_up("knn-curves")
    for seed in range(3):
        place = ("cifar10", "mocov2", seed)  # ahead of MSVQ by 2 points in the first epoch, behind by 1 in the second
        curve = [
            (epoch, value + (2.0 if epoch == 1 else -1.0)) for epoch, value in found["cifar10", "msvq", seed].knn_curve
        ]
        found[place] = replace(found[place], knn_curve=curve)
    del found["cifar10", "ressl", 1]
    figure = build_result(request, found, command="")
    assert figure["panels"][0]["seeds"] == {"MSVQ": 3, "ReSSL": 2, "MoCoV2": 3}
    text = markdown(figure)
    assert (
        "CIFAR-10: MSVQ overtakes MoCoV2 between epoch 1 (step 781) and epoch 2 (step 1,562), by the mean; "
        "then it is ahead in 3 of 3 seeds." in text
    )
    assert "Seeds on CIFAR-10: MSVQ 3, ReSSL 2, MoCoV2 3." in text
    assert "1 of the runs have not been made" in text


def test_curves_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    figure = result("knn-curves")
    files = draw_curves(figure, tmp_path / "knn-curves")
    assert [file.suffix for file in files] == [".png", ".svg"]
    svg = files[1].read_text()
    assert "MoCoV2" in svg and "CIFAR-10" in svg
    assert as_csv(figure).count("\n") == 1 + 3 * 4


def test_files_and_page_of_a_sweep(tmp_path: Path) -> None:
    manifest = {"scale": "mini", "cells": {"cifar10-<b>-s0": {"seconds": 3600.0, "failed": "no <memory>"}}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    for name in ("knn", "teacher-temperature"):
        files = write_study(tmp_path, result(name), [])
        assert [file.name.removeprefix(name) for file in files] == [".md", ".json", ".tex", ".csv", "-claims.csv"]
    text = write_page(tmp_path).read_text()
    for words in (
        "Temperature of the teachers",
        "51.00 ± 1.00",
        "MSVQ beats MSV",
        "no &lt;memory&gt;",
        "60 min",
        "kNN by 10,000",
    ):
        assert words in text
    assert "http" not in text.replace("https://arxiv.org", "").replace("http-equiv", "")
    (tmp_path / "results" / "knn.json").write_text("{")
    text = write_page(tmp_path).read_text()
    assert "results/knn.json is left out" in text
    assert "Temperature of the teachers" in text


def test_cells_of_different_pictures_do_not_mix() -> None:
    one, other = measurement("a-s0", 0, 1, 1), measurement("b-s0", 0, 1, 1)
    check_same_pictures({("cifar10", "a", 0): one, ("cifar10", "b", 0): other})
    foreign = Measured(cell="b-s0", seed=0, machine={"data_fingerprint": "y"})
    with pytest.raises(BadInput, match="different pictures of cifar10"):
        check_same_pictures({("cifar10", "a", 0): one, ("cifar10", "b", 0): foreign})


def test_a_claim_takes_the_best_of_its_rows_and_needs_its_margin() -> None:
    rows = ["0.01", "0.02", "0.03", "0.04", "0.05", "0.06", "0.07"]
    values = dict.fromkeys(rows, (50.0, 51.0)) | {"0.03": (52.0, 49.0), "0.04": (51.0, 53.0)}
    (claim,) = judge("teacher-temperature", "cifar10", rows, lambda row: dict(enumerate(values[row])))
    assert claim["difference"] == pytest.approx(2)  # 52 - 50 and 53 - 51
    for weak, verdict in ((51.5, "not held"), (54.5, "held")):  # by two points at least
        two = {"weak": {0: weak, 1: weak + 0.1, 2: weak - 0.1}, "strong": dict.fromkeys(range(3), 50.0)}
        (claim,) = judge("teacher-augmentation", "cifar10", ["weak", "strong"], two.__getitem__)
        assert (claim["difference"], claim["verdict"]) == (pytest.approx(weak - 50), verdict)


def test_the_last_and_the_best_epoch_of_a_protocol(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    for name in FINISHED:
        (tmp_path / name).write_text("{}")
    result = {"protocol": "linear-100/1", "kind": "linear", "top1": 60.0, "top5": 90.0, "top1_best": 61.0}
    (tmp_path / "eval" / "linear.json").write_text(json.dumps(result))
    found = read_run(Cell("paper", "cifar10", "msvq", (), 0), tmp_path, {})
    assert found is not None
    assert found.scores["linear"] == Score(last=60.0, best=61.0)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_run_says_so(tmp_path: Path, compiled: bool) -> None:
    (tmp_path / "eval").mkdir()
    for name in FINISHED:
        (tmp_path / name).write_text("{}")
    cell = Cell("smoke", "patterns", "msvq", (), 0)
    settings = cell.settings()
    train = settings.train.model_copy(update={"compile": compiled})
    (tmp_path / "config.yaml").write_text(settings.model_copy(update={"train": train}).to_yaml())
    found = read_run(cell, tmp_path, {})
    assert found is not None
    assert found.machine.get("compiled", False) == compiled


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("name", ["linear", "knn", "knn-curves", "false-negatives"])
def test_a_terminal_shows_every_word(name: str, width: int, tmp_path: Path) -> None:
    console = Console(record=True, width=width, file=(tmp_path / "out").open("w"))
    show(Outcome(result(name), [tmp_path / "report.html", tmp_path / "x.md"], {"a cell": "no memory"}), console)
    told = console.export_text()
    assert "…" not in told
    assert "failed: a cell: no memory" in told
    if name in ("linear", "knn"):
        assert "MSVQ beats MSV" in told
        assert ("also published" in " ".join(told.split())) == (width > 100)
    if width > 100:
        assert "- MSVQ beats" not in told


def test_the_machines_and_their_hours_are_told() -> None:
    table = result(methods=["msvq", "ressl"])
    assert not any("in all" in note for note in notes(table))  # of machines that nobody knows
    old = {"device_name": "Xeon", "threads": 1, "precision": "fp32"}
    for cell, seconds, machine in zip(
        table["cells"].values(),
        (3600.0, 1800.0, 9000.0, None, 360.0, 40.0),
        (old, old, old, old, {**old, "threads": 2, "compiled": True}, {"device_name": "GPU"}),
        strict=True,
    ):
        cell |= {"seconds": seconds, "machine": machine}
    assert notes(table)[-3:] == [
        "3 runs on Xeon, 1 thread each, fp32: 4.0 h in all, 30 min to 2.5 h each.",
        "1 run on Xeon, 2 threads each, fp32, compiled: 6.0 min in all, 6.0 min each.",
        "1 run on GPU, unknown precision: 40 s in all, 40 s each.",
    ]


def test_a_measure_of_fewer_seeds_says_so_in_the_csv() -> None:
    request, found = made_up("linear", methods=["msvq"])
    place = ("cifar10", "msvq", 0)
    found[place] = replace(found[place], scores={**found[place].scores, "linear": Score(60.0, 61.0)})
    lines = csv.DictReader(io.StringIO(as_csv(build_result(request, found, command=""))))
    assert {line["measure"]: line["seeds"] for line in lines} == {
        "probe": "3", "linear": "1", "knn": "3", "knn-all": "3",
    }  # fmt: skip
