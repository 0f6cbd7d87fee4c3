"""Figures on disk: the paper's 4, 5 and 6 of one's own runs."""

from pathlib import Path

from PIL import Image
from tests.report.fixtures import make_run

from msvq.report.figures import draw_figures
from msvq.report.page import write_report
from msvq.report.records import read_records

ALL = {f"{name}.{kind}" for name in ("knn", "false_negatives", "map") for kind in ("png", "svg")}


def test_figures_of_a_run_and_of_two(tmp_path: Path) -> None:
    names = ("$x_{", "_hidden", "<b>")  # as a formula the first would be an error; legends leave out the second
    runs = [make_run(tmp_path / name, names=names) for name in ("one", "two")]
    write_report(runs, tmp_path / "page.html")
    for folder in (runs[0] / "figures", runs[1] / "figures", tmp_path / "page-figures"):
        assert {path.name for path in folder.iterdir()} == ALL
    with Image.open(runs[0] / "figures" / "knn.png") as picture:
        assert picture.width > 800
    curves = (tmp_path / "page-figures" / "knn.svg").read_text()
    for words in ("epoch", "kNN accuracy (%)", "one", "two"):
        assert f">{words}<" in curves or f"> {words}<" in curves
    shown = (runs[0] / "figures" / "map.svg").read_text()
    for words in ("before training", "after training", "$x_{", "_hidden", "&lt;b&gt;"):
        assert words in shown
    found = (runs[0] / "figures" / "false_negatives.svg").read_text()
    for view in ("view2", "view3", "view4", "all"):
        assert f"{view}<" in found


def test_without_labels_there_is_only_the_map(tmp_path: Path) -> None:
    records = read_records([make_run(tmp_path / "run", names=())])
    written = draw_figures(records, tmp_path / "out")
    assert {path.name for path in written} == {"map.png", "map.svg"}


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    records = read_records([make_run(tmp_path / "run")])
    first = [path.read_bytes() for path in draw_figures(records, tmp_path / "a")]
    assert first == [path.read_bytes() for path in draw_figures(records, tmp_path / "b")]
