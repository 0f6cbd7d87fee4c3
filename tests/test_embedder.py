"""A run as a step of scikit-learn's pipelines."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import msvq
from msvq.data.patterns import make_patterns
from msvq.runs.encoder import LoadedEncoder

SMALL = ["backbone.width=4", "data.limit=64", "train.batch_size=32", "method.queue_size=64"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL)


@pytest.fixture(scope="module")
def pictures() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return make_patterns(60, seed=5)


@pytest.fixture
def files(tmp_path: Path, pictures: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(len(pictures[0]))]
    for path, image in zip(paths, pictures[0], strict=True):
        Image.fromarray(image).save(path)
    return paths


def test_a_pipeline_takes_arrays_and_files(
    run: msvq.Run, pictures: tuple[NDArray[np.uint8], NDArray[np.int64]], files: list[Path]
) -> None:
    images, labels = pictures
    pipeline = make_pipeline(msvq.Embedder(str(run.path)), LogisticRegression(max_iter=500)).fit(images, labels)
    assert pipeline.score(images, labels) > 0.3
    names = list(map(str, files))
    for given in (images, list(images), files, names, tuple(names), np.array(names)):
        np.testing.assert_array_equal(pipeline.predict(given), pipeline.predict(images))
    again = make_pipeline(msvq.Embedder(run), LogisticRegression(max_iter=500)).fit(files, labels)
    np.testing.assert_allclose(again.predict_proba(images), pipeline.predict_proba(images), atol=1e-3)


def test_features_are_those_of_the_run(run: msvq.Run, pictures: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> None:
    embedder = msvq.Embedder(run.path, batch_size=7, device="cpu")
    found = embedder.transform(pictures[0])  # without fit, which teaches it nothing
    assert found.dtype == np.float32
    assert found.shape == (60, 32)
    np.testing.assert_allclose(found, run.embed(pictures[0]), rtol=1e-4, atol=1e-5)
    assert list(embedder.get_feature_names_out()) == [f"embedder{i}" for i in range(32)]
    assert embedder.transform([]).shape == (0, 32)


def test_no_more_pictures_go_through_at_a_time_than_are_asked_for(
    run: msvq.Run, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, sizes, forward = run.embed(files[:10]), list[int](), LoadedEncoder.__call__

    def counted(encoder: LoadedEncoder, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        sizes.append(len(images))
        return forward(encoder, images)

    monkeypatch.setattr(LoadedEncoder, "__call__", counted)
    for given in (files[:10], [np.asarray(Image.open(file)) for file in files[:10]]):
        np.testing.assert_allclose(run.embed(given, batch_size=4), expected, rtol=1e-4, atol=1e-5)
    assert sizes == [4, 4, 2, 4, 4, 2]


def test_tables_of_pandas_go_in_and_out(run: msvq.Run, files: list[Path]) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"file": list(map(str, files))}, index=range(100, 160))
    embedder = msvq.Embedder(run).set_output(transform="pandas")
    found = embedder.transform(table["file"])
    assert list(found.columns) == list(embedder.get_feature_names_out())
    assert list(found.index) == list(table.index)


def test_it_is_cloned_and_pickled_by_the_name_of_its_run(
    run: msvq.Run, pictures: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    for given in (str(run.path), run.path, msvq.load(run.path)):
        embedder = msvq.Embedder(given, batch_size=16)
        expected = embedder.fit_transform(pictures[0])
        assert embedder.get_params() == {"encoder": given, "batch_size": 16, "device": None}
        assert clone(embedder).get_params()["batch_size"] == 16
        content = pickle.dumps(embedder)
        assert len(content) < 1000
        np.testing.assert_array_equal(pickle.loads(content).transform(pictures[0]), expected)


def test_another_run_can_be_set(run: msvq.Run, tmp_path: Path) -> None:
    embedder = msvq.Embedder(tmp_path)
    with pytest.raises(msvq.BadInput, match="is not a run"):
        embedder.fit([])
    assert embedder.set_params(encoder=run.path).fit([]) is embedder
    assert "batch_size=7" in repr(embedder.set_params(batch_size=7))


def test_a_file_that_cannot_be_read_is_named(run: msvq.Run, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "letter.jpg").write_text("dear")
    embedder = msvq.Embedder(run)
    with pytest.raises(msvq.BadInput, match=r"letter\.jpg is not a picture"):
        embedder.transform([files[0], tmp_path / "letter.jpg"])
    with pytest.raises(msvq.BadInput, match=r"nothing\.png is not there"):
        run.embed([str(tmp_path / "nothing.png")])
