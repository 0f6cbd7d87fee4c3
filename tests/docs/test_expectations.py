"""docs/what-to-expect.md: its figure and its table are what the script makes of the measured runs, few or many."""

import json
import re
from statistics import mean
from typing import Any

import pytest
from docs.draw_expectations import (
    BLOCK,
    CONTENDERS,
    FIGURE,
    PAGE,
    RUNS,
    by,
    drawing,
    last_layer,
    machine,
    make_block,
    refresh,
)

from msvq.config.budget import EXPECTED

MEASURED = json.loads(RUNS.read_text(encoding="utf-8"))["runs"]


def run(contender: str, minutes: float, top1: float, *, seed: int = 0, **more: Any) -> dict[str, Any]:
    here = {"data": "cifar10", "classes": 10, "size": 32, "processor": "A", "threads": 2, "bf16": True}
    curve = [{"minutes": minutes / 2, "knn_top1": top1 - 5}, {"minutes": minutes, "knn_top1": top1}]
    pace = {"network": "resnet8 width 32", "stages": []}
    return here | {"contender": contender, "minutes": minutes, "seed": seed, "pace": pace, "curve": curve} | more


RUNS_OF_A_FEW = [
    run("ours", 10, 41.3),
    run("budget", 10, 61.0, seed=1),
    run("budget", 10, 60.0),
    run("budget", 0.5, 48.2),
    run("lightly-byol", 480, 71.2),
    run("budget", 480, 70.1, pace={"network": "resnet14 width 64", "stages": []}),
    run("budget", 10, 21.4, data="tinyimagenet", classes=40, size=64),
    run("budget", 10, 55.5, processor="B", bf16=False),
]


def numbers_of(block: str) -> tuple[set[str], set[str]]:
    """The minutes at the head of its tables, and the accuracies in them."""
    rows = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("|") and "---" not in line]
    minutes = {cell.strip() for row in rows if row[0].startswith(" kNN") for cell in row[1:]}
    cells = [cell for row in rows if not row[0].startswith(" kNN") for cell in row[1:]]
    return minutes, set(re.findall(r"[\d.]+", " ".join(cells)))


def test_the_page_and_its_figure_are_made_of_the_measured_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == 1
    assert refresh(text, MEASURED) == text
    assert FIGURE.read_text(encoding="utf-8") == drawing(MEASURED)
    assert f"({FIGURE.relative_to(PAGE.parent)})" in text


@pytest.mark.parametrize("runs", [MEASURED, RUNS_OF_A_FEW], ids=["measured", "a few"])
def test_every_number_of_the_table_is_a_runs_and_every_run_is_there(runs: list[dict[str, Any]]) -> None:
    block = make_block(runs)
    for ones in by(machine, runs).values():
        block = block.replace(last_layer(ones), "")
    minutes, accuracies = numbers_of(block)
    assert minutes == {f"{one['minutes']:g}" for one in runs}
    assert accuracies == {f"{one['curve'][-1]['knn_top1']:.1f}" for one in runs}


def test_measured_runs_say_what_they_are_of() -> None:
    for one in MEASURED:
        assert one["contender"] in CONTENDERS
        assert {"data", "minutes", "seed", "steps", "curve", "pace", "processor", "bf16", "threads"} <= one.keys()


def test_what_a_plan_promises_was_measured() -> None:
    cifar = [one for one in MEASURED if (one["data"], one["contender"]) == ("cifar10", "budget")]
    for steps, percent in EXPECTED:
        found = [one["curve"][-1]["knn_top1"] for one in cifar if one["steps"] == steps]
        assert found and percent == round(mean(found))


def test_the_leader_is_bold_where_several_were_measured() -> None:
    block = make_block(RUNS_OF_A_FEW)
    first, second = block.split("On B, 2 threads, bf16 not native:")
    assert "| msvq with a budget | 48.2 | **60.0, 61.0** | 70.1 |" in first
    assert "| MSVQ as in the paper |  | 41.3 |  |" in first
    assert "| lightly's BYOL |  |  | **71.2** |" in first
    assert "- CIFAR-10, 10 classes, 32 px: lightly's BYOL leads after 480 min." in first
    assert "- CIFAR-10, 10 classes, 32 px: msvq took resnet14 width 64 for 480 min." in first
    assert "| **Tiny ImageNet, 40 classes, 64 px** | | | |\n| msvq with a budget |  | 21.4 |  |" in first
    assert "leads" not in second


def test_what_whitening_is_worth_stands_below_for_all() -> None:
    runs = [run("budget", 10, 75.0, seed=seed) for seed in (0, 1)] + [run("lightly-byol", 10, 50.0)]
    for one, plain in zip(runs, (66.0, 67.0, 50.0), strict=True):
        one["curve"][-1] |= {"knn_plain": plain, "knn_whitened": 75.0}
    block = make_block([*runs, run("ours", 10, 40.0)])
    assert "| CIFAR-10, 10 classes, 32 px | msvq with a budget | 10 | 66.5 | 75.0 |" in block
    assert "| CIFAR-10, 10 classes, 32 px | lightly's BYOL | 10 | 50.0 | 75.0 |" in block
    assert "| MSVQ as in the paper | 10 |" not in block


def test_the_figure_has_a_dot_for_every_run_within_its_panel() -> None:
    places = re.findall(r'<circle cx="([\d.-]+)" cy="([\d.-]+)"', drawing(RUNS_OF_A_FEW))
    assert len(places) == len(RUNS_OF_A_FEW)
    frames = [
        tuple(map(float, frame))
        for frame in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', drawing(RUNS_OF_A_FEW))
    ]
    assert len(frames) == 3  # two data sets, and another machine
    for x, y in ((float(x), float(y)) for x, y in places):
        assert any(a <= x <= a + width and b <= y <= b + height for a, b, width, height in frames)


def test_without_a_run_the_page_says_so() -> None:
    assert "No run is measured yet." in drawing([])
    assert make_block([]) == "No run is measured yet.\n"
