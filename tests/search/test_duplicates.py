"""msvq duplicates: planted copies are found by their kinds, and other pictures are left alone."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.search.conftest import Says, save_arrays
from tests.search.test_same_picture import photograph, saved, square

import msvq
from msvq.core.console import Display
from msvq.search import duplicates
from msvq.search.duplicates import _best_of, compare_pairs, find_candidates, find_duplicates
from msvq.search.index import unit_rows
from msvq.search.inputs import Inputs, open_files


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Twenty pictures that differ, and copies of the first six of them."""
    folder = tmp_path / "album"
    folder.mkdir()
    pictures = [photograph(seed) for seed in range(20)]
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number:02}.png")
    shutil.copy(folder / "00.png", folder / "00-equal.png")
    pictures[1].resize((90, 90)).save(folder / "01-smaller.jpg", quality=60)
    pictures[2].rotate(90).save(folder / "02-turned.png")
    pictures[3].transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "03-mirrored.jpg", quality=80)
    pictures[4].crop((8, 8, 144, 144)).save(folder / "04-cropped.png")
    pictures[5].resize((320, 320)).save(folder / "05-larger.png")
    return folder


def test_planted_copies_are_found_by_command(says: Says, small_run: msvq.Run, album: Path) -> None:
    out, page, into = (album.parent / name for name in ("d.csv", "d.html", "review"))
    code, said, _ = says("duplicates", small_run.path, "--data", album, "--out", out, "--html", page, "--into", into)
    assert code == 0
    assert "12 of 26 pictures" in said and "in 6 groups" in said
    rows = list(csv.DictReader(out.open()))
    kinds = {frozenset((row["copy_of"], row["file"])): row["kind"] for row in rows if row["kind"] != "best"}
    assert kinds == {
        frozenset(("00.png", "00-equal.png")): "exact",
        frozenset(("01.png", "01-smaller.jpg")): "saved again or resized",
        frozenset(("02.png", "02-turned.png")): "turned",
        frozenset(("03.png", "03-mirrored.jpg")): "mirrored",
        frozenset(("04.png", "04-cropped.png")): "cropped",
        frozenset(("05.png", "05-larger.png")): "saved again or resized",
    }
    assert {row["file"] for row in rows if row["kind"] == "best"} >= {"01.png", "04.png", "05-larger.png"}
    assert page.read_text().count("<figure>") == 12
    links = sorted(into.rglob("*.*"))
    assert len(links) == 12
    assert all(link.resolve().parent == album.resolve() for link in links)


def test_crops_are_found_whatever_the_features_say(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [photograph(seed) for seed in range(40)]
    crops = [whole.crop((place, 48 - place, 112 + place, 160 - place)) for place, whole in enumerate(wholes)]
    squares = np.stack([square(saved(image, 40)) for image in (*wholes, *crops)])
    features = unit_rows(np.random.default_rng(0).standard_normal((80, 64), np.float32))
    planted = {(row, 40 + row) for row in range(40)}
    found = {(one, other) for one, other in find_candidates(features, squares, Display()).T.tolist()}
    assert len(planted & found) >= 39
    monkeypatch.setattr(duplicates, "MOST_PARTED", 79)
    assert len(planted & {(a, b) for a, b in find_candidates(features, squares, Display()).T.tolist()}) < 39


def test_no_picture_is_proposed_as_its_own_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    squares = np.tile(square(photograph(0)), (9, 1, 1, 1))
    pairs = duplicates._likely_crops(squares, Display())
    assert (pairs[0] != pairs[1]).all()
    assert np.bincount(pairs[0], minlength=9).max() <= duplicates.NEIGHBOURS


def test_alike_pictures_are_listed_only_when_asked_for(says: Says, small_run: msvq.Run, album: Path) -> None:
    code, said, _ = says("duplicates", small_run.path, "--data", album, "--threshold", 0.01, "--json")
    assert code == 0
    rows, about = (json.loads(said)[key] for key in ("rows", "about"))
    alike = {row["group"] for row in rows if row["kind"] == "alike"}
    likes, copies = ({row["file"] for row in rows if (row["group"] in alike) == wanted} for wanted in (True, False))
    assert "12 of 26 pictures in" in about and f"; {len(likes - copies)} others are merely alike" in about
    assert {row["kind"] for row in rows} >= {"alike", "exact", "cropped"}
    assert len([row for row in rows if row["kind"] in ("best", "alike")]) > 12


def test_an_exact_copy_of_a_symmetric_picture_is_exact(
    small_run: msvq.Run, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To which position the best correlation belongs is chance there."""

    def mirrored(*given: Any) -> Any:
        change = compare_pairs(*given)
        return np.where(change == 1, 3, change)

    monkeypatch.setattr(duplicates, "compare_pairs", mirrored)
    found = find_duplicates(Inputs(small_run, str(album)))
    kinds = {(row["kind"], frozenset((row["file"], row["copy_of"]))) for row in found.records()}
    assert ("exact", frozenset(("00.png", "00-equal.png"))) in kinds
    assert ("mirrored", frozenset(("01.png", "01-smaller.jpg"))) in kinds


def test_the_best_picture_has_the_most_pixels(tmp_path: Path) -> None:
    Image.new("RGB", (200, 200)).save(tmp_path / "square.png")
    Image.new("RGB", (1000, 100)).save(tmp_path / "wide.png")
    source = open_files([tmp_path / "square.png", tmp_path / "wide.png"])
    assert _best_of(source, np.arange(2)) == 1


def test_equal_arrays_are_exact(small_run: msvq.Run, tmp_path: Path) -> None:
    save_arrays(tmp_path / "x.npz")
    images = np.load(tmp_path / "x.npz")["images"]
    np.savez(tmp_path / "x.npz", images=np.concatenate([images, images[3:4], images[3:4]]))
    found = find_duplicates(Inputs(small_run, str(tmp_path / "x.npz")))
    assert set(found.members[0]) >= {3, len(images), len(images) + 1}
    assert {row[1] for row in found.rows if row[2] in (f"train {len(images)}", f"train {len(images) + 1}")} == {"exact"}


def test_mistakes_get_one_sentence(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    for words, expected in (
        (["--threshold", "1.5"], "--threshold is a cosine above 0 and at most 1"),
        (["--out", tmp_path / "d.xlsx"], "should end in .csv or .json"),
        (["--out", tmp_path / "none" / "d.csv"], "there is no folder"),
        (["--html", tmp_path / "d.csv"], "should end in .html or .htm"),
        (["--into", photos / "beach"], "holds something already"),
        (["--into", photos / "new"], "lies among the pictures"),
    ):
        code, said, error = says("duplicates", small_run.path, "--data", photos, *words)
        assert code == 2
        assert expected in error
        assert not said
