"""A run that goes on, or is finished already: what it is compared with, and what may differ."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import msvq
from msvq.cli import main
from msvq.config.adapt import fill_from_data, fill_from_run
from msvq.config.resolve import resolve
from msvq.config.settings import Settings
from msvq.core.schema import Change, MayChange
from msvq.data.sources import open_dataset
from msvq.methods import METHODS, Method
from msvq.train.resume import Saved, changes_on_resume, open_saved

SMALL = [
    *("backbone.width=4", "data.limit=160", "data.size=16", "data.test_size=16", "train.batch_size=16"),
    *("method.queue_size=32", "method.hidden_dim=16", "method.output_dim=8", "method.bn_splits=2"),
    *("train.log_every=1", "evaluate.every=2", "analyze.map=0"),
]
# A method whose second version has a layer more.
PLAIN = """
from torch import nn

from msvq.methods.base import Batch, Loss, Method


class Plain(Method):
    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.views = backbone, ("weak",)
        self.head = nn.Linear(backbone.feature_dim, 4)

    @property
    def encoder(self):
        return self.backbone

    def forward(self, batch):
        return Loss(self.head(self.backbone(batch.views[0])).square().mean())
"""
LAYER = "        self.second = nn.Linear(4, 4)\n"
Says = Callable[..., tuple[int, str, str]]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """What `msvq pretrain` answers, in this process."""

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["pretrain", *map(str, words)])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def as_run(asked: Settings) -> Settings:
    """The settings as a run of them writes them down."""
    whole = fill_from_data(asked, open_dataset(asked.data), torch.device("cpu"))
    return Settings.model_validate(whole.model_dump(mode="json"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of pictures and a recipe, and the command runs in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine.npy", "other.npy"):
        np.save(name, np.zeros((32, 16, 16, 3), np.uint8))
    recipe = resolve(recipe="demo", epochs=1, overrides=[*SMALL, "data.source=mine.npy"])
    Path("mine.yaml").write_text(recipe.to_yaml())
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({}, True),
        ({"data": "{here}/mine.npy"}, True),
        ({"data_root": "elsewhere", "device": "cpu", "precision": "auto", "compile": True}, True),
        ({"overrides": ["train.log_every=5", "evaluate.every=1", "train.accumulate=2"]}, True),
        ({"data": "other.npy"}, False),
        ({"data": "patterns"}, False),
        ({"overrides": ["data.limit=16"]}, False),
        ({"overrides": ["data.size=8"]}, False),
        ({"overrides": ["augment.weak.grey_p=0.5"]}, False),
        ({"overrides": ["backbone.width=8"]}, False),
        ({"backbone": "resnet34"}, False),
        ({"init": "weights.pt"}, False),
        ({"precision": "fp16"}, False),  # what no CPU has by itself
        ({"overrides": ["evaluate.knn_k=5"]}, False),
        ({"method": "ressl"}, False),
        ({"seed": 1}, False),
        ({"epochs": 2}, False),
        ({"overrides": ["train.steps=3"]}, False),
    ],
)
def test_the_same_training_is_told_from_another(here: Path, asked: dict[str, Any], same: bool) -> None:
    words: dict[str, Any] = {
        key: value.format(here=here) if isinstance(value, str) else value for key, value in asked.items()
    }
    saved = Saved(here / "run", {}, as_run(resolve(recipe="mine.yaml")))
    assert saved.same_training_as(resolve(recipe="mine.yaml", **words)) is same


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("supervised", []),
        ("cmsf", []),
        ("unmix", ["method.base=cmsf"]),
        ("msvq", ["train.steps=7"]),
        ("msvq", ["data.size=null", "data.test_size=null", "backbone.stem=auto", "backbone.init=weights/mine.pt"]),
    ],
)
def test_what_data_and_machine_decide_is_taken_from_the_run(method: str, overrides: list[str]) -> None:
    asked = resolve(recipe="demo", method=method, overrides=["data.limit=160", *overrides])
    run = as_run(asked)
    assert run != asked
    assert fill_from_run(asked, run) == run


def test_what_was_asked_for_is_not_taken_from_the_run() -> None:
    run = as_run(resolve(recipe="demo", method="supervised", overrides=["data.limit=160"]))
    words = ["data.size=8", "data.test_size=9", "method.num_classes=77", "backbone.stem=standard"]
    asked = resolve(recipe="demo", method="supervised", precision="bf16", overrides=words)
    assert fill_from_run(asked, run) == asked


def test_a_finished_run_is_left_alone_only_if_it_is_asked_for_again(here: Path, says: Says) -> None:
    same = ["--recipe", "mine.yaml", "--data", "mine.npy", "--out", "run", "--auto-resume"]
    assert says(*same)[0] == 0
    before = contents(here / "run")
    elsewhere = ["--recipe", f"{here}/mine.yaml", "--data", f"{here}/mine.npy", "--out", f"{here}/run"]
    for words in (same, [*elsewhere, "--auto-resume"], ["--out", "run", "--auto-resume"]):
        code, out, err = says(*words)
        assert (code, err) == (0, "")
        assert "is finished already" in out
    for words, what in (
        (sets("backbone.width=8"), "another backbone.width: the run has 4, not 8"),
        (sets("augment.weak.grey_p=0.5"), "another augment.weak"),
        (["--data", "patterns"], "another data.source"),
    ):
        code, out, err = says(*same, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert "cannot resume with " + what in err
    assert contents(here / "run") == before


def test_a_recipe_with_more_epochs_goes_on_with_a_finished_run(here: Path, says: Says) -> None:
    words = ["--recipe", "mine.yaml", "--out", "run", "--auto-resume"]
    assert says(*words)[0] == 0
    recipe = here / "mine.yaml"
    recipe.write_text(recipe.read_text().replace("epochs: 1\n", "epochs: 2\n"))
    code, out, err = says(*words)
    assert code == 0, err
    assert "finished already" not in out
    assert msvq.load("run").metrics()[-1]["step"] == 4


def test_a_run_of_a_named_length_is_asked_for_again_and_made_longer(here: Path, says: Says) -> None:
    recipe = here / "mine.yaml"
    recipe.write_text(recipe.read_text().replace("warmup_epochs: 0.1\n", "warmup_epochs: 5\n"))
    words = ["--recipe", "mine.yaml", "--out", "run", "--auto-resume"]
    for length, again in ((sets("train.steps=3"), True), (sets("train.steps=3"), False), (["--epochs", "2"], True)):
        code, out, err = says(*words, *length)
        assert code == 0, err
        assert ("finished already" not in out) is again
        assert msvq.load("run").config.train.warmup_epochs == 0.15  # a tenth of 3 steps, 2 of which are an epoch
    assert msvq.load("run").metrics()[-1]["step"] == 4


def test_a_run_is_not_cut_to_fewer_steps_than_it_has_made(here: Path, says: Says) -> None:
    assert says("--recipe", "mine.yaml", "--out", "run", "--epochs", "2")[0] == 0
    before = contents(here / "run")
    code, _, err = says("--out", "run", "--resume", *sets("train.steps=3"))
    assert code == 2
    assert "cannot resume with fewer steps: the run has 4, not 3; leave the flag out" in err
    assert contents(here / "run") == before


def test_code_that_has_gained_a_layer_gets_a_sentence(here: Path, says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "plain.py:Plain", Method)  # and it is forgotten afterwards
    Path("plain.py").write_text(PLAIN)
    plain = sets(*(setting for setting in SMALL if not setting.startswith("method.")))
    words = ["--method", "plain.py:Plain", "--out", "run"]
    assert says(*words, "--data", "mine.npy", "--epochs", "1", *plain)[0] == 0
    before = contents(here / "run")
    Path("plain.py").write_text(PLAIN.replace("\n    @property", f"{LAYER}\n    @property"))
    code, _, err = says(*words, "--resume", "--epochs", 2)
    assert code == 2
    assert "does not fit the method and backbone as they are now: second.weight is not in it; restore their code" in err
    assert err.count("\n") == 1
    assert contents(here / "run") == before


def test_a_compiled_run_may_go_on_without_a_compiler() -> None:
    begun = as_run(resolve(recipe="demo", compile=True, overrides=["data.limit=160"]))
    now = resolve(base=begun.model_dump(mode="json"), overrides=["train.compile=false"])
    assert changes_on_resume(begun, now) == [Change("train.compile", True, False, MayChange.UPKEEP)]


def test_a_run_goes_on_though_its_method_has_got_an_option_since() -> None:
    now = as_run(resolve(recipe="demo"))
    begun = now.model_copy(update={"method": {k: v for k, v in now.method.items() if k != "projector_layers"}})
    assert len(begun.method) < len(now.method)
    assert changes_on_resume(begun, now) == changes_on_resume(now, begun) == []
    wider = resolve(recipe="demo", overrides=["method.projector_layers=3"])
    assert Change("method.projector_layers", 2, 3, None) in changes_on_resume(begun, as_run(wider))


def test_a_run_keeps_its_optimiser() -> None:
    begun = as_run(resolve(recipe="demo", overrides=["data.limit=160", "train.optimiser=sgd"]))
    now = resolve(base=begun.model_dump(mode="json"), overrides=["train.optimiser=muon"])
    first = changes_on_resume(begun, now)[0]
    assert first == Change("train.optimiser", "sgd", "muon", None)


def test_the_networks_of_a_checkpoint_do_not_stay_in_memory_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=SMALL)
    loaded: list[weakref.ref[torch.Tensor]] = []

    def opened(*args: Any) -> Saved:
        saved = open_saved(*args)
        loaded.extend(map(weakref.ref, saved.state["method"].values()))
        return saved

    monkeypatch.setattr("msvq.train.pretrain.open_saved", opened)
    kept: list[bool] = []
    msvq.pretrain(
        out=tmp_path / "x",
        resume=True,
        epochs=2,
        callbacks=[lambda line: kept.append(any(ref() is not None for ref in loaded))],
    )
    assert loaded and kept and not any(kept)


def test_epochs_may_grow_and_that_is_recorded(tmp_path: Path) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=SMALL)
    longer = msvq.pretrain(out=run.path, resume=True, epochs=2, overrides=["evaluate.every=1"])
    assert longer.config.train.epochs == 2
    record = json.loads((run.path / "environment.json").read_text())["resumed"]
    assert record == [{"step": 10, "changed": {"train.epochs": [1, 2], "evaluate.every": [2, 1]}}]
    rates = [line["lr"] for line in longer.metrics() if line["kind"] == "step"]
    assert len(rates) == 20
    assert rates[10] > rates[9]  # from here on, the schedule of two epochs


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("base_lr: 0.48", "base_lr: 0.46"), "another train.base_lr"),
        (("queue_size: 32", "queue_size: 64"), "another method.queue_size"),
        (("batch_size: 16", "batch_size: [16"), "is not valid YAML"),
    ],
)
def test_a_changed_config_is_refused(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=[*SMALL, "train.base_lr=0.48"])
    config = run.path / "config.yaml"
    text = config.read_text()
    assert change[0] in text
    config.write_text(text.replace(*change))
    with pytest.raises(msvq.BadInput, match=sentence):
        msvq.pretrain(out=run.path, resume=True)


def test_what_config_may_have_otherwise_is_the_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=SMALL)
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 3\n"))
    again = msvq.pretrain(out=run.path, resume=True)
    assert "config.yaml has another train.epochs than the checkpoint" in capsys.readouterr().out.replace("\n", " ")
    assert again.config.train.epochs == 1
