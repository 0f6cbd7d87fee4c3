"""Outliers, selections, groups, wrong labels and classes: the maths, and the commands on pictures."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.search.conftest import NUM, Says, save_arrays

import msvq
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import to_csv
from msvq.data.patterns import make_patterns
from msvq.evaluate.diagnostics.groups import assign, choose_num, explain, find_centres, robust_deviations
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.whitening import Whitened, without_whitening
from msvq.runs.encoder import LoadedEncoder, Preprocessing, freeze
from msvq.search.classifier import LinearClassifier, fit_classifier, load_classifier, out_of_fold, save_classifier
from msvq.search.clusters import cluster_pictures
from msvq.search.findings import has_collapsed
from msvq.search.index import open_index, unit_rows
from msvq.search.inputs import Inputs
from msvq.search.mislabelled import judge_labels, neighbour_votes
from msvq.search.selection import choose_pool, farthest_first

NOTHING = np.zeros((0, 8), np.float32)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))


def blobs(num: int = 120, kinds: int = 4, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit features around a few far centres, and which each is of."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num) % kinds
    return unit_rows((np.eye(8)[labels] + 0.1 * generator.normal(size=(num, 8))).astype(np.float32)), labels


# --- outliers


def test_deviations_do_not_follow_the_outliers() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1000.0])
    np.testing.assert_allclose(robust_deviations(values, 0.1), (values - 3.5) / (1.4826 * 1.5))
    assert robust_deviations(np.ones(5), 0.5).tolist() == [0] * 5


def test_reasons_come_in_the_order_of_their_weight() -> None:
    assert explain(np.array([4.0, 9.0, 0, 3.4, -2])) == "nearly empty or uniform, far from everything"
    assert explain(np.zeros(5)) == "a little unusual"


def test_an_empty_and_a_wide_picture_are_odd(says: Says, small_run: msvq.Run, photos: Path) -> None:
    Image.new("RGB", (48, 40), "white").save(photos / "city" / "blank.png")
    Image.open(photos / "beach" / "03.png").resize((400, 40)).save(photos / "beach" / "wide.png")
    out, page = photos.parent / "odd.json", photos.parent / "odd.html"
    code, said, _ = says("outliers", small_run.path, "--data", photos, "--num", 5, "--out", out, "--html", page)
    assert code == 0
    assert "The 5 of 32 pictures" in said
    why = {row["file"]: row["why"] for row in json.loads(out.read_text())["rows"]}
    assert "nearly empty" in why["city/blank.png"]
    assert "another shape" in why["beach/wide.png"]
    assert page.read_text().count("<figure>") == 5


# --- selection


def test_each_choice_is_the_least_covered_one() -> None:
    features, _ = blobs()
    chosen, cosines = farthest_first(features, 10, NOTHING)
    assert chosen[0] == np.argmax(features @ features.mean(0))
    for place in range(1, 10):
        covered = (features @ features[chosen[:place]].T).max(1)
        assert covered[chosen[place]] == pytest.approx(covered.min(), abs=1e-6)
        assert cosines[place] == pytest.approx(covered.min(), abs=1e-6)
    assert cosines[10] == pytest.approx((features @ features[chosen].T).max(1).min(), abs=1e-6)


def test_a_choice_of_few_covers_every_kind_and_avoids_what_is_covered() -> None:
    features, labels = blobs()
    assert sorted(labels[farthest_first(features, 4, NOTHING)[0]]) == [0, 1, 2, 3]
    assert set(labels[farthest_first(features, 2, features[:2])[0]]) == {2, 3}


def test_equal_pictures_are_all_chosen_once() -> None:
    assert sorted(farthest_first(np.tile(np.eye(8, dtype=np.float32)[:1], (5, 1)), 5, NOTHING)[0]) == list(range(5))


def test_a_choice_near_examples_is_among_their_like() -> None:
    features, labels = blobs()
    assert set(labels[choose_pool(features, features[2:3], NOTHING, 5)]) == {2}
    assert len(choose_pool(features, NOTHING, NOTHING, 5)) == 120
    assert 1 not in labels[choose_pool(features, features[2:3], features[1:2], 15)]


def test_pictures_are_chosen_by_command(says: Says, small_run: msvq.Run, photos: Path) -> None:
    out = photos.parent / "chosen.csv"
    words = ["--near", "city/20.png", "--avoid", photos / "beach" / "03.png", "--num", 4, "--out", out]
    code, said, _ = says("select", small_run.path, "--data", photos, *words)
    assert code == 0
    assert "4 of 30 pictures" in said
    assert len({row["file"] for row in csv.DictReader(out.open())}) == 4


# --- groups


def test_the_groups_of_blobs_are_the_blobs() -> None:
    features, labels = blobs()
    assert choose_num(features) == 4
    found, cosines = assign(features, find_centres(features, 4))
    assert len({(int(a), int(b)) for a, b in zip(found, labels, strict=True)}) == 4
    assert cosines.min() > 0.8
    np.testing.assert_array_equal(found, assign(features, find_centres(features, 4))[0])


def test_groups_by_command_fill_a_folder(says: Says, small_run: msvq.Run, photos: Path) -> None:
    into, page = photos.parent / "sorted", photos.parent / "groups.html"
    code, said, _ = says("cluster", small_run.path, "--data", photos, "--num", 3, "--into", into, "--html", page)
    assert code == 0
    assert "30 pictures in" in said and "in 3 groups" in said
    assert len([path for path in into.rglob("*") if path.is_symlink()]) == 30
    assert "% beach" in page.read_text()


def test_groups_of_arrays_are_filled_with_copies(small_run: msvq.Run, tmp_path: Path) -> None:
    save_arrays(tmp_path / "x.npz")
    found = cluster_pictures(Inputs(small_run, str(tmp_path / "x.npz")), num=2, into=tmp_path / "sorted")
    copies = sorted((tmp_path / "sorted" / "group-001").iterdir())
    first = found.positions[found.assignments == 0]
    images = np.load(tmp_path / "x.npz")["images"]
    assert len(copies) == len(first)
    assert any(np.array_equal(np.asarray(Image.open(copies[0])), images[place]) for place in first)
    assert "Group 1" in found._repr_html_()


# --- labels


def test_a_swapped_label_is_the_most_suspicious() -> None:
    features, truth = blobs()
    given = truth.copy()
    given[[5, 40]] = [3, 2]
    cosines = features @ features.T
    np.fill_diagonal(cosines, -2)
    near = np.argsort(-cosines, axis=1)[:, :10]
    votes = neighbour_votes(np.take_along_axis(cosines, near, 1), given[near], 4)
    np.testing.assert_allclose(votes.sum(1), 1)
    suspicion, other = judge_labels(given, votes, out_of_fold(features, given))
    assert set(np.argsort(-suspicion)[:2]) == {5, 40}
    assert other[[5, 40]].tolist() == truth[[5, 40]].tolist()
    assert (suspicion > 0).sum() == 2


def test_wrong_labels_are_listed_by_command(says: Says, small_run: msvq.Run, tmp_path: Path) -> None:
    for kind, colour in enumerate(((220, 40, 40), (40, 200, 60), (50, 60, 220))):
        images, _ = make_patterns(12, seed=kind)
        for number, image in enumerate(images):
            path = tmp_path / "set" / f"kind{(kind + 1) % 3 if number == 0 else kind}" / f"{kind}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((0.2 * image + 0.8 * np.array(colour)).astype(np.uint8)).save(path)
    out, page = tmp_path / "labels.csv", tmp_path / "labels.html"
    code, _, _ = says("mislabelled", small_run.path, "--data", tmp_path / "set", "--out", out, "--html", page)
    assert code == 0
    rows = list(csv.DictReader(out.open()))
    assert {row["file"] for row in rows[:3]} == {"kind1/0-0.png", "kind2/1-0.png", "kind0/2-0.png"}
    assert {row["looks_like"] for row in rows[:3]} == {"kind0", "kind1", "kind2"}
    assert "or kind" in page.read_text()


# --- classes


def test_a_classifier_learns_from_two_examples_of_each_class() -> None:
    features, labels = blobs(8)
    made = fit_classifier(features, labels, ("a", "b", "c", "d"), "key")
    assert made.accuracy == 100
    others, truth = blobs(80, seed=1)
    found = made.probabilities(others)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert (found.argmax(1) == truth).mean() > 0.95


def test_two_classes_have_the_probabilities_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = blobs(40, kinds=2)
    made = fit_classifier(features, labels, ("a", "b"), "key")
    expected = LogisticRegression(C=100.0, max_iter=300).fit(features, labels).predict_proba(features)
    np.testing.assert_allclose(made.probabilities(features), expected, atol=1e-4)


def test_chance_is_not_called_accuracy() -> None:
    generator = np.random.default_rng(0)
    features = unit_rows(generator.normal(size=(200, 8)).astype(np.float32))
    assert fit_classifier(features, generator.integers(0, 2, 200), ("a", "b"), "key").accuracy < 62


def test_a_saved_classifier_is_the_same_and_of_its_encoder_alone() -> None:
    made = LinearClassifier(("cät", "<dog>"), np.eye(2, 3, dtype="f4"), np.array([1, 2], np.float32), 90.0, 4, "key")
    path = save_classifier("cat-or-dog", made)
    found = load_classifier("cat-or-dog", "key")
    np.testing.assert_array_equal(found.weight, made.weight)
    assert (found.class_names, found.accuracy) == (made.class_names, 90.0)
    with pytest.raises(BadInput, match="another encoder"):
        load_classifier("cat-or-dog", "other")
    with pytest.raises(BadInput, match="there are cat-or-dog"):
        load_classifier("cats", "key")
    with pytest.raises(BadInput, match="no name for a classifier"):
        save_classifier("../x", made)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadInput, match="is damaged"):
        load_classifier("cat-or-dog", "key")


def test_pictures_are_classified_saved_and_exported(says: Says, small_run: msvq.Run, photos: Path) -> None:
    out, onnx, page = (photos.parent / name for name in ("c.csv", "c.onnx", "c.html"))
    words = ["--examples", photos, "--save", "places", "--onnx", onnx, "--out", out, "--html", page]
    code, said, _ = says("classify", small_run.path, "--data", photos, *words)
    assert code == 0
    assert said.startswith("The classifier is right for ")
    rows = list(csv.DictReader(out.open()))
    assert [float(row["confidence"]) for row in rows] == sorted(float(row["confidence"]) for row in rows)
    code, again, _ = says("classify", small_run.path, "--data", photos, "--use", "places", "--json")
    assert json.loads(again)["rows"][0]["file"] == rows[0]["file"]
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["beach", "city"]
    size, mean, std = (json.loads(about[name]) for name in ("size", "mean", "std"))
    picture = Image.open(photos / rows[0]["file"]).crop((4, 0, 44, 40)).resize((size, size), Image.Resampling.BILINEAR)
    pixels = ((np.asarray(picture) / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]
    (found,) = session.run(None, {"pixel_values": pixels})
    assert found.max() == pytest.approx(float(rows[0]["confidence"]), abs=0.02)


# --- mistakes


def test_mistakes_get_one_sentence(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    flat, one, empty = (tmp_path / name for name in ("flat", "one", "empty"))
    flat.mkdir()
    for number in range(4):
        shutil.copy(photos / "beach" / f"0{number}.png", flat)
    shutil.copytree(photos, one)
    for path in sorted((one / "city").glob("*.png"))[1:]:
        path.unlink()
    shutil.copytree(photos, empty)
    (empty / "none").mkdir()
    unread = shutil.copytree(photos, tmp_path / "unread")
    for path in (unread / "city").glob("*.png"):
        path.write_text("no picture")
    cases: list[tuple[list[object], str]] = [
        (["outliers", "--num", 99], "--num 99 is more than the 30 pictures"),
        (["select", "--num", 31], "--num 31 is more than the 30 pictures"),
        (["select", "--num", 3, "--near", "nowhere.png"], "--near 'nowhere.png' is no file"),
        (["cluster", "--num", 31], "--num 31 is more than the 30 pictures"),
        (["cluster", "--num", 1], "at least 2, not 1"),
        (["cluster", "--num", 2, "--into", flat], "holds something already"),
        (["mislabelled", "--data", flat], "has no labels to judge"),
        (["classify"], "give --examples"),
        (["classify", "--use", "nothing"], "there is no classifier 'nothing'"),
        (["classify", "--examples", flat], "names no classes"),
        (["classify", "--examples", one], "the class 'city' has one example"),
        (["classify", "--examples", empty], "the class 'none' has no picture"),
        (["classify", "--examples", unread], "the class 'city' has no readable picture"),
        (["classify", "--examples", photos, "--onnx", "x.pt"], "should end in .onnx"),
        (["classify", "--examples", photos, "--save", "a/b"], "no name for a classifier"),
    ]
    for (command, *words), expected in cases:
        data = [] if "--data" in words else ["--data", photos]
        code, said, error = says(str(command), small_run.path, *data, *map(str, words))
        assert (code, said) == (2, ""), command
        assert expected in error.replace("\n", " ")


def test_a_collapsed_encoder_is_refused(
    says: Says, small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msvq.search.findings.has_collapsed", lambda encoder, index: True)
    code, _, error = says("outliers", small_run.path, "--data", photos)
    assert code == 2
    assert "the encoder has collapsed" in error


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("noise", [1e-6, 1.0])
def test_features_that_hardly_differ_are_a_collapse(photos: Path, whiten: bool, noise: float) -> None:
    """A whitening makes them differ as much as any."""
    torch.manual_seed(0)
    settings = BackboneSettings(name="resnet8", width=4, stem="small", whiten=whiten)
    network = make_backbone(settings, 32).eval()
    backbone = without_whitening(network)
    backbone.register_forward_hook(lambda module, inputs, output: 1 + noise * output)
    how = Preprocessing(size=32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    if isinstance(network, Whitened):
        with torch.no_grad():
            network.whitening.fit(backbone(how.view(torch.from_numpy(np.array(make_patterns(64, seed=0)[0])))))
    encoder = LoadedEncoder(
        "mine", freeze(network), how, settings, train_size=32, feature_dim=network.feature_dim, method="x", data="y"
    )
    source = Inputs(encoder, str(photos)).open_source()
    index = open_index(source, encoder, Display())
    assert has_collapsed(encoder, index) == (noise < 1)


def test_of_few_pictures_all_are_listed(says: Says, small_run: msvq.Run, photos: Path) -> None:
    code, said, _ = says("outliers", small_run.path, "--data", photos, "--json")
    assert code == 0 and len(json.loads(said)["rows"]) == NUM


def test_names_of_strangers_are_text_everywhere(says: Says, small_run: msvq.Run, photos: Path) -> None:
    (photos / "beach").rename(photos / "<b>beach")
    (photos / "city").rename(photos / "=cmd()")
    (photos / "=cmd()" / "20.png").rename(photos / "=cmd()" / "\x1b[31m<script>.png")
    out, page = photos.parent / "x.csv", photos.parent / "x.html"
    code, said, _ = says(
        "cluster", small_run.path, "--data", photos, "--num", 2, "--out", out, "--html", page, "--top", 99
    )
    assert code == 0
    assert "\x1b" not in said + page.read_text() + out.read_text()
    assert "<script>" not in page.read_text() and "<b>beach" not in page.read_text()
    features = photos.parent / "features.csv"
    assert says("embed", small_run.path, "--data", photos, "--out", features)[0] == 0
    for file in (out, features):
        assert all(not cell.startswith("=") for row in csv.reader(file.open()) for cell in row)


def test_a_cell_is_never_a_formula_and_numbers_stay_numbers() -> None:
    assert to_csv([("=1+1", "-x.jpg", "@a", -0.5, None, "a=b")]) == "'=1+1,'-x.jpg,'@a,-0.5,,a=b\n"


def test_python_gives_what_the_commands_give(says: Says, small_run: msvq.Run, photos: Path) -> None:
    code, said, _ = says("outliers", small_run.path, "--data", photos, "--num", 3, "--json")
    assert code == 0
    found = small_run.outliers(num=3, data=str(photos), html=photos.parent / "o.html")
    assert json.loads(said)["rows"] == found.records()
    assert (photos.parent / "o.html").is_file()
    assert found._repr_html_().count("<figure>") == 3
    assert len(small_run.select(4, data=str(photos)).positions) == 4
    assert set(small_run.cluster(2, data=str(photos)).assignments) == {0, 1}
    assert small_run.classify(photos, data=str(photos)).probabilities.shape == (NUM, 2)
