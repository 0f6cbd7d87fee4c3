"""`msvq evaluate`: what its results are called, and on which pictures they are."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import msvq
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.patterns import make_patterns
from msvq.data.sources import open_dataset
from msvq.evaluate.linear import LinearSettings
from msvq.evaluate.protocols import protocol_id, protocol_settings
from msvq.evaluate.results import LONGEST_NAME, EvalResult
from msvq.runs.encoder import load_run_encoder
from msvq.runs.evaluate import evaluate, open_for

RESULT: dict[str, Any] = {
    **{"kind": "linear", "data": "x", "data_fingerprint": "0123456789", "transfer": False, "checkpoint": "last"},
    **{"labels": 1.0, "seeds": [0], "changes": {}, "protocol": "linear-100/1", "top1": 50.0, "top5": 90.0, "runs": []},
    **{"num_labels": 9, "num_test": 5, "settings": {}, "precision": "fp32", "msvq": "0", "step": 1},
}


def named(folder: Path, **changed: Any) -> str:
    """What the file of a result is called."""
    path = EvalResult(**RESULT | changed).save(folder)
    assert json.loads(path.read_text()) == RESULT | changed
    return path.stem


def test_a_setting_given_at_its_default_is_no_change(tmp_path: Path) -> None:
    settings, changes = protocol_settings(LinearSettings, {"epochs": 100, "view.crop_area": [0.08, 1.0], "lr": None})
    assert (settings, changes) == (LinearSettings(), {})
    assert protocol_id("linear", settings, changes) == "linear-100/1"
    assert named(tmp_path, changes=changes) == "linear"


def test_of_the_given_settings_those_that_change_something_are_told() -> None:
    settings, changes = protocol_settings(LinearSettings, {"epochs": 100, "view.flip": 0.2, "batch_size": 8})
    assert changes == {"view.flip": 0.2, "batch_size": 8}
    assert protocol_id("linear", settings, changes) == "linear-100/1+view.flip=0.2+batch_size=8"


def test_an_unknown_setting_is_told_the_keys_of_its_section() -> None:
    with pytest.raises(BadInput, match=r"unknown setting view 'flipp'; did you mean 'flip'\? known: .*crop_area"):
        protocol_settings(LinearSettings, {"view.flipp": 0.2})
    with pytest.raises(BadInput, match=r"unknown setting 'epoch'; did you mean 'epochs'\? known: .*view"):
        protocol_settings(LinearSettings, {"epoch": 2})


def test_the_number_of_seeds_is_in_the_name(tmp_path: Path) -> None:
    assert named(tmp_path) == "linear"
    assert named(tmp_path, seeds=[1337, 1338]) == "linear-seeds-2"
    assert named(tmp_path, seeds=[1337, 1338, 1339], labels=0.1) == "linear-labels-0.1-seeds-3"


@pytest.mark.parametrize("letter", ["x", "é", "猫", "𝔵"])
def test_long_names_are_cut_and_stay_apart(tmp_path: Path, letter: str) -> None:
    first, second = (named(tmp_path, data=300 * letter + end, transfer=True) for end in "ab")
    assert first != second
    assert first == named(tmp_path, data=300 * letter + "a", transfer=True)
    for name in (first, second):
        assert name.startswith(f"linear-on-{10 * letter}")
        assert LONGEST_NAME - 4 <= len(name[:-9].encode()) <= LONGEST_NAME
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_just_short_enough_stays_whole(tmp_path: Path) -> None:
    room = LONGEST_NAME - len("linear-on-")
    assert named(tmp_path, data=room * "x", transfer=True) == f"linear-on-{room * 'x'}"
    assert len(named(tmp_path, data=(room + 1) * "x", transfer=True)) == LONGEST_NAME + 9


def write_pictures(path: Path, share: int = 1) -> None:
    """Patterns, made so many times as dark."""
    (train, known), (test, truth) = make_patterns(64, seed=1), make_patterns(20, seed=2)
    arrays: dict[str, Any] = {"train_labels": known, "test_labels": truth}
    np.savez(path, train_images=train // share, test_images=test // share, **arrays)


def test_pictures_that_have_changed_since_training_are_other_data(tmp_path: Path) -> None:
    source = tmp_path / "own.npz"
    write_pictures(source)
    small = ["backbone.width=2", "train.batch_size=32", "method.queue_size=64", "analyze.map=0"]
    run = msvq.pretrain(data=str(source), out=tmp_path / "run", epochs=1, overrides=small)
    trained = open_dataset(run.config.data)

    told = io.StringIO()
    display = Display(Console(file=told, width=1000))
    result, path = evaluate(run, overrides=["k=5"], display=display)
    assert path is not None and (path.name, result.transfer, told.getvalue()) == ("knn-k-5.json", False, "")

    write_pictures(source, share=2)
    for times, data in enumerate((None, str(source)), start=1):
        result, path = evaluate(run, data=data, overrides=["k=5"], display=display)
        assert path is not None and (path.name, result.transfer) == ("knn-on-own-k-5.json", True)
        assert told.getvalue().count("note: own has changed since the run was trained on it") == times
    changed, own = open_for(run, None, None, preprocessing=load_run_encoder(run).preprocessing, display=Display())
    assert not own
    assert changed.mean == pytest.approx(trained.mean)
    assert changed.std == pytest.approx(trained.std)
    assert changed.mean != pytest.approx(open_dataset(run.config.data).mean, rel=0.1)  # what it would be by itself
