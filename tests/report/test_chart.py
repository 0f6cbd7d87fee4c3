"""Charts: the curves are the numbers, and no series is told by its colour alone."""

import re
from itertools import combinations
from typing import Any

import pytest

from msvq.report.chart import Series, line_chart, tell, ticks
from msvq.report.templates import templates

POINTS = [(0.0, 0.0), (5.0, 10.0), (10.0, 5.0)]


def test_chart_places_its_points() -> None:
    svg = line_chart([Series("", POINTS)], x_label="x", y_label="y")
    match = re.search(r'points="([^"]*)"', svg)
    assert match is not None
    points = [tuple(map(float, p.split(","))) for p in match[1].split()]
    assert [x for x, _ in points] == [38.0, 191.0, 344.0]
    assert points[0][1] == 184.0  # the axis
    assert points[2][1] == (184.0 + points[1][1]) / 2


def test_series_differ_without_colour() -> None:
    macros: Any = templates().get_template("chart.html").module
    looks = [re.sub(r"s\d", "", macros.swatch(style)) for style in range(6)]
    assert all(one != other for one, other in combinations(looks, 2))


def test_several_series_have_a_legend_with_their_last_values() -> None:
    svg = line_chart([Series("<a>", POINTS), Series("b", POINTS[:2], 1)], x_label="x", y_label="y", unit=" %")
    assert "<span>&lt;a&gt;</span><b>5.0 %</b>" in svg
    assert "<span>b</span><b>10.0 %</b>" in svg
    assert 'aria-label="y over x: &lt;a&gt; from 0.0 % to 5.0 %; b from 0.0 % to 10.0 %"' in svg


def test_a_flat_curve_and_a_far_one() -> None:
    assert "polyline" in line_chart([Series("", [(1.0, 3.0), (2.0, 3.0)])], x_label="x", y_label="y")
    assert tell(1e-5, [0.0, 0.5]) == "≈ 0"
    assert tell(0.12345, [0.5]) == "0.1235"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (13.7, 66.2), (0, 2000), (5.01, 5.02), (3, 3), (-2, 4)])
def test_ticks_are_round_and_cover_the_range(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low + 1e-9
    assert marks[-1] >= high - 1e-9
    assert 2 <= len(marks) <= 8
