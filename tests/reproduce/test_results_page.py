"""A sweep's results in the repository: the files, and the page that shows them."""

import json
import runpy
import shlex
from pathlib import Path

import pytest
from tests.reproduce.test_tables import result

from msvq.core.errors import BadInput
from msvq.reproduce.collect import collect
from msvq.reproduce.formats import write_study
from msvq.reproduce.reproduce import plan_sweep
from msvq.reproduce.sweep import MANIFEST
from msvq.reproduce.tables import build_result

script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "take_results.py"))
take, refresh_page, num_blocks = script["take"], script["refresh_page"], script["num_blocks"]


def test_results_figures_and_page_are_taken(tmp_path: Path) -> None:
    sweep, root = tmp_path / "sweep", tmp_path / "root"
    sweep.mkdir()
    (sweep / MANIFEST).write_text(json.dumps({"scale": "mini", "cells": {}}))
    write_study(sweep, result(), [])
    (sweep / "results" / "knn-curves.svg").write_text("<svg/>")
    page = root / "docs" / "results.md"
    page.parent.mkdir(parents=True)
    page.write_text("<!-- result: ../results/mini/knn.json -->\n<!-- end of result -->\n")
    written = [str(path.relative_to(root)) for path in take(sweep, root)]
    assert written == ["docs/images/mini-knn-curves.svg", "results/mini/knn.json", "docs/results.md"]
    assert "51.00 ± 1.00" in page.read_text()
    with pytest.raises(BadInput, match="no sweep with results"):
        take(tmp_path, root)


def test_a_pages_tables_are_regenerated_from_json(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "knn.json").write_text(json.dumps(result()))
    page = tmp_path / "docs" / "results.md"
    start, end = "<!-- result: ../results/knn.json, figure: images/knn.svg -->", "<!-- end of result -->"
    page.write_text(f"# Results\n\n{start}\n99.99 typed by hand\n{end}\n\nDiscussion.\n")
    text = refresh_page(page)
    assert "typed by hand" not in text
    assert "51.00 ± 1.00" in text and "(images/knn.svg)" in text
    assert text.startswith("# Results\n") and text.endswith("Discussion.\n")
    page.write_text(text)
    assert (refresh_page(page), num_blocks(text)) == (text, 1)
    for wrong in (text.replace(end, ""), text.replace(start, start.replace(" -->", "-->")), text + start, text + end):
        page.write_text(wrong)
        with pytest.raises(BadInput, match="not one of a pair"):
            refresh_page(page)
    page.write_text(text.replace("knn.json", "gone.json"))
    with pytest.raises(BadInput, match="which is not there"):
        refresh_page(page)


OWN = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("folder", sorted(OWN.iterdir()), ids=lambda folder: str(folder.name))
def test_the_projects_own_tables_are_made_of_its_cells(folder: Path) -> None:
    """Every file in results/SCALE comes out of results/SCALE/cells again, by its own command."""
    files = sorted(folder.glob("*.json"))
    assert {file.stem for file in files} >= {"knn-curves", "false-negatives"}
    assert folder.name != "mini" or {file.stem for file in files} >= {"linear", "knn"}
    for file in files:
        expected = json.loads(file.read_text(encoding="utf-8"))
        words = shlex.split(expected["command"])
        given = dict(zip(words[3::2], words[4::2], strict=True))
        sweep = plan_sweep(
            words[2],
            scale=given["--scale"],
            epochs=int(given["--epochs"]) if "--epochs" in given else None,
            methods=given["--methods"].split(",") if "--methods" in given else None,
            seeds=int(given["--seeds"]) if "--seeds" in given else None,
            out=folder / "no sweep",
            known=folder,
        )
        assert sweep.request.scale.name == folder.name
        request, found = collect(sweep.request, sweep.out, {}, sweep.known)
        made = build_result(request, found, command=expected["command"])
        assert json.loads(json.dumps(made)) == expected, file.name


def test_the_projects_own_page_shows_what_its_files_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "results.md"
    text = page.read_text(encoding="utf-8")
    assert num_blocks(text) > 0
    assert refresh_page(page) == text
