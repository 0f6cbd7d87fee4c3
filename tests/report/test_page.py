"""The report: self-contained, escaped, and its curves are the numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from msvq.report.chart import line_chart, ticks
from msvq.report.page import smooth, write_report

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / HOSTILE.replace("/", "")
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"method": {"name": "msvq"}, "data": {"source": HOSTILE}}))
    (path / "environment.json").write_text(json.dumps({"torch": HOSTILE}))
    lines = [{"kind": "step", "step": s, "loss": 5 - s / 100} for s in range(0, 100, 10)]
    lines += [{"kind": "eval", "epoch": e, "step": e, "knn_top1": 30.0 + e} for e in range(4)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rng = np.random.default_rng(0)
    np.savez(
        path / "eval" / "neighbours.npz",
        queries=rng.integers(256, size=(2, 8, 8, 3), dtype=np.uint8),
        query_labels=np.array([0, 1]),
        before=rng.integers(256, size=(2, 3, 8, 8, 3), dtype=np.uint8),
        before_labels=np.array([[0, 1, 1], [0, 0, 0]]),
        after=rng.integers(256, size=(2, 3, 8, 8, 3), dtype=np.uint8),
        after_labels=np.array([[0, 0, 0], [1, 1, 0]]),
        class_names=np.array([HOSTILE, "plain"]),
    )
    return path


def test_page_is_self_contained_and_escaped(run: Path) -> None:
    page = write_report(run).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "@import" not in page
    assert "url(" not in page


def test_page_shows_curves_and_neighbours(run: Path) -> None:
    page = write_report(run).read_text()
    assert page.count("<svg") == 2
    assert "kNN accuracy over epoch: from 30 to 33 %" in page
    assert page.count("<figure") == 2 * (1 + 3 + 3)
    assert page.count('<figure class="same"') == 1 + 0 + 3 + 2
    assert page.count("✓") == 6 + 1  # one in the legend


def test_a_run_without_anything_yet_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"method": {"name": "msvq"}, "data": {"source": "x"}}))
    assert "<svg" not in write_report(tmp_path).read_text()


def test_chart_places_its_points() -> None:
    svg = line_chart([(0, 0.0), (5, 10.0), (10, 5.0)], x_label="x", y_label="y")
    match = re.search(r'points="([^"]*)"', svg)
    assert match is not None
    points = [tuple(map(float, p.split(","))) for p in match[1].split()]
    assert [x for x, _ in points] == [46.0, 292.0, 538.0]
    assert [y for _, y in points] == [244.0, 14.0, 129.0]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (13.7, 66.2), (0, 2000), (5.01, 5.02), (3, 3), (-2, 4)])
def test_ticks_are_round_and_cover_the_range(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low + 1e-9
    assert marks[-1] >= high - 1e-9
    assert 2 <= len(marks) <= 8


def test_smoothing_keeps_the_mean() -> None:
    points = [(float(x), float(x % 7)) for x in range(1000)]
    curve = smooth(points)
    assert len(curve) == 200
    assert np.mean([y for _, y in curve]) == pytest.approx(np.mean([y for _, y in points]))
