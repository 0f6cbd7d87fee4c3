"""msvq evaluate, analyze and report as a person uses them, on one small run, and what they may get wrong."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import msvq
from msvq.cli import main
from msvq.data.patterns import CLASS_NAMES, make_patterns
from msvq.data.sources import open_dataset
from msvq.evaluate.labels import stratified
from msvq.evaluate.protocols import PROTOCOLS
from msvq.report.page import write_report
from msvq.report.records import read_record
from msvq.runs.encoder import load_method, load_run_encoder
from msvq.runs.evaluate import evaluate

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64", "evaluate.every=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """In fp32, as the protocols are: what is logged on the way is in the run's own precision."""
    out = tmp_path_factory.mktemp("runs") / "x"
    return msvq.pretrain(data="patterns", out=out, epochs=2, precision="fp32", overrides=SMALL)


@pytest.fixture
def unlabelled(tmp_path: Path) -> msvq.Run:
    images, _ = make_patterns(80, seed=3)
    np.savez(tmp_path / "pictures.npz", images=images)
    return msvq.pretrain(data=str(tmp_path / "pictures.npz"), out=tmp_path / "run", epochs=1, overrides=SMALL[:-3])


def shell(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def read(run: msvq.Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "eval" / f"{name}.json").read_text())
    return found


def test_knn_after_training_is_the_last_that_was_logged(run: msvq.Run) -> None:
    logged = [line for line in run.metrics() if "knn_top1" in line]
    result = read(run, "knn")
    assert result["protocol"] == "knn-200-t0.1/1"
    assert result["top1"] == pytest.approx(logged[-1]["knn_top1"])
    assert result["top1"] <= result["top5"] <= 100
    confusion = np.array(result["confusion"])
    assert confusion.sum() == result["num_test"] == 200
    assert 100 * np.trace(confusion) / 200 == pytest.approx(result["top1"])
    assert result["class_names"] == list(CLASS_NAMES)


def test_the_log_has_a_held_out_accuracy_and_the_best_checkpoint_is_its(run: msvq.Run) -> None:
    lines = [line for line in run.metrics() if "knn_top1_val" in line]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    best = max(lines[1:], key=lambda line: line["knn_top1_val"])
    assert load_run_encoder(run, "best").step == best["step"]
    assert load_run_encoder(run, "last").step == lines[-1]["step"]


def test_every_protocol_by_command(run: msvq.Run, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"linear": ["--set", "epochs=2"], "finetune": ["--set", "epochs=1", "--set", "min_steps=4"]}
    for protocol in PROTOCOLS:
        code, out, err = shell(capsys, "evaluate", run.path, "--protocol", protocol, *few.get(protocol, []))
        assert code == 0, err
        assert "top-1" in out
        assert protocol in out
    assert read(run, "probe")["protocol"] == "probe/1"
    assert read(run, "linear-epochs-2")["protocol"] == "linear-2/1"
    tuned = read(run, "finetune-epochs-1-min_steps-4")
    assert tuned["protocol"] == "finetune-all/1+epochs=1+min_steps=4"
    assert 0 <= tuned["scratch_top1"] <= 100
    assert not (run.path / "eval" / "linear.json").exists()  # a changed protocol is not the frozen one's result


def test_an_accuracy_never_stands_alone(run: msvq.Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = shell(capsys, "evaluate", run.path, "--protocol", "probe")
    assert code == 0, err
    for words in (
        "untrained",
        "pixels",
        "by chance: always the commonest class",
        "200 test pictures; ± is one standard",
    ):
        assert words in out
    assert re.search(r"^ *pixels +\d+\.\d ± \d\.\d % ", out, re.MULTILINE)
    found = read(run, "probe")
    assert [row["encoder"] for row in found["beside"]][1:] == ["untrained", "pixels"]
    test = open_dataset(run.config.data).test.labels
    assert found["chance"] == pytest.approx(100 * np.bincount(test).max() / len(test))
    assert f"{found['top1']:.1f} ± " in out
    judged = read(run, "analysis")["knn"]
    assert judged["chance"] == found["chance"] and judged["pictures"] == 200
    assert f"{judged['accuracy']['trained']:.1f} ± " in read(run, "analysis")["verdict"]["sentence"]
    told = str(run.probe())
    assert " ± " in told and f"(chance {found['chance']:.1f} %, top-5" in told


def test_what_was_measured_beside_a_run_stays(run: msvq.Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = "cifar10-msvq-narrow"
    words = ("evaluate", run.path, "--set", "k=7")
    code, _, err = shell(capsys, *words, "--beside", other, "--beside", "pixels", "--json")
    assert code == 0, err
    rows = read(run, "knn-k-7")["beside"]
    assert [row["encoder"] for row in rows][1:] == [other, "pixels", "untrained"]  # those too that are usual, once
    assert shell(capsys, *words)[0] == 0  # which measures the usual two
    stayed = {row["encoder"]: row for row in read(run, "knn-k-7")["beside"]}
    assert list(stayed)[1:] == ["untrained", "pixels", other] and stayed[other] == rows[1]
    run.knn(k=7)  # which measures none
    assert list(read(run, "knn-k-7")["beside"]) == list(stayed.values())
    path = run.path / "eval" / "knn-k-7.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": 1}))
    run.knn(k=7)
    assert "beside" not in read(run, "knn-k-7")  # of other weights, nothing is kept
    path.unlink()


def test_a_file_in_a_run_and_its_rivals_see_the_same_pictures(run: msvq.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def opened(settings: Any, **options: Any) -> Any:
        limits.append(settings.limit)
        return open_dataset(settings.model_copy(update={"limit": 64}), **options)

    monkeypatch.setattr("msvq.runs.evaluate.open_dataset", opened)
    assert run.config.data.limit is not None
    result, path = evaluate(run.path / "encoder.safetensors", data="patterns", beside=["pixels", "untrained"])
    assert limits == [None, None, None] and path is None and len(result.beside) == 3


def test_few_labels_several_seeds_and_a_checkpoint_are_in_the_name(run: msvq.Run) -> None:
    found, path = evaluate(run, protocol="probe", labels=0.1, seeds=3, checkpoint="best")
    result = found.record
    assert path is not None and path.name == "probe-labels-0.1-seeds-3-best.json"
    known = open_dataset(run.config.data).labelled.labels
    assert result["num_labels"] == len(stratified(known, 0.1, seed=0))
    assert result["num_labels"] < 0.15 * len(known)
    tops = [one["top1"] for one in result["runs"]]
    assert result["seeds"] == [0, 1, 2]
    assert result["top1"] == pytest.approx(np.mean(tops))
    assert result["top1_std"] == pytest.approx(np.std(tops, ddof=1))


def test_transfer_to_other_pictures(run: msvq.Run, tmp_path: Path) -> None:
    (train, known), (test, truth) = make_patterns(120, seed=5), make_patterns(60, seed=6)
    arrays: dict[str, Any] = {
        "train_images": train,
        "train_labels": known % 2,
        "test_images": test,
        "test_labels": truth % 2,
    }
    np.savez(tmp_path / "two.npz", **arrays)
    followed, _ = evaluate(run, data=str(tmp_path / "two.npz"))
    assert followed.protocol == "knn-60-t0.1/1"  # as many as a class has, where no k is named
    found, path = evaluate(run, data=str(tmp_path / "two.npz"), overrides=["k=20", "temp=0.1"])
    result = found.record
    assert path is not None and path.name == "knn-on-two-k-20.json"
    assert result["protocol"] == "knn-20-t0.1/1"
    assert result["data"] == "two"
    assert result["num_test"] == 60
    assert result["data_fingerprint"] != read(run, "knn")["data_fingerprint"]


def test_checkpoints_by_path_and_weights_that_do_not_belong(run: msvq.Run, tmp_path: Path) -> None:
    named = load_run_encoder(run, str(run.path / "checkpoints" / "last.ckpt"))
    saved = load_file(run.path / "encoder.safetensors")
    for name, value in named.network.state_dict().items():
        assert torch.equal(value, saved[name]), name
    other = msvq.pretrain(data="patterns", out=tmp_path / "y", epochs=1, overrides=["backbone.width=8", *SMALL[1:]])
    with pytest.raises(msvq.BadInput, match="of another network"):
        load_run_encoder(run, str(other.path / "encoder.safetensors"))
    with pytest.raises(msvq.BadInput, match=r"backbone.width is 8, and config.yaml says 4"):
        load_run_encoder(run, str(other.path / "checkpoints" / "last.ckpt"))
    config = other.path / "config.yaml"
    config.write_text(config.read_text().replace("teacher_temp: 0.04", "teacher_temp: 0.05"))
    load_run_encoder(msvq.load(other.path), "best")
    with pytest.raises(msvq.BadInput, match=r"method.teacher_temp is 0.04, and config.yaml says 0.05"):
        load_method(msvq.load(other.path))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "{tmp}"], "is not a run"),
        (["evaluate", "{run}", "--protocol", "knm"], "did you mean 'knn'?"),
        (["evaluate", "{run}", "--set", "k=100000"], "--set k="),
        (["evaluate", "{run}", "--set", "kk=3"], "did you mean 'k'?"),
        (["evaluate", "{run}", "--protocol", "linear", "--set", "view.flipp=1"], "view 'flipp'; did you mean 'flip'?"),
        (["evaluate", "{run}", "--labels", "0"], "above 0 and at most 1"),
        (["evaluate", "{run}", "--checkpoint", "{tmp}/none.ckpt"], "there is no checkpoint"),
        (["evaluate", "{run}", "--checkpoint", "{tmp}/broken.ckpt"], "is damaged"),
        (["evaluate", "{run}", "--checkpoint", "{tmp}/broken.safetensors"], "is damaged"),
        (["evaluate", "{run}", "--checkpoint", "{tmp}/foreign.ckpt"], "no checkpoint of msvq"),
        (["evaluate", "{run}", "--checkpoint", "{tmp}/text.ckpt"], "no checkpoint of msvq"),
        (["evaluate", "{run}", "--precision", "fp8"], "unknown precision"),
        (["evaluate", "{run}", "--data", "cifar11"], "did you mean"),
        (["analyze", "{tmp}"], "is not a run"),
        (["analyze", "{run}", "--checkpoint", "{run}/encoder.safetensors"], "holds an encoder alone"),
        (["report", "{tmp}"], "is not a run"),
        (["report", "{run}", "{run}"], "--out"),
        (["report", "{run}", "--out", "{tmp}/photo.jpg"], "should end in .html"),
        (["report", "{run}", "{run}", "--out", "{run}/report.html"], "would write over the run in"),
        (["report", "{run}", "--out", "{run}/eval/page.html"], "would write over the run in"),
        (["search", "{run}", "--query", "x.png", "--html", "{run}/report.html"], "would write over the run in"),
        (["embed", "{run}", "--out", "{run}/eval/neighbours.npz"], "would write over the run in"),
        (["duplicates", "{run}", "--out", "{run}/skipped.csv"], "would write over the run in"),
        (["evaluate", "{run}", "--protocol", "probe", "--set", "strengths=[1e300]"], "less than or equal to 1000000"),
        (["evaluate", "{run}", "--protocol", "linear", "--set", "size=7"], "greater than or equal to 8"),
    ],
)
def test_bad_input_is_one_sentence(
    run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    (tmp_path / "broken.ckpt").write_bytes((run.path / "checkpoints" / "last.ckpt").read_bytes()[:5000])
    (tmp_path / "broken.safetensors").write_bytes((run.path / "encoder.safetensors").read_bytes()[:500])
    torch.save({"weights": torch.zeros(3)}, tmp_path / "foreign.ckpt")
    (tmp_path / "text.ckpt").write_text("hello world, this is no checkpoint")
    filled = [word.format(run=run.path, tmp=tmp_path) for word in words]
    code, out, err = shell(capsys, *filled)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1, err
    assert "Traceback" not in out + err


def test_a_run_without_labels_is_analysed_but_not_scored(
    unlabelled: msvq.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = shell(capsys, "evaluate", unlabelled.path)
    assert (code, "has no labels" in err, "'msvq analyze' does without" in " ".join(err.split())) == (2, True, True)
    code, out, err = shell(capsys, "evaluate", unlabelled.path, "--beside", "pixels")
    assert code == 0, err
    kept = read(unlabelled, "beside")
    assert [row["encoder"] for row in kept["beside"]] == [str(unlabelled.path), "pixels"]
    assert kept["step"] == load_run_encoder(unlabelled).step and kept["pictures"] > 70
    assert "beside.json" in "".join(out.split())
    assert "Beside other encoders" in write_report(unlabelled.path).read_text()
    code, out, err = shell(capsys, "analyze", unlabelled.path)
    assert code == 0, err
    assert "changed copies that find their originals by" in out and "colour histogram" in out
    assert read(unlabelled, "analysis")["knn"] is None
    audit = read(unlabelled, "analysis")["false_negatives"]
    assert audit["view2"]["found"] is None
    assert audit["view2"]["entropy"] > 0
    assert "report.html" in out


def test_analysis_of_the_run(run: msvq.Run, capsys: pytest.CaptureFixture[str]) -> None:
    after_training = read(run, "analysis")
    code, out, err = shell(capsys, "analyze", run.path)
    assert code == 0, err
    assert "view2" in out
    again = read(run, "analysis")
    assert (again["copies"], again["knn"]) == (after_training["copies"], after_training["knn"])
    logged = [line["knn_top1"] for line in run.metrics() if "knn_top1" in line]
    accuracy = again["knn"]["accuracy"]
    assert (accuracy["untrained"], accuracy["trained"]) == (logged[0], pytest.approx(logged[-1]))
    assert accuracy["trained"] == read(run, "knn")["top1"]
    assert (again["copies"]["held_out"], again["copies"]["pictures"]) == (200, 520)
    assert "nearest neighbours name" in again["verdict"]["sentence"]
    assert again["false_negatives"] == after_training["false_negatives"]  # the same batches, from the checkpoint
    audit = again["false_negatives"]
    single = [audit[view]["found"] for view in ("view2", "view3", "view4")]
    assert max(single) <= audit["all"]["found"] <= sum(single)
    assert set(audit["by_class"]) == set(CLASS_NAMES)
    lines = [line["false_negatives"] for line in run.metrics() if "false_negatives" in line]
    assert [set(line) for line in lines] == [{"view2", "view3", "view4", "all"}] * 2
    assert run.metrics()[0]["kind"] == "eval"


def test_the_gallery_shows_what_is_in_the_queue(run: msvq.Run) -> None:
    with np.load(run.path / "eval" / "gallery.npz", allow_pickle=False) as arrays:
        saved = {name: arrays[name] for name in arrays.files}
    assert saved["views"].tolist() == ["view2", "view3", "view4"]
    assert saved["found_images"].shape == (3, 10, 5, 32, 32, 3)
    assert (saved["found_labels"] >= 0).all()
    assert ((saved["found_weights"] >= 0) & (saved["found_weights"] <= 1)).all()
    assert (saved["worst_labels"][:, 0] != saved["worst_labels"][:, 1]).all()
    # Each picture shown has the label that is written under it: it is one of the training set, with that label.
    data = open_dataset(run.config.data).train
    images, labels = data.take(range(len(data))), data.labels
    known = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    shown = zip(saved["found_images"].reshape(-1, 32, 32, 3), saved["found_labels"].reshape(-1), strict=True)
    assert all(known[image.tobytes()] == label for image, label in shown)


def test_methods_without_soft_labels_have_no_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [setting for setting in SMALL if "queue" not in setting]
    run = msvq.pretrain(data="patterns", method="simsiam", out=tmp_path / "s", epochs=1, overrides=small)
    assert read(run, "analysis")["false_negatives"] is None
    code, out, _ = shell(capsys, "analyze", run.path)
    assert (code, "no soft labels" in out) == (0, True)


def test_a_page_goes_where_its_folders_really_are(
    run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").symlink_to(run.path)
    (tmp_path / "eval").symlink_to(run.path / "eval")
    assert shell(capsys, "report", tmp_path / "run", "--out", run.path / "report.html")[0] == 0
    assert shell(capsys, "report", run.path, "--out", run.path / "eval" / ".." / "page.html")[0] == 0
    code, _, err = shell(capsys, "report", run.path, "--out", tmp_path / "eval" / "page.html")
    assert code == 2 and "would write over the run in" in err
    (run.path / "page.html").unlink()


def test_a_report_of_two_runs(run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    code, out, err = shell(capsys, "report", run.path, copy, "--out", tmp_path / "both.html")
    assert code == 0, err
    page = (tmp_path / "both.html").read_text()
    assert "both.html" in out
    rows = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*</tr>", page, re.DOTALL)
    for name in ("copy", run.path.name):
        assert any(re.search(rf">\s*{name}\s*<", row) for row in rows), name


def test_the_page_shows_the_runs_own_result_and_not_a_variant(run: msvq.Run, tmp_path: Path) -> None:
    copy = msvq.load(shutil.copytree(run.path, tmp_path / "copy"))
    plain, _ = evaluate(copy, protocol="probe")
    evaluate(copy, protocol="probe", labels=0.1)
    evaluate(copy, protocol="knn", checkpoint="best")
    evaluate(copy, protocol="knn", overrides=["k=7"])
    record = read_record(copy.path)
    assert (found := record.result("probe")) is not None and found.top1 == plain.top1
    assert (found := record.result("probe")) is not None and found.labels == 1
    assert (found := record.result("knn")) is not None and found.protocol == "knn-200-t0.1/1"
    assert (found := record.result("knn")) is not None and found.checkpoint == "last"


def test_a_checkpoint_of_another_run_takes_no_name_of_ones_own(run: msvq.Run, tmp_path: Path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")
    before = read(run, "knn")
    found, path = evaluate(run, checkpoint=str(other / "checkpoints" / "last.ckpt"))
    result = found.record
    assert path is not None and path.name != "knn.json"
    assert result["checkpoint"].startswith("last-")
    assert read(run, "knn") == before
    path.unlink()


def test_a_run_with_another_k_says_so_in_the_name(tmp_path: Path) -> None:
    run = msvq.pretrain(data="patterns", out=tmp_path / "k", epochs=1, overrides=[*SMALL, "evaluate.knn_k=7"])
    assert not (run.path / "eval" / "knn.json").exists()
    assert read(run, "knn-k-7")["protocol"] == "knn-7-t0.1/1"
    assert (found := read_record(run.path).result("knn")) is not None and found.settings["k"] == 7


def test_an_interrupted_run_is_evaluated_from_its_checkpoint(
    run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    for name in ("encoder.safetensors", "encoder.json"):
        (copy / name).unlink()
    code, out, err = shell(capsys, "evaluate", copy)
    assert code == 0, err
    assert read(msvq.load(copy), "knn")["top1"] == read(run, "knn")["top1"]
    images, labels = make_patterns(60, seed=5)
    np.savez(tmp_path / "more.npz", images=images, labels=labels)
    code, out, err = shell(capsys, "evaluate", copy, "--data", tmp_path / "more.npz", "--set", "k=5")
    assert code == 0, err
    assert "on more" in out


@pytest.mark.parametrize("name", ["eval/knn.json", "eval/map.npz", "config.yaml", "environment.json"])
def test_a_damaged_file_of_the_report_is_named(
    run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    path = copy / name
    path.write_bytes(path.read_bytes()[:40] + b"[{")
    code, _, err = shell(capsys, "report", copy)
    assert code == 2
    assert f"{path.name}' is damaged" in err


def test_a_nested_setting_of_a_protocol_leaves_its_neighbours_alone(run: msvq.Run) -> None:
    found, path = evaluate(run, protocol="linear", overrides=["epochs=1", "view.flip=0.2"])
    result = found.record
    assert result["settings"]["view"]["flip"] == 0.2
    assert result["settings"]["view"]["crop_area"] == [0.08, 1.0]
    assert path is not None and path.name == "linear-epochs-1-view.flip-0.2.json"
