"""The benchmark of what is found of what was planted: on a few drawn pictures, and its table in the docs."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from msvq.data.patterns import make_patterns

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "your-own-pictures.md"
MEASURED = json.loads((ROOT / "benchmarks" / "planted.json").read_text(encoding="utf-8"))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("planted")


@pytest.fixture
def drawn() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Sixteen pictures of each of three classes."""
    images, labels = make_patterns(160, seed=0)
    return images[labels < 3], labels[labels < 3]


def test_planting_is_the_same_every_time_and_all_of_it_is_there(planted: Any, drawn: Any, tmp_path: Path) -> None:
    amounts = planted.Amounts(classes=2, pictures=None, examples=2, copies=1, odd=1, wrong=1)
    first, second = (planted.plant(tmp_path / name, *drawn, amounts, False) for name in ("a", "b"))
    assert first == second == planted.open_planted(tmp_path / "a")
    names = {path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").rglob("*.jpg")}
    copies = {name for pairs in first.copies.values() for _, name in pairs}
    odd = {name for kind in first.odd.values() for name in kind}
    assert names == {*first.classes, *copies, *odd}
    assert len(names) == 28 + len(planted.COPIES) + len(planted.ODD)
    assert [first.classes[name] != name.split("/")[0] for name in first.wrong] == [True]
    [[original, copy]] = first.copies["equal files"]
    assert (tmp_path / "a" / original).read_bytes() == (tmp_path / "a" / copy).read_bytes()


def test_a_large_photograph_is_upright_by_its_note(planted: Any, drawn: Any, tmp_path: Path) -> None:
    image = planted.make(drawn[0], 0, large=True)
    planted.save(image, tmp_path / "x.jpg", note=6)
    with Image.open(tmp_path / "x.jpg") as stored:
        assert stored.size == image.size[::-1]
        assert planted.ImageOps.exif_transpose(stored).size == image.size == planted.SIZES[0]


def test_it_counts_what_pixels_find_and_keeps_what_is_known(
    planted: Any, drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "drawn.npz", images=drawn[0], labels=drawn[1])
    out = tmp_path / "found.json"
    out.write_text('{"others": {}}')
    monkeypatch.setattr(planted, "SMALL", planted.Amounts(None, None, 2, 1, 1, 2))
    words = [str(tmp_path / "drawn.npz"), "--folder", str(tmp_path / "files"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["planted.py", *words, "--encoder", "no net=pixels"])
    planted.main()
    known = json.loads(out.read_text())
    assert [*known] == ["others", "drawn"]
    found = known["drawn"]["encoders"]["no net"]
    assert found["duplicates"]["found"]["equal files"] == 1
    assert found["mislabelled"]["found"] <= known["drawn"]["wrong"] == 2
    assert found["select"]["classes"] <= known["drawn"]["classes"] == 3
    assert 100 / 3 <= found["cluster"]["purity"] <= 100
    assert "| equal files | 1 |\n" in capsys.readouterr().out


def test_copies_count_with_their_original_and_a_strange_group_is_told(
    planted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = {"mirrored": [["a", "b"], ["c", "d"]], "turned by a half": [["e", "f"]]}
    facts = planted.Planted({}, pairs, {"blank": ["y", "z"]}, [])
    columns = ("group", "kind", "file", "copy_of")
    listed = [(1, "best", "a", ""), (1, "mirrored", "b", "a"), (2, "best", "d", ""), (2, "turned", "x", "d")]
    listed += [(3, "best", "f", ""), (3, "cropped", "e", "f"), (4, "best", "y", ""), (4, "exact", "z", "y")]
    found = planted.count_copies([dict(zip(columns, row, strict=True)) for row in listed], facts)
    assert found["found"] == {"mirrored": 1, "turned by a half": 1}
    assert found["with the right kind"] == 1
    assert found["groups that were not planted"] == 1
    assert capsys.readouterr().out == "not planted: d x\n"


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_has_the_table_of_what_was_measured(planted: Any, name: str) -> None:
    assert planted.table(MEASURED[name]) in PAGE.read_text(encoding="utf-8")
