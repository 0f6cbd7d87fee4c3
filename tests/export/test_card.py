"""The model card: front matter that a hub's own reader takes, and text of a run that stays text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from tests.export.conftest import make_run

import msvq
from msvq.export.card import escaped, measured, model_card, slug
from msvq.export.exporting import export_encoder
from msvq.export.folder import config, example, training
from msvq.export.plans import make_plan
from msvq.model.pretrained import find_pretrained
from msvq.runs.checkpoint import write_checkpoint
from msvq.runs.encoder import LoadedEncoder, load_run_encoder
from msvq.runs.encoder_names import load_encoder

HOSTILE = "x\n---\nlicense: mit\n# |a|b| <script>alert(1)</script> [y](http://z) `rm` \x1b[31m \u202e {{7*7}} é"
CHECKED: dict[str, Any] = {
    "tolerance": 1e-4,
    "picture_of_another_size": 1e-6,
    "if_resized_by_other_tools": 0.03,
    "max_abs_feature": 7.0,
    "max_abs_difference": 2e-6,
    "by_batch_size": {"1": 1e-6},
    "libraries": {"python": "3.11"},
}


@pytest.fixture
def hostile(narrow: msvq.Run) -> LoadedEncoder:
    """Names that try to be something else, wherever a name comes from a run."""
    folder = narrow.path / "eval"
    folder.mkdir(exist_ok=True)
    result = {"kind": "knn", "protocol": HOSTILE, "data": HOSTILE, "top1": 50, "top5": 90, "class_names": [HOSTILE]}
    (folder / "hostile.json").write_text(json.dumps(result))
    return replace(load_run_encoder(narrow, "last"), data=HOSTILE)


def test_hostile_names_stay_names(hostile: LoadedEncoder) -> None:
    plan = make_plan("torchscript", hostile)
    text = model_card(hostile, plan, format="torchscript", licence="<b>mine</b>", checked=CHECKED)
    assert text.count("\n---\n") == 1
    read: Any = ModelCard(text)  # by the hub's own reader
    front = read.data.to_dict()
    assert (front["license"], front["license_name"]) == ("other", "b-mine-b")
    assert slug(HOSTILE) in [one["dataset"]["type"] for one in front["model-index"][0]["results"]]
    body = text.split("\n---\n")[1]
    assert "\x1b" not in text and "\u202e" not in text
    assert "<script>" not in body and r"\<script\>" in body
    assert "[y](http" not in body and "{{" not in body
    lines = [line for line in body.splitlines() if "alert" in line]
    assert all(line.startswith(("# resnet18", "| ")) for line in lines)
    rows = [line for line in lines if line.startswith("| x")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [6]
    assert yaml.safe_load(training(hostile))["data"]["source"] == "patterns"
    assert json.loads(json.dumps(config(hostile, plan, format="torchscript")))["backbone"]["name"] == "resnet18"
    (Path(hostile.name) / "eval" / "hostile.json").unlink()


def test_a_folder_of_ones_own_is_no_data_set_of_the_hub(narrow: msvq.Run, tmp_path: Path) -> None:
    subject = load_run_encoder(narrow, "last")
    plan = make_plan("torchscript", subject)
    front = model_card(subject, plan, format="torchscript", licence="MIT", checked=CHECKED).split("---\n")[1]
    assert yaml.safe_load(front)["license"] == "mit"
    own = msvq.load(narrow.path)
    source = str(tmp_path / "private pictures")
    own.config = own.config.model_copy(update={"data": own.config.data.model_copy(update={"source": source})})
    subject = replace(subject, run=own, data="private pictures")
    text = model_card(subject, plan, format="torchscript", licence="mit", checked=CHECKED)
    assert "datasets" not in yaml.safe_load(text.split("---\n")[1])
    assert str(tmp_path) not in text + training(subject)
    assert yaml.safe_load(training(subject))["data"]["source"] == "private pictures"


def test_the_log_of_a_run_says_nothing_of_another_runs_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", width=4)
    state = {f"student.backbone.{name}": value for name, value in run.encoder.state_dict().items()}
    own, other = (tmp_path / name / "checkpoints" / "epoch1.ckpt" for name in ("run", "other"))
    for path in (own, other):
        path.parent.mkdir(parents=True)
        write_checkpoint(path, {"method": state, "step": run.metrics()[-1]["step"]})
    subjects = {name: load_run_encoder(run, name) for name in ("last", str(own), str(other))}
    assert len({subject.step for subject in subjects.values()}) == 1
    told = {name: [row.top1 for row in measured(subject)] for name, subject in subjects.items()}
    assert told == {"last": [31.25], str(own): [31.25], str(other): []}
    plan = make_plan("torchscript", subjects[str(other)])
    card = model_card(subjects[str(other)], plan, format="torchscript", licence="mit", checked=CHECKED)
    assert "31.25" not in card and "online knn" not in card


def test_an_encoder_of_ours_is_not_called_a_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msvq.export.exporting.verify", lambda folder, encoder: CHECKED)
    listed = find_pretrained("cifar10-msvq-narrow")
    assert listed is not None
    out = export_encoder(listed.name, format="hf", out=tmp_path / "x").path
    again = export_encoder(out, format="hf", out=tmp_path / "y").path  # an export of an export
    for folder in (out, again):
        card = (folder / "README.md").read_text()
        assert "trained by msvq on cifar10" in card and "Not by msvq" not in card
        assert "| method | msvq |" in card and "| data | cifar10 |" in card
    assert f"| knn-200-t0.1/1 | cifar10 | {listed.knn:.2f} |" in (out / "README.md").read_text()
    assert "None was measured" in (again / "README.md").read_text()
    strange = load_encoder("timm:test_resnet@random")
    plan = make_plan("hf", strange)
    card = model_card(strange, plan, format="hf", licence="mit", checked=CHECKED, push="me/my_net")
    assert "Not by msvq" in card and "trained and" not in card
    assert 'msvq.ImageEncoder.from_pretrained("me/my_net")' in card and "OWNER/NAME" not in card
    assert 'timm.create_model("hf-hub:me/my_net", pretrained=True)' in card
    assert "hf-hub" not in (out / "README.md").read_text()  # timm has no such network


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a b/c", "a-b-c"), ("..", "unnamed"), ("", "unnamed"), ("a--b..c", "a-b-c"), ("cifar10", "cifar10")],
)
def test_slugs_are_names_that_hubs_take(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_escaped_text_is_one_line() -> None:
    assert escaped("a\n\n| b_c") == r"a \| b\_c"
    assert len(escaped("a" * 1000)) == 200


def test_the_example_is_short(narrow: msvq.Run) -> None:
    text = example(make_plan("torchscript", load_run_encoder(narrow, "last")))
    assert len([line for line in text.splitlines() if line]) <= 10
