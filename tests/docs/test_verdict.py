"""The check of the verdict against hidden labels: it holds, and the page says what the file says."""

import json
from pathlib import Path

import pytest
from benchmarks.verdict import is_wrongly_green, table

ROOT = Path(__file__).parents[2]
CHECKED = json.loads((ROOT / "benchmarks" / "verdict.json").read_text())


def test_the_page_has_the_table_of_what_was_measured() -> None:
    assert table(CHECKED) in (ROOT / "docs" / "reading-the-report.md").read_text()


@pytest.mark.parametrize("name", CHECKED)
def test_the_order_by_copies_agrees_with_that_by_hidden_labels(name: str) -> None:
    assert len(CHECKED[name]["runs"]) >= 10 and CHECKED[name]["rank_correlation"] >= 0.8


@pytest.mark.parametrize("name", CHECKED)
def test_no_run_that_is_worse_than_untrained_or_a_histogram_is_called_good(name: str) -> None:
    runs = CHECKED[name]["runs"].values()
    assert CHECKED[name]["wrongly_green"] == [] and not any(map(is_wrongly_green, runs))
    assert {"good", "too-short"} <= {run["state"] for run in runs}
