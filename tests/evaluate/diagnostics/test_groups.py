"""Groups and odd ones for the page of a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.report.fixtures import HOSTILE, make_run

from msvq.data.store import ImageSplit
from msvq.evaluate.diagnostics.groups import FEWEST, NUM_TYPICAL, save_groups
from msvq.report.page import write_report
from msvq.report.records import read_record


def pictures(num: int) -> ImageSplit:
    """Grey noise; the first is nearly empty, the second red."""
    images = np.random.default_rng(0).integers(60, 200, size=(num, 16, 16, 1), dtype=np.uint8).repeat(3, axis=3)
    images[0] = 128
    images[1, ..., 1:] = 0
    names = [f"{HOSTILE}{index}.png" for index in range(num)]
    return ImageSplit(images, np.full(num, -1, np.int64), names=names)


def features(num: int, kinds: int = 3) -> torch.Tensor:
    """Around a few far centres, in turn."""
    noise = torch.randn(num, 8, generator=torch.Generator().manual_seed(0)) / 20
    return torch.eye(8)[torch.arange(num) % kinds] + noise


def test_groups_are_those_that_there_are_and_odd_ones_say_why(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=())
    save_groups(run / "eval" / "groups.npz", pictures(30), features(30))
    found = read_record(run).arrays("groups")
    assert found["sizes"].tolist() == [10, 10, 10]
    assert found["tightness"].min() > 0.9
    kinds = [int(name.removeprefix(HOSTILE).removesuffix(".png")) % 3 for name in found["typical_names"]]
    assert len(kinds) == 3 * NUM_TYPICAL
    assert len(set(zip(kinds, found["typical_groups"].tolist(), strict=True))) == 3  # each group is of one kind
    assert dict(zip(found["odd_names"], found["odd_reasons"], strict=True)) == {
        f"{HOSTILE}0.png": "nearly empty or uniform",
        f"{HOSTILE}1.png": "another colour",
    }
    page = write_report(run, figures=False).read_text()
    assert "30 pictures in 3 groups by their features" in page and page.count("10 pictures <small>") == 3
    assert "<h2>Odd ones</h2>" in page and "<figcaption>nearly empty or uniform</figcaption>" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize("num", [FEWEST - 1, 40])
def test_nothing_is_said_of_too_few_pictures_or_by_an_encoder_that_collapsed(tmp_path: Path, num: int) -> None:
    save_groups(tmp_path / "groups.npz", pictures(num), torch.ones(num, 8) if num >= FEWEST else features(num))
    assert not (tmp_path / "groups.npz").exists()
    run = make_run(tmp_path / "run", names=())
    (run / "eval" / "groups.npz").unlink()
    page = write_report(run, figures=False).read_text()
    assert "Groups of alike pictures" not in page and "Odd ones" not in page
