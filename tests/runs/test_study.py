"""What a look at a method leaves behind, where something of it cannot be measured or would take too long."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from msvq.cli.evaluate import show_analysis
from msvq.config.adapt import fill_from_data
from msvq.config.build import build_method
from msvq.config.resolve import resolve
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.data.loader import Loader
from msvq.data.sources import open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate import knn
from msvq.evaluate.baselines import baseline_accuracies
from msvq.methods import Method
from msvq.report.records import read_record
from msvq.runs.analyze import evaluate_finished_run
from msvq.runs.run_dir import RunDir

CPU = torch.device("cpu")
SMALL = ["backbone.width=2", "data.limit=64", "train.batch_size=32", "method.queue_size=64", "analyze.map=0"]
VOTE = ["evaluate.knn_k=7", "evaluate.knn_bank=20"]


@dataclass
class Scene:
    """An untrained method on few patterns, and what was told of it."""

    settings: Settings
    data: ImageDataset
    method: Method
    path: Path
    told: io.StringIO

    def study(self) -> dict[str, Any]:
        loader = Loader(self.data.train, batch_size=32, seed=0, device=CPU)
        display = Display(Console(file=self.told, width=1000))
        return evaluate_finished_run(
            RunDir(self.path), self.settings, self.data, self.method, loader, step=1, display=display
        )

    def shown(self, found: dict[str, Any], *, as_json: bool) -> str:
        """What `msvq analyze` prints."""
        out = io.StringIO()
        show_analysis(found, self.path, Console(file=out, width=1000), as_json=as_json)
        return out.getvalue()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    settings = resolve(data="patterns", overrides=[*SMALL, *VOTE])
    data = open_dataset(settings.data)
    settings = fill_from_data(settings, data, CPU)
    return Scene(settings, data, build_method(settings, data.size), tmp_path, io.StringIO())


@pytest.fixture
def broken(scene: Scene) -> Scene:
    """A method whose training has broken down."""
    with torch.no_grad():
        for parameter in scene.method.parameters():
            parameter.fill_(float("nan"))
    return scene


def files(scene: Scene) -> set[str]:
    return {path.name for path in (scene.path / "eval").iterdir()}


def test_all_labelled_pictures_vote_in_the_end_where_they_are_not_too_many(scene: Scene) -> None:
    scene.study()
    result = json.loads((scene.path / "eval" / "knn-k-7.json").read_text())
    assert (result["protocol"], result["changes"], result["num_labels"]) == ("knn-7-t0.1/1", {"k": 7}, 64)


def test_a_thinned_bank_is_told_as_a_change(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "LAST_BANK", 30)
    scene.study()
    result = json.loads((scene.path / "eval" / "knn-k-7-bank-30.json").read_text())
    assert result["protocol"] == "knn-7-t0.1/1+bank=30"
    assert (result["changes"], result["num_labels"]) == ({"k": 7, "bank": 30}, 30)
    assert result["data_fingerprint"] == scene.data.fingerprint
    assert "knn-k-7.json" not in files(scene)
    assert (found := read_record(scene.path).result("knn")) is not None and found.changes["bank"] == 30


def test_the_verdict_takes_what_all_voted_in_the_end_and_its_rivals_by_the_same_vote(scene: Scene) -> None:
    line = {"kind": "eval", "epoch": 0, "step": 0, "knn_top1": 99.0}  # by the 20 that voted on the way
    (scene.path / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "step": 1}) + "\n")
    accuracy = scene.study()["knn"]["accuracy"]
    final = json.loads((scene.path / "eval" / "knn-k-7.json").read_text())["top1"]
    assert accuracy["trained"] == accuracy["untrained"] == final < 99  # nothing was trained: it is one network
    labelled, test = scene.data.labelled, scene.data.test
    assert baseline_accuracies(labelled, test, k=7, temp=0.1).items() <= accuracy.items()
    record = read_record(scene.path)
    assert record.accuracies["trained"] == final and record.values("knn_top1")[-1] == 99


def test_without_finite_features_all_but_the_accuracy_is_looked_at(broken: Scene) -> None:
    broken.study()
    assert files(broken) == {"analysis.json", "gallery.npz", "neighbours.npz"}
    assert broken.told.getvalue().startswith("note: no kNN accuracy: the features are not all finite")
    assert broken.told.getvalue().count("note:") == 1


def test_a_constant_encoder_finds_nothing_and_is_not_good(scene: Scene) -> None:
    with torch.no_grad():
        for parameter in scene.method.parameters():
            parameter.zero_()
    found = scene.study()
    assert found["verdict"]["state"] not in ("good", "better")
    assert found["copies"]["recall"]["trained"]["at_1"] == 0 < found["copies"]["recall"]["untrained"]["at_1"]


def test_what_is_no_number_is_null_in_json(broken: Scene) -> None:
    found = broken.study()
    written = json.loads((broken.path / "eval" / "analysis.json").read_text(), parse_constant=pytest.fail)
    assert json.loads(broken.shown(found, as_json=True), parse_constant=pytest.fail) == written
    assert written["teachers"]["student_teacher1"] is None


def test_an_analysis_with_values_that_are_no_numbers_can_be_read(broken: Scene) -> None:
    told = broken.shown(broken.study(), as_json=False)
    assert told.startswith("collapsed: ")
    assert "distance of the networks: student_teacher1 " in told
    assert "report.html" in told
