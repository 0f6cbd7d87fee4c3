"""Outliers, selections, groups, wrong labels and classes: the maths, and the commands on pictures."""

import csv
import json
import os
import re
import shutil
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.search.conftest import NUM, Says, save_arrays
from threadpoolctl import threadpool_info, threadpool_limits

import msvq
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import to_csv
from msvq.data.patterns import make_patterns
from msvq.evaluate.diagnostics.groups import assign, choose_num, explain, find_centres, robust_deviations
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.whitening import Whitened, without_whitening
from msvq.runs.encoder import LoadedEncoder, Preprocessing, freeze, load_run_encoder
from msvq.search import classifier, findings, neighbours, outliers
from msvq.search.classifier import LinearClassifier, fit_classifier, load_classifier, out_of_fold, save_classifier
from msvq.search.clusters import cluster_pictures
from msvq.search.findings import PAGE_PICTURES, has_collapsed, shorten
from msvq.search.index import open_index, unit_rows
from msvq.search.inputs import Inputs
from msvq.search.mislabelled import judge_labels, neighbour_votes
from msvq.search.page import Card, Group
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


def test_a_picture_that_vanished_meanwhile_is_not_odd(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*given: Any) -> Any:
        (photos / "beach" / "04.png").unlink()
        return neighbours.nearest_neighbours(*given)

    monkeypatch.setattr(outliers, "nearest_neighbours", vanish)
    found = small_run.outliers(data=str(photos))
    assert len(found.names) == NUM - 1 and "beach/04.png" not in found.names


def test_neighbours_that_may_be_missed_are_told_to_whoever_asks(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"EXACT": 20, "CELL": 10, "PROBED": 2, "SAMPLE": 200}.items():
        monkeypatch.setattr(neighbours, name, value)
    for found in (
        small_run.outliers(data=photos),
        small_run.duplicates(data=photos),
        small_run.mislabelled(data=photos),
    ):
        assert any("each is compared with some 20 around it" in note for note in found.notes)


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


def test_a_page_shows_all_that_were_chosen(says: Says, small_run: msvq.Run, photos: Path) -> None:
    page = photos.parent / "chosen.html"
    assert says("select", small_run.path, "--data", photos, "--num", NUM, "--html", page)[0] == 0
    assert page.read_text().count("<figure>") == NUM


def test_groups_share_the_room_of_a_page() -> None:
    cards = [Card(position, str(position)) for position in range(PAGE_PICTURES + 100)]
    long, short, other = shorten([Group("a", "All.", cards), Group("b", "", cards[:3]), Group("c", "", cards)], 103)
    assert [len(group.cards) for group in (long, short, other)] == [50, 3, 50]
    assert (long.sentence, short.sentence) == ("All. The first 50 of them.", "")
    assert len(shorten([Group("a", "", cards)], PAGE_PICTURES)[0].cards) == PAGE_PICTURES


@pytest.mark.parametrize("command", ["select", "cluster"])
def test_work_that_would_take_days_is_refused(
    says: Says, small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(findings, "MOST_WORK", 5.5 * NUM * small_run.metadata.feature_dim)
    code, _, error = says(command, small_run.path, "--data", photos, "--num", 6)
    assert code == 2 and "take at most 5" in error.replace("\n", " ")
    assert says(command, small_run.path, "--data", photos, "--num", 5)[0] == 0


# --- groups


def test_the_groups_of_blobs_are_the_blobs() -> None:
    features, labels = blobs()
    assert choose_num(features) == 4
    found, cosines = assign(features, find_centres(features, 4))
    assert len({(int(a), int(b)) for a, b in zip(found, labels, strict=True)}) == 4
    assert cosines.min() > 0.8
    np.testing.assert_array_equal(found, assign(features, find_centres(features, 4))[0])


def test_the_sums_of_k_means_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.cluster import KMeans

    fit = KMeans.fit
    threads: list[int] = []

    def watched(self: Any, features: Any) -> Any:
        threads.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp")
        return fit(self, features)

    monkeypatch.setattr(KMeans, "fit", watched)
    with threadpool_limits(3, user_api="openmp"):
        find_centres(blobs()[0], 4)
    assert set(threads) == {1}


def test_no_table_of_pictures_by_groups_is_kept() -> None:
    features, centres = (unit_rows(np.random.default_rng(0).random((num, 4), np.float32)) for num in (40_000, 500))
    tracemalloc.start()
    assign(features, centres)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(features) * len(centres) * 4 / 2


def test_fewer_different_pictures_than_groups_are_told(small_run: msvq.Run, tmp_path: Path) -> None:
    images, _ = make_patterns(2, seed=5)
    np.savez(tmp_path / "x.npz", images=np.concatenate([images] * 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = small_run.cluster(4, data=tmp_path / "x.npz")
    assert found.sizes.tolist() == [3, 3]
    assert found.notes == ("only 2 of 4 groups have pictures in them: hardly more of the pictures differ",)


def test_groups_by_command_fill_a_folder(says: Says, small_run: msvq.Run, photos: Path) -> None:
    into, page, out = (photos.parent / name for name in ("sorted", "groups.html", "groups.csv"))
    words = ["--num", 3, "--into", into, "--html", page, "--out", out]
    code, said, _ = says("cluster", small_run.path, "--data", photos, *words)
    assert code == 0
    assert "30 pictures in" in said and "in 3 groups" in said
    assert len([path for path in into.rglob("*") if path.is_symlink()]) == 30
    assert "% beach" in page.read_text()
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 30
    printed = [re.split("  +", line.strip()) for line in said.splitlines() if re.match(r"  [1-3] ", line)]
    for number, (group, size, tightness, content, typical) in enumerate(printed, start=1):
        members = [row for row in rows if row["group"] == group]
        assert (int(group), int(size), typical) == (number, len(members), members[0]["file"])
        assert float(tightness) == pytest.approx(np.mean([float(row["cosine"]) for row in members]), abs=1e-3)
        share = sum(row["class"] == "beach" for row in members) / len(members)
        assert f"{share:.0%} beach" in content or not share
    assert len(printed) == 3


def test_long_names_are_cut_in_folders_of_links(small_run: msvq.Run, photos: Path) -> None:
    long = photos / "beach" / ("ä" * 124 + ".png")
    (photos / "beach" / "03.png").rename(long)
    small_run.cluster(2, data=photos, into=photos.parent / "sorted")
    links = [path for path in (photos.parent / "sorted").rglob("*.png") if path.resolve() == long.resolve()]
    assert len(links) == 1 and links[0].name.endswith("ä.png")


def test_links_may_lie_beside_a_list_but_not_beside_its_pictures(
    says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "lists").mkdir()
    listed = tmp_path / "lists" / "list.csv"
    listed.write_text("file\n" + "".join(f"{path}\n" for path in sorted(photos.rglob("*.png"))))
    words = ["cluster", small_run.path, "--data", listed, "--num", 2, "--into"]
    code, _, error = says(*words, photos / "beach" / "sorted")
    assert code == 2 and "lies among the pictures" in error
    assert says(*words, tmp_path / "lists" / "sorted")[0] == 0
    assert len(list((tmp_path / "lists" / "sorted").rglob("*.png"))) == NUM


def test_groups_of_arrays_are_filled_with_copies(small_run: msvq.Run, tmp_path: Path) -> None:
    save_arrays(tmp_path / "x.npz")
    found = cluster_pictures(Inputs(small_run, str(tmp_path / "x.npz")), num=2, into=tmp_path / "sorted")
    copies = sorted((tmp_path / "sorted" / "group-001").iterdir())
    first = found.positions[found.assignments == 0]
    images = np.load(tmp_path / "x.npz")["images"]
    assert len(copies) == len(first)
    assert any(np.array_equal(np.asarray(Image.open(copies[0])), images[place]) for place in first)
    assert "Group 1" in found._repr_html_()
    assert found.names == [f"train {position}" for position in found.positions]
    assert found.sizes.tolist() == np.bincount(found.assignments).tolist()


# --- labels


def test_a_swapped_label_is_the_most_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "ROWS", 7)
    features, truth = blobs()
    given = truth.copy()
    given[[5, 40]] = [3, 2]
    cosines = features @ features.T
    np.fill_diagonal(cosines, -2)
    near = np.argsort(-cosines, axis=1)[:, :10]
    cosines = np.take_along_axis(cosines, near, 1)
    votes = neighbour_votes(cosines, given[near], 4)
    np.testing.assert_allclose(votes.sum(1), 1)
    suspicion, other, agrees = judge_labels(features, given, cosines, near)
    assert set(np.argsort(-suspicion)[:2]) == {5, 40}
    assert other[[5, 40]].tolist() == truth[[5, 40]].tolist()
    assert (suspicion > 0).sum() == 2
    assert agrees == pytest.approx(118 / 120)
    predicted = np.zeros_like(votes)
    for rows, some in out_of_fold(features, given):
        predicted[rows] = some
    together = (votes[5] + predicted[5]) / 2
    assert suspicion[5] == pytest.approx(together[truth[5]] - together[given[5]])


def test_a_fold_copies_no_more_features_than_it_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "MOST", 50)
    features, labels = np.random.default_rng(0).random((40_000, 128), np.float32), np.arange(40_000) % 2
    tracemalloc.start()
    judged = np.concatenate([rows for rows, _ in out_of_fold(features, labels)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(np.sort(judged), np.arange(40_000))
    assert peak < features.nbytes * 0.6


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


def test_a_saved_classifier_is_the_same() -> None:
    made = LinearClassifier(("cät", "<dog>"), np.eye(2, 3, dtype="f4"), np.array([1, 2], np.float32), 90.0, 4, "key")
    path = save_classifier("cat-or-dog", made)
    found = load_classifier("cat-or-dog")
    np.testing.assert_array_equal(found.weight, made.weight)
    assert (found.class_names, found.accuracy, found.encoder_key) == (made.class_names, 90.0, "key")
    with pytest.raises(BadInput, match="there are cat-or-dog"):
        load_classifier("cats")
    with pytest.raises(BadInput, match="no name for a classifier"):
        save_classifier("../x", made)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadInput, match="is damaged"):
        load_classifier("cat-or-dog")


def test_pictures_are_classified_saved_and_exported(says: Says, small_run: msvq.Run, photos: Path) -> None:
    out, onnx, page = (photos.parent / name for name in ("c.csv", "c.onnx", "c.html"))
    words = ["--examples", photos, "--save", "places", "--onnx", onnx, "--out", out, "--html", page]
    code, said, _ = says("classify", small_run.path, "--data", photos, *words)
    assert code == 0
    assert said.startswith("The classifier is right for ")
    assert f"written  {onnx}" in said and "places.safetensors" in said
    rows = list(csv.DictReader(out.open()))
    assert [float(row["confidence"]) for row in rows] == sorted(float(row["confidence"]) for row in rows)
    code, again, _ = says("classify", small_run.path, "--data", photos, "--use", "places", "--json")
    assert json.loads(again)["rows"][0]["file"] == rows[0]["file"]
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["beach", "city"]
    size, mean, std = (json.loads(about[name]) for name in ("size", "mean", "std"))
    surest = rows[-1]
    picture = Image.open(photos / surest["file"]).crop((4, 0, 44, 40)).resize((size, size), Image.Resampling.BILINEAR)
    pixels = ((np.asarray(picture) / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]
    (found,) = session.run(None, {"pixel_values": pixels})
    assert json.loads(about["classes"])[int(found.argmax())] == surest["predicted"]
    assert found.max() == pytest.approx(float(surest["confidence"]), abs=0.02)


def test_examples_have_their_classes_where_folders_end_in_backslashes(
    small_run: msvq.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in sorted(photos.rglob("*.png")):  # names as they are on Windows, beside the folders that they name
        (tmp_path / "examples" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "examples" / f"{path.parent.name}\\{path.name}")
    monkeypatch.setattr(os, "sep", "\\")
    found = small_run.classify(tmp_path / "examples", data=photos / "beach")
    assert found.classifier.class_names == ("beach", "city") and found.classifier.num_examples == NUM


# --- mistakes


def test_mistakes_get_one_sentence_before_anything_is_embedded(
    says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, one, empty = (tmp_path / name for name in ("flat", "one", "empty"))
    flat.mkdir()
    for number in range(4):
        shutil.copy(photos / "beach" / f"0{number}.png", flat)
    shutil.copytree(photos, one)
    for path in sorted((one / "city").iterdir())[1:]:
        path.unlink()
    shutil.copytree(photos, empty)
    (empty / "none").mkdir()
    unread = shutil.copytree(photos, tmp_path / "unread")
    for path in (unread / "city").glob("*.png"):
        path.write_text("no picture")
    two = tmp_path / "two"
    two.mkdir()
    for number in range(2):
        shutil.copy(photos / "beach" / f"0{number}.png", two)
    seen_late: list[tuple[list[object], str]] = [
        (["outliers", "--data", two], "2 pictures are too few to tell which are odd"),
        (["classify", "--examples", unread], "the class 'city' has no readable picture"),
        (["select", "--num", 31], "--num 31 is more than the 30 pictures"),
        (["cluster", "--num", 31], "--num 31 is more than the 30 pictures"),
    ]
    seen_early: list[tuple[list[object], str]] = [
        (["outliers", "--num", 99], "--num 99 is more than the 32 pictures"),
        (["select", "--num", 99], "--num 99 is more than the 32 pictures"),
        (["select", "--num", 3, "--near", "nowhere.png"], "--near 'nowhere.png' is no file"),
        (["cluster", "--num", 1], "at least 2, not 1"),
        (["cluster", "--num", 2, "--into", flat], "holds something already"),
        (["mislabelled", "--data", flat], "has no labels to judge"),
        (["classify"], "give --examples"),
        (["classify", "--use", "nothing"], "there is no classifier 'nothing'"),
        (["classify", "--examples", flat], "names no classes"),
        (["classify", "--examples", one], "the class 'city' has one example"),
        (["classify", "--examples", empty], "the class 'none' has no picture"),
        (["classify", "--examples", photos, "--onnx", "x.pt"], "should end in .onnx"),
        (["classify", "--examples", photos, "--save", "a/b"], "no name for a classifier"),
        (["select", "--num", 3, "--avoid", "nowhere.png"], "--avoid 'nowhere.png' is no file"),
        (["cluster", "--num", 20], "take at most 14"),
        (["select", "--num", 14, "--avoid", "beach/03.png", "--avoid", "beach/04.png"], "take at most 12"),
    ]
    for (command, *words), expected in (*seen_late, *seen_early):
        if (command, *words) == tuple(seen_early[0][0]):
            monkeypatch.setattr("msvq.search.findings.MOST_WORK", 14.5 * 32 * small_run.metadata.feature_dim)
            for module in ("findings", "classify"):
                monkeypatch.setattr(f"msvq.search.{module}.open_index", lambda *_: pytest.fail("embeds already"))
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
    assert "the encoder has collapsed, or the pictures are all the same" in error.replace("\n", " ")


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


def test_a_classifier_serves_on_every_device(small_run: msvq.Run) -> None:
    encoder = load_run_encoder(small_run)
    other = encoder.to("cpu", "bf16")
    assert encoder.weights_key == other.weights_key and encoder.key != other.key


def test_of_few_pictures_all_are_listed(says: Says, small_run: msvq.Run, photos: Path) -> None:
    code, said, _ = says("outliers", small_run.path, "--data", photos, "--json")
    assert code == 0 and len(json.loads(said)["rows"]) == NUM


@pytest.fixture
def hostile(photos: Path) -> Path:
    """Pictures whose names are markup, formulas and commands to a terminal."""
    (photos / "beach").rename(photos / "<b>beach")
    (photos / "city").rename(photos / "=cmd()")
    (photos / "=cmd()" / "20.png").rename(photos / "=cmd()" / "\x1b[31m<script>.png")
    return photos


@pytest.mark.parametrize(
    "words",
    [
        ["outliers"],
        ["select", "--num", NUM],
        ["cluster", "--num", 2],
        ["mislabelled"],
        ["classify", "--examples", "photos"],
        ["duplicates", "--threshold", 0.01],
        ["embed"],
    ],
    ids=lambda words: str(words[0]),
)
def test_names_of_strangers_are_text_everywhere(
    says: Says, small_run: msvq.Run, hostile: Path, words: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile.parent)
    out, page = hostile.parent / "x.csv", hostile.parent / "x.html"
    shown = [] if words[0] == "embed" else ["--html", page, "--top", 99]
    code, said, error = says(words[0], small_run.path, *words[1:], "--data", hostile, "--out", out, *shown)
    assert code == 0
    written = page.read_text() if shown else ""
    assert "\x1b" not in said + error + written + out.read_text()
    assert "<script>" not in written and "<b>beach" not in written
    assert "script" in out.read_text() or words[0] == "mislabelled"
    assert all(not cell.startswith("=") for row in csv.reader(out.open()) for cell in row)


def test_a_cell_is_never_a_formula_and_numbers_stay_numbers() -> None:
    assert to_csv([("=1+1", "-x.jpg", "@a", -0.5, None, "a=b")]) == "'=1+1,'-x.jpg,'@a,-0.5,,a=b\n"


def test_python_gives_what_the_commands_give(says: Says, small_run: msvq.Run, photos: Path) -> None:
    code, said, _ = says("outliers", small_run.path, "--data", photos, "--num", 3, "--json")
    assert code == 0
    found = small_run.outliers(num=3, data=str(photos), html=photos.parent / "o.html")
    assert json.loads(said)["rows"] == found.records()
    assert (photos.parent / "o.html").is_file()
    assert found._repr_html_().count("<figure>") == 3
    assert found.names == [row["file"] for row in found.records()]
    searched = small_run.search([photos / "beach" / "03.png", "city/20.png"], data=photos, top=3)
    assert searched._repr_html_().count("<figure>") == 8 and "cannot be read" not in searched._repr_html_()
    assert len(small_run.select(4, data=str(photos)).positions) == 4
    assert set(small_run.cluster(2, data=str(photos)).assignments) == {0, 1}
    assert small_run.classify(photos, data=str(photos)).probabilities.shape == (NUM, 2)
