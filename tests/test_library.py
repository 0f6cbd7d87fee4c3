"""A run judges, analyses and shows itself: the same as the commands, with typed results."""

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from PIL import Image

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.report.page import write_report
from msvq.reproduce.compare import plan_contest

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64", "evaluate.every=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """In fp32, as the protocols are: what is logged on the way is in the run's own precision."""
    out = tmp_path_factory.mktemp("runs") / "x"
    return msvq.pretrain(data="patterns", out=out, epochs=2, precision="fp32", overrides=SMALL)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msvq.api.write_report", lambda path: write_report(path, figures=False))


def test_protocols_give_typed_results(run: msvq.Run) -> None:
    nearest = run.knn(k=20)
    assert isinstance(nearest, msvq.Accuracy)
    assert nearest.protocol == "knn-20-t0.1/1"
    assert nearest.path == run.path / "eval" / "knn-k-20.json"
    assert nearest.top1 == nearest.record["top1"] <= nearest.top5
    error = (nearest.top1 * (100 - nearest.top1) / 200) ** 0.5  # of 200 test pictures
    told = f"{nearest.top1:.1f} ± {error:.1f} % (chance 10.0 %, top-5 {nearest.top5:.1f} %)"
    assert str(nearest) == f"knn-20-t0.1/1: {told}"
    assert "record" not in repr(nearest)
    assert run.knn().top1 == pytest.approx([line["knn_top1"] for line in run.metrics() if "knn_top1" in line][-1])
    few = run.probe(labels=0.2, seeds=2, checkpoint="best")
    assert (few.protocol, few.record["labels"], few.record["checkpoint"]) == ("probe/1", 0.2, "best")
    assert run.linear(epochs=1).protocol == "linear-1/1"
    tuned = run.finetune(epochs=1, overrides=["min_steps=2"])
    assert tuned.protocol == "finetune-all/1+epochs=1+min_steps=2"
    assert 0 <= tuned.record["scratch_top1"] <= 100
    with pytest.raises(msvq.BadInput, match="did you mean 'k'"):
        run.knn(overrides=["kk=3"])


def test_values_that_cannot_be_are_bad_input(run: msvq.Run, tmp_path: Path) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: run.embed(np.zeros((2, 0, 8, 3), np.uint8)), "a picture has pixels"),
        (lambda: run.embed([picture], batch_size=0), "batch_size is a number of pictures"),
        (lambda: run.embed(cast(Any, ["a.jpg", 3])), "names and paths alone, not 3"),
        (lambda: run.embed(cast(Any, None)), "a picture has"),
        (lambda: run.probe(seeds=0), "at least 1, not 0"),
        (lambda: run.probe(labels=cast(Any, "a")), "is a share .* not 'a' and 1"),
        (lambda: msvq.pretrain(out=tmp_path / "x", callbacks=cast(Any, [3])), "callbacks is a list of functions"),
        (lambda: msvq.pretrain(out=tmp_path / "x", callbacks=cast(Any, print)), "callbacks is a list of functions"),
        (lambda: msvq.pretrain(out=tmp_path / "x", overrides=cast(Any, "a.b=1")), "overrides is a list"),
        (lambda: msvq.pretrain(out=run.path, resume=True, overwrite=True), "give one of them"),
    ]
    assert run.knn(seeds=cast(Any, np.int64(1)), labels=cast(Any, np.float64(1))).record["labels"] == 1.0
    for call, sentence in wrong:
        with pytest.raises(msvq.BadInput, match=sentence):
            call()
    assert not (tmp_path / "x").exists()


def test_an_analysis_is_a_verdict(run: msvq.Run) -> None:
    found = run.analyze(device="cpu")
    assert isinstance(found, msvq.Analysis)
    assert found.state == "too-short"
    assert set(found.record["copies"]["recall"]) == {"trained", "untrained", "colour_histogram", "pixels_8x8"}
    assert str(found) == f"{found.state}: {found.sentence}"
    assert found.record["false_negatives"]["view2"]["found"] >= 0


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of ten, one of which is there twice."""
    for index, image in enumerate(make_patterns(20, seed=5)[0]):
        path = tmp_path / "photos" / ("a" if index % 2 else "b") / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    shutil.copy(tmp_path / "photos" / "a" / "01.png", tmp_path / "photos" / "a" / "copy.png")
    return tmp_path / "photos"


def test_a_run_and_any_other_encoder_look_through_pictures(run: msvq.Run, photos: Path) -> None:
    pixels = msvq.load_encoder("pixels")
    for encoder in (run, pixels):
        assert isinstance(encoder, msvq.Run | msvq.Encoder)
        (answer,) = encoder.search(photos / "b" / "04.png", data=photos, top=3).answers
        assert answer.hits[0].name == "b/04.png" and len(answer.hits) == 3
        first, second = encoder.search(
            ["a/03.png", "b/04.png"], data=str(photos), html=photos.parent / "p.html"
        ).answers
        assert (first.hits[0].name, second.hits[0].name) == ("a/03.png", "b/04.png")
        assert {row["file"] for row in encoder.duplicates(data=photos).records()} == {"a/01.png", "a/copy.png"}
        assert encoder.embed_source(photos).features.shape[0] == 21
    assert len(pixels.cluster(2, data=photos).rows) == 21
    with pytest.raises(msvq.BadInput, match="--data is needed: pixels is no run"):
        pixels.duplicates()
    with pytest.raises(msvq.BadInput, match="pixels has no checkpoints"):
        pixels.search("a/03.png", data=photos, checkpoint="best")


def test_an_encoder_stays_where_it_was_loaded_to(run: msvq.Run, photos: Path) -> None:
    encoder = msvq.load_encoder(run.path, device="cpu")
    np.testing.assert_array_equal(encoder.embed_source(photos).features, run.embed_source(photos).features)
    assert str(encoder) == str(run.path)


def test_the_doctor_and_the_plan_say_what_their_commands_say(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = msvq.doctor(photos)
    assert not found.ok
    assert found.findings[0]["id"] == "few-pictures"
    assert found.command == f"msvq pretrain --data {photos} --out runs/photos --budget 10m"
    with pytest.raises(SystemExit):
        main(["doctor", str(photos)])
    said = capsys.readouterr().out
    assert said.split() == str(found).split()  # a terminal is narrower
    planned = msvq.plan("patterns", recipe="smoke", steps=3, overrides={"data.limit": 128}, out=tmp_path / "x")
    assert planned.seconds > 0 and planned.advice == ("It fits.",)
    assert planned.command.startswith("msvq pretrain --recipe smoke --data patterns --set data.limit=128 --out ")
    assert planned.command in str(planned) and planned.record["pictures"]["train"] == 128
    with pytest.raises(msvq.BadInput, match="there is no folder 'nowhere'"):
        msvq.doctor("nowhere")


def test_a_report_where_one_wants_it(run: msvq.Run, tmp_path: Path) -> None:
    assert run.report(tmp_path / "page.html") == tmp_path / "page.html"
    assert "<html" in (tmp_path / "page.html").read_text()
    with pytest.raises(msvq.BadInput, match="is a directory"):
        run.report(tmp_path)


def test_what_is_written_may_be_in_the_home_directory(
    run: msvq.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run.report("~/page.html")
    run.outliers(num=3, data=photos, out="~/rows.csv", html="~/rows.html")
    run.write_features("~/features.npz", data=photos)
    run.classify(photos, data=photos, onnx="~/classes.onnx")
    written = ("page.html", "rows.csv", "rows.html", "features.npz", "classes.onnx")
    assert [name for name in written if not (tmp_path / name).is_file()] == []
    assert plan_contest(["simclr"], "patterns", out="~/contest").out == tmp_path / "contest"
    assert not Path("~").exists()


def test_an_export_where_one_wants_it(run: msvq.Run, tmp_path: Path) -> None:
    with pytest.raises(msvq.BadInput, match="unknown format"):
        run.export("no such format", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert run.export("safetensors", tmp_path / "y", licence="mit") == tmp_path / "y"
    assert list((tmp_path / "y").glob("*.safetensors"))


def test_a_run_is_pickled_by_its_name(run: msvq.Run) -> None:
    _ = run.encoder
    content = pickle.dumps(run)
    assert len(content) < 1000
    assert pickle.loads(content).metadata == run.metadata


def test_a_notebook_shows_curves_and_accuracies(run: msvq.Run) -> None:
    assert "\n" not in repr(run)
    page = run._repr_html_()
    assert page.count("<svg") == 2
    assert "msvq on patterns, 2 epochs" in page
    assert f"<td>{msvq.load(run.path).knn().top1:.1f} ± " in page
    # All style is for its own parts: nothing else in the notebook changes.
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert all(rule.strip().startswith(".msvq-run") for rule in re.findall(r"[^{}]+(?=\{)", style))


def test_names_in_a_notebook_are_escaped(run: msvq.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "<script>alert(1)<b>")
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["data"]["source"] = "/tmp/<img src=x>"
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    page = msvq.load(copy)._repr_html_()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page


def test_a_young_run_is_shown_too(run: msvq.Run, tmp_path: Path) -> None:
    shutil.copy(run.path / "config.yaml", tmp_path)
    page = msvq.load(tmp_path)._repr_html_()
    assert "0 epochs" in page
    assert "<svg" not in page


def test_public_names_come_from_where_they_are_said_to() -> None:
    assert set(dir(msvq)) == set(msvq.__all__)
    for name in msvq.__all__:
        assert getattr(msvq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        msvq.pretrian  # type: ignore[attr-defined]  # noqa: B018
    assert (Path(msvq.__file__).parent / "py.typed").is_file()
