"""What lies in the cache already: it is known before it is opened, and made anew when a lost picture is back."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from msvq.config.resolve import Flags
from msvq.core.console import Display
from msvq.data.decode import decode
from msvq.data.pack import Pack, is_packed, open_pack
from msvq.data.sources.folders import FileImages, list_folder
from msvq.preflight.plan import plan

Fill = Callable[..., None]
SIDE = 32


@pytest.fixture
def folder(tmp_path: Path, home: Path, fill: Fill) -> Path:
    root = tmp_path / "pictures"
    fill(root, [f"{i:02}.png" for i in range(12)])
    return root


def pack_of(items: FileImages, *, side: int = SIDE, pixels: bool = True) -> Pack:
    return open_pack(items, side=side, pixels=pixels, max_skipped=0.1, num_workers=1, display=Display())


def test_pictures_are_packed_once_their_pixels_are(folder: Path, home: Path, fill: Fill) -> None:
    assert not is_packed(list_folder(folder), SIDE)
    assert not home.exists()  # asking leaves nothing behind
    pack_of(list_folder(folder), pixels=False)
    assert not is_packed(list_folder(folder), SIDE)
    pack_of(list_folder(folder))
    assert is_packed(list_folder(folder), SIDE)
    assert not is_packed(list_folder(folder), 2 * SIDE)
    assert not is_packed(list_folder(folder).limit(6), SIDE)
    fill(folder, ["12.png"])
    assert not is_packed(list_folder(folder), SIDE)


def test_what_is_damaged_is_not_packed(folder: Path, home: Path) -> None:
    pack_of(list_folder(folder))
    (card,) = home.rglob("pack.json")
    card.write_text("{")
    assert not is_packed(list_folder(folder), SIDE)


def test_a_plan_for_packed_pictures_has_no_time_and_no_disk_for_packing(folder: Path) -> None:
    pack_of(list_folder(folder))
    report = plan(Flags(data=str(folder), overrides=["backbone.width=4", "data.workers=1"], epochs=1), steps=3)
    assert (report["seconds"]["packing"], report["disk"]["pack"]) == (0.0, 0)


def test_a_picture_that_is_back_as_it_was_is_packed(folder: Path) -> None:
    listing = list_folder(folder)
    (folder / "03.png").rename(folder.parent / "away.png")  # after it was listed
    first = pack_of(listing)
    assert first.skipped == (("03.png", "is not there"),)
    assert pack_of(listing).digest == first.digest
    (folder.parent / "away.png").rename(folder / "03.png")
    assert list_folder(folder).fingerprint() == listing.fingerprint()
    again = pack_of(list_folder(folder))
    assert again.skipped == () and again.images is not None
    assert np.array_equal(again.images[3], decode(str(folder / "03.png"), SIDE))
