"""msvq duplicates: every pair above the threshold is found, whatever the blocks."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.search.conftest import Says

import msvq
from msvq.search import duplicates
from msvq.search.duplicates import find_duplicates, link
from msvq.search.index import unit_rows
from msvq.search.inputs import Inputs


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9, 0.99, 1.0])
def test_groups_and_nearest_against_the_whole_matrix(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "ROWS", 16)
    monkeypatch.setattr(duplicates, "COLUMNS", 48)
    generator = np.random.default_rng(1)
    features = generator.normal(size=(150, 6)).astype(np.float32)
    features[100:110] = features[:10]
    features = unit_rows(features)
    links = link(features, threshold, torch.device("cpu"))
    cosines = features @ features.T
    np.fill_diagonal(cosines, -2)
    near = cosines >= threshold - 1e-6
    group = np.arange(150)
    for _ in range(150):  # the slow way to connected components
        group = np.minimum(group, np.where(near, group[None], 150).min(1))
    np.testing.assert_array_equal(links.first, group)
    joined = near.any(1)
    np.testing.assert_array_equal(links.nearest >= 0, joined)
    np.testing.assert_allclose(links.best[joined], cosines.max(1)[joined], atol=1e-6)
    assert all(cosines[i, links.nearest[i]] >= cosines[i].max() - 1e-6 for i in np.flatnonzero(joined))


def test_copies_are_found_by_command(says: Says, small_run: msvq.Run, photos: Path) -> None:
    shutil.copy(photos / "beach" / "03.png", photos / "city" / "same.png")
    Image.open(photos / "beach" / "05.png").resize((96, 80)).save(photos / "city" / "larger.jpg", quality=95)
    out, page = photos.parent / "duplicates.csv", photos.parent / "duplicates.html"
    code, said, _ = says(
        "duplicates", small_run.path, "--data", photos, "--out", out, "--html", page, "--threshold", 0.999
    )
    assert code == 0
    assert "at a cosine of 0.999 or more" in said
    rows = list(csv.DictReader(out.open()))
    groups = [{row["file"] for row in rows if row["group"] == number} for number in {row["group"] for row in rows}]
    assert any({"beach/03.png", "city/same.png"} <= group for group in groups)
    same = next(row for row in rows if row["file"] == "city/same.png")
    assert (same["nearest"], same["similarity"]) == ("beach/03.png", "1.000000")
    assert page.read_text().count("<figure>") == len(rows)


def test_equal_pictures_only(small_run: msvq.Run, photos: Path) -> None:
    for name in ("one.png", "two.png"):
        shutil.copy(photos / "beach" / "03.png", photos / "city" / name)
    found = find_duplicates(Inputs(small_run, str(photos)), threshold=1.0)
    members = {member.name: member.class_name for member in found.groups[0]}
    assert members == {"beach/03.png": "beach", "city/one.png": "city", "city/two.png": "city"}


def test_a_crowd_is_told(says: Says, small_run: msvq.Run, photos: Path) -> None:
    code, said, _ = says("duplicates", small_run.path, "--data", photos, "--threshold", 0.01, "--top", 1)
    assert code == 0
    assert "one group holds 30 pictures" in said
    assert "and 25 more" in said


def test_mistakes_get_one_sentence(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    for words, expected in (
        (["--threshold", "1.5"], "--threshold is a cosine above 0 and at most 1"),
        (["--out", tmp_path / "d.xlsx"], "should end in .csv"),
        (["--out", tmp_path / "none" / "d.csv"], "there is no folder"),
        (["--html", tmp_path / "d.csv"], "should end in .html or .htm"),
    ):
        code, said, error = says("duplicates", small_run.path, "--data", photos, *words)
        assert code == 2
        assert expected in error
        assert not said
