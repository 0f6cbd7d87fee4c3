"""Which pictures a command takes: the run's own as the run saw them, or those that are named."""

from pathlib import Path

import pytest
from tests.search.conftest import NUM, save_arrays

import msvq
from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.search.inputs import Inputs

ALL = NUM + 2  # with the files that are no pictures: that is seen later


def begun(path: Path, data: Path, *overrides: str) -> msvq.Run:
    """A run that has come as far as its settings."""
    path.mkdir()
    (path / "config.yaml").write_text(resolve(data=str(data), overrides=overrides).to_yaml())
    return msvq.load(path)


def test_a_run_without_labels_has_all_its_pictures_to_learn_from(photos: Path, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", photos, "data.labels=none")
    for data in (None, str(photos)):
        for split in ("all", "train"):
            source = Inputs(run, data, split=split).open_source()
            assert (len(source), source.class_names, set(source.labels.tolist())) == (ALL, (), {-1})
        with pytest.raises(BadInput, match=r"no test pictures in .*; --split all takes those that there are"):
            Inputs(run, data, split="test").open_source()


def test_other_pictures_keep_their_labels(photos: Path, tmp_path: Path) -> None:
    save_arrays(tmp_path / "other.npz")
    run = begun(tmp_path / "run", tmp_path / "other.npz", "data.labels=none")
    num = {split: len(Inputs(run, str(photos), split=split).open_source()) for split in ("all", "train", "test")}
    assert num == {"all": ALL, "train": ALL - 4, "test": 4}  # a tenth of each class is held out
    assert Inputs(run, str(photos)).open_source().class_names == ("beach", "city")
    assert len(Inputs(run, None, split="train").open_source()) == NUM
