"""msvq embed: every source and format, the same numbers whatever the batch, and what goes on after a kill."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from tests.search.conftest import NUM, Says, save_arrays

import msvq
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import indexes
from msvq.data.sources.base import Positions
from msvq.data.sources.folders import FileImages
from msvq.data.workers import Result
from msvq.runs.encoder import CHUNK, LoadedEncoder, load_run_encoder
from msvq.search import feature_shards, viewer
from msvq.search.embedding import embed
from msvq.search.formats import WRITERS
from msvq.search.index import unit_rows
from msvq.search.inputs import Inputs


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))


def unfinished() -> list[str]:
    """Shards of what was not finished."""
    return sorted(path.name for path in indexes().glob("*/.parts/*.npz"))


@pytest.fixture
def tiny_shards(monkeypatch: pytest.MonkeyPatch) -> int:
    """Shards of 8 pictures, so that a few pictures make several."""
    for name, value in (("CHUNK", 4), ("SHARD_SIZE", 8)):
        monkeypatch.setattr(feature_shards, name, value)
    return 8


def test_the_library_embeds_whatever_the_command_takes(says: Says, small_run: msvq.Run, tmp_path: Path) -> None:
    save_arrays(tmp_path / "set.npz")
    for source, split in ((str(tmp_path / "set.npz"), "all"), ("patterns", "test")):
        out = tmp_path / "e.npz"
        assert says("embed", small_run.path, "--data", source, "--split", split, "--out", out)[0] == 0
        found = small_run.embed_source(source, split=split)
        with np.load(out, allow_pickle=False) as saved:
            np.testing.assert_allclose(found.features, saved["features"], rtol=1e-4, atol=1e-5)
            assert found.names == saved["names"].tolist()
            np.testing.assert_array_equal(found.labels, saved["labels"])
        assert found.skipped == []
    assert found.names[0] == "test 0"


def test_every_format_holds_what_the_library_computes(says: Says, small_run: msvq.Run, photos: Path) -> None:
    expected = small_run.embed_source(photos, workers=1)
    out = photos.parent
    for ending in WRITERS:
        code, said, _ = says("embed", small_run.path, "--data", photos, "--out", out / f"e{ending}")
        assert code == 0
        assert f"{NUM} pictures, 32 numbers each" in said
        assert "2 left out: 1 'is empty', 1 'is not a picture'" in said
        assert list(csv.reader((out / "e.skipped.csv").open())) == [
            ["file", "reason"],
            ["beach/99.jpg", "is empty"],
            ["city/letter.jpg", "is not a picture"],
        ]
        assert not unfinished()
    with np.load(out / "e.npz", allow_pickle=False) as saved:
        features = saved["features"]
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected.features, atol=1e-6)
        assert saved["names"].tolist() == expected.names
        assert saved["class_names"][saved["labels"]].tolist() == [name.split("/")[0] for name in expected.names]
        assert json.loads(str(saved["about"]))["root"] == str(photos)
    rows = list(csv.DictReader((out / "e.csv").open()))
    np.testing.assert_array_equal(np.array([[row[f"f{i}"] for i in range(32)] for row in rows], np.float32), features)
    assert [(row["file"], row["class"]) for row in rows] == [(n, n.split("/")[0]) for n in expected.names]
    table = pytest.importorskip("pyarrow.parquet").read_table(out / "e.parquet")
    assert table.column("file").to_pylist() == expected.names
    np.testing.assert_array_equal(np.stack(table.to_pandas()["features"]), features)
    assert table.column("label").to_pylist() == expected.labels.tolist()


def test_the_numbers_do_not_depend_on_the_batch_or_the_company(small_run: msvq.Run) -> None:
    embedder = load_run_encoder(small_run).to("cpu")
    images = np.random.default_rng(0).integers(256, size=(2 * CHUNK + 3, 32, 32, 3), dtype=np.uint8)
    features = embedder(images)
    np.testing.assert_array_equal(embedder(images[-3:]), features[-3:])
    np.testing.assert_array_equal(embedder(images[::-1].copy()), features[::-1])


@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_batch_size_changes_no_bit(small_run: msvq.Run, photos: Path, batch_size: int) -> None:
    embed(Inputs(small_run, str(photos), device="cpu"), photos.parent / "a.npz")
    shutil.rmtree(indexes())
    embed(Inputs(small_run, str(photos), device="cpu"), photos.parent / "b.npz", batch_size=batch_size)
    assert (photos.parent / "a.npz").read_bytes() == (photos.parent / "b.npz").read_bytes()


def test_arrays_lists_and_named_sets(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    save_arrays(tmp_path / "pictures.npz")
    (tmp_path / "list.csv").write_text("file,label\nphotos/beach/03.png,sea\nphotos/city/20.png,town\n")
    expected = {
        tmp_path / "pictures.npz": [f"train {i}" for i in range(NUM)],  # in the order of the arrays
        tmp_path / "list.csv": ["photos/beach/03.png", "photos/city/20.png"],
    }
    for data, names in expected.items():
        assert says("embed", small_run.path, "--data", data, "--out", tmp_path / "e.npz")[0] == 0
        with np.load(tmp_path / "e.npz") as saved:
            assert saved["names"].tolist() == names
            assert len(saved["features"]) == len(saved["labels"]) == len(names)
    code, said, _ = says("embed", small_run.path, "--split", "test", "--out", tmp_path / "own.csv")
    assert code == 0
    assert "200 pictures" in said
    assert (tmp_path / "own.csv").read_text().splitlines()[1].startswith("test 0,")


@pytest.mark.usefixtures("tiny_shards")
def test_what_stopped_half_way_goes_on_to_the_same_bits(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = photos.parent / "e.npz"
    embed(Inputs(small_run, str(photos)), out, batch_size=8)
    whole = out.read_bytes()
    out.unlink()
    shutil.rmtree(indexes())
    count, real = [0], LoadedEncoder.__call__

    def stops(self: LoadedEncoder, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return real(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(LoadedEncoder, "__call__", stops)
        with pytest.raises(KeyboardInterrupt):
            embed(Inputs(small_run, str(photos)), out, batch_size=8)
    assert not out.exists()
    assert unfinished() == ["000000.npz", "000001.npz"]
    (damaged,) = indexes().glob("*/.parts/000000.npz")
    content = bytearray(damaged.read_bytes())
    content[400] ^= 255  # in the middle of the features: that part is made again
    damaged.write_bytes(content)
    seen = counting(monkeypatch)
    embed(Inputs(small_run, str(photos)), out, batch_size=8)
    assert out.read_bytes() == whole
    assert sum(seen) == NUM + 2 - 8  # all but the whole part


@pytest.mark.usefixtures("tiny_shards")
def test_other_pictures_start_anew(small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("msvq.core.array_cache.ArrayCache.write", lambda cache, fill: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            embed(Inputs(small_run, str(photos)), photos.parent / "e.npz", batch_size=8)
    assert len(unfinished()) == 4
    (photos / "city" / "29.png").unlink()
    seen = counting(monkeypatch)
    embed(Inputs(small_run, str(photos)), photos.parent / "e.npz", batch_size=8)
    assert sum(seen) == NUM + 1


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    real = LoadedEncoder.__call__

    def counts(self: LoadedEncoder, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        seen.append(len(images))
        return real(self, images)

    monkeypatch.setattr(LoadedEncoder, "__call__", counts)
    return seen


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_killed_command_goes_on(small_run: msvq.Run, photos: Path) -> None:
    images = sorted((photos / "beach").glob("*.png"))
    many = photos.parent / "many"
    many.mkdir()
    for i in range(2100):  # three parts
        os.link(images[i % len(images)], many / f"{i:04}.png")
    out = photos.parent / "k.npz"
    words = [sys.executable, "-m", "msvq", "embed", str(small_run.path), "--data", str(many), "--out", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not unfinished():
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert unfinished()
    assert not out.exists()
    said = io.StringIO()
    embed(Inputs(small_run, str(many)), out, display=Display(Console(file=said)))
    assert "continuing: " in said.getvalue()
    shutil.rmtree(indexes())
    embed(Inputs(small_run, str(many)), photos.parent / "again.npz")
    assert out.read_bytes() == (photos.parent / "again.npz").read_bytes()


def mistakes(run: Path, photos: Path) -> Iterator[tuple[list[Any], str]]:
    """Words after `msvq embed`, and what the answer says."""
    here = photos.parent
    empty = here / "empty"
    empty.mkdir()
    bad = here / "bad"
    bad.mkdir()
    (bad / "a.jpg").write_text("no picture")
    damaged = here / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "encoder.safetensors").write_bytes(b"x" * 100)
    out = ["--out", here / "e.npz"]
    yield [run, "--data", photos, "--out", here / "e.txt"], "should end in .npz or .parquet or .csv"
    yield [run, "--data", photos, "--out", here / "none" / "e.npz"], "there is no folder"
    yield [run, "--data", photos, "--out", empty], "should end in"
    yield [run, "--data", empty, *out], "no pictures"
    yield [run, "--data", bad, *out], "none of the 1 pictures can be read (1 'is not a picture')"
    yield [run, "--data", here / "nowhere", *out], "there is no file or folder"
    yield [here, "--data", photos, *out], "is not a run"
    yield [damaged, "--data", photos, *out], "is damaged"
    yield [run, "--data", photos, *out, "--batch-size", 5000], "--batch-size is 1 to 1,024"
    yield [run, "--data", photos, *out, "--split", "tset"], "did you mean 'test'"
    yield [run, "--data", photos, *out, "--checkpoint", "lost.ckpt"], "there is no checkpoint"
    yield [run, "--data", photos, *out, "--precision", "fp8"], "unknown precision"
    yield [run, "--data", photos, *out, "--pictures"], "--pictures go into a .parquet file"


def test_mistakes_get_one_sentence_and_leave_nothing(says: Says, small_run: msvq.Run, photos: Path) -> None:
    for words, expected in mistakes(small_run.path, photos):
        code, said, error = says("embed", *words)
        assert code == 2, words
        assert expected in error, error
        assert len(error.strip().splitlines()) == 1
        assert not said
        assert not list(photos.parent.glob("e.*")), words


def test_the_data_are_never_written_over(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    save_arrays(tmp_path / "e.npz")
    for name in ("list.csv", "x.skipped.csv"):
        (tmp_path / name).write_text("file\nphotos/beach/03.png\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "list.csv")
    for command, data, out in (
        ("embed", "e.npz", "e.npz"),
        ("embed", "list.csv", "link.csv"),
        ("embed", "x.skipped.csv", "x.npz"),  # whose list of skipped pictures that is
        ("duplicates", "list.csv", "list.csv"),
    ):
        before = (tmp_path / data).read_bytes()
        code, _, error = says(command, small_run.path, "--data", tmp_path / data, "--out", tmp_path / out)
        assert code == 2
        assert "is the file that --data reads, and would be lost; choose another name" in error
        assert (tmp_path / data).read_bytes() == before


def test_a_name_of_two_lines_is_one_row(small_run: msvq.Run, photos: Path) -> None:
    (photos / "city" / "20.png").rename(photos / "city" / "a\nb.png")
    embed(Inputs(small_run, str(photos)), photos.parent / "e.csv")
    with (photos.parent / "e.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == NUM
    assert "city/a\nb.png" in [row["file"] for row in rows]
    assert all(np.isfinite(float(row["f31"])) for row in rows)


@pytest.mark.usefixtures("tiny_shards")
def test_what_could_not_be_read_now_is_tried_again(
    says: Says, small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = photos.parent / "e.npz"
    words = ["embed", small_run.path, "--data", photos, "--out", out, "--batch-size", 8]
    real = FileImages.decoded

    def passing(self: FileImages, portions: Iterable[Positions], *options: Any, **more: Any) -> Generator[Result]:
        for first, result in enumerate(real(self, portions, *options, **more)):
            yield result if first else result._replace(reasons={0: "cannot be read: Input/output error"})

    with monkeypatch.context() as patch:
        patch.setattr(FileImages, "decoded", passing)
        code, said, _ = says(*words)
    assert code == 0
    assert f"{NUM - 1} pictures" in said
    assert "the same command tries those again" in said
    seen = counting(monkeypatch)
    code, said, _ = says(*words)
    assert f"{NUM} pictures" in said
    assert "tries" not in said
    assert sum(seen) == 1  # that picture


def test_another_network_with_the_same_weights_has_another_key(
    small_run: msvq.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_run_encoder(small_run)
    keys = set()
    code = tmp_path / "mine.py"
    for content, change in (
        ("", {}),
        ("", {"stem": "standard"}),
        ("a = 1", {"name": f"{code}:make"}),
        ("a = 2", {"name": f"{code}:make"}),
    ):
        code.write_text(content)
        keys.add(replace(weights, backbone=weights.backbone.model_copy(update=change)).key)
    named = weights.backbone.model_copy(update={"name": "torchvision:resnet18"})
    for release in ("1.0", "1.1"):  # the library may build the network otherwise
        monkeypatch.setattr("msvq.runs.encoder.version", lambda name, release=release: release)
        keys.add(replace(weights, backbone=named).key)
    assert len(keys) == 6


def test_a_file_for_viewers_holds_pictures_a_map_and_neighbours(
    says: Says, small_run: msvq.Run, photos: Path, tiny_shards: int
) -> None:
    out = photos.parent / "e.parquet"
    assert says("embed", small_run.path, "--data", photos, "--out", out, "--pictures")[0] == 0
    first = out.read_bytes()
    table = parquet.read_table(out)
    names, features = table.column("file").to_pylist(), np.stack(table.to_pandas()["features"])
    embed(Inputs(small_run, str(photos)), photos.parent / "plain.parquet")
    plain = parquet.read_table(photos.parent / "plain.parquet")
    assert table.select(plain.column_names).equals(plain)
    for image, name in zip(table.column("image").to_pylist(), names, strict=True):
        thumbnail, original = Image.open(io.BytesIO(image["bytes"])), Image.open(photos / name).convert("RGB")
        assert (image["path"], thumbnail.format, thumbnail.size) == (name, "JPEG", (32, 32))
        square = np.asarray(original.crop((4, 0, 44, 40)).resize((32, 32)), float)
        assert np.abs(np.asarray(thumbnail) - square).mean() < 12
    places = np.stack([table.column("x").to_numpy(), table.column("y").to_numpy()])
    assert places.min() == 0 and places.max() == 1
    cosines = unit_rows(features) @ unit_rows(features).T
    np.fill_diagonal(cosines, -2)
    for row, near in enumerate(table.column("neighbors").to_pylist()):
        np.testing.assert_allclose(near["distances"], 1 - np.sort(cosines[row])[::-1][:10], atol=1e-5)
        np.testing.assert_allclose(1 - cosines[row, near["ids"]], near["distances"], atol=1e-5)
    small_run.write_features(out, data=str(photos), pictures=True)
    assert out.read_bytes() == first
    assert sorted(path.name for path in photos.parent.glob("e.*")) == ["e.parquet", "e.skipped.csv"]


def test_a_file_for_viewers_is_a_data_set_of_pictures_to_hugging_face(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run.write_features(photos.parent / "e.parquet", data=str(photos), pictures=True)
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_parquet(str(photos.parent / "e.parquet"), cache_dir=str(photos.parent / "cache"))
    assert isinstance(found.features["image"], datasets.Image)
    assert found[3]["image"].size == (32, 32)


def test_one_picture_alone_can_be_looked_at(small_run: msvq.Run, photos: Path) -> None:
    (photos.parent / "one.txt").write_text("photos/city/20.png\n")
    embed(Inputs(small_run, str(photos.parent / "one.txt")), photos.parent / "e.parquet", pictures=True)
    (row,) = parquet.read_table(photos.parent / "e.parquet").to_pylist()
    assert row["neighbors"] == {"ids": [], "distances": []}
    assert (row["x"], row["y"]) == (0.5, 0.5)


def test_a_collapsed_encoder_is_said_to_be_one(says: Says, small_run: msvq.Run, photos: Path) -> None:
    for path in photos.rglob("*.png"):
        Image.new("RGB", (48, 40), "white").save(path)
    words = ["--data", photos, "--out", photos.parent / "e.parquet", "--pictures"]
    code, _, noted = says("embed", small_run.path, *words)
    assert code == 0
    assert "the encoder has collapsed" in noted


def test_pictures_beyond_those_that_are_arranged_lie_among_their_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "ARRANGED", 40)
    kinds = np.arange(200) % 3
    noise = 0.05 * np.random.default_rng(0).normal(size=(200, 8))
    places = viewer.arrange(unit_rows((np.eye(8)[kinds] + noise).astype(np.float32)))
    assert len(np.unique(places, axis=0)) == 200
    middles = np.stack([places[kinds == kind].mean(0) for kind in range(3)])
    nearest = np.linalg.norm(places[:, None] - middles, axis=2).argmin(1)
    np.testing.assert_array_equal(nearest, kinds)


def test_parquet_without_its_library(small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"needs pyarrow; pip install 'msvq\[parquet\]' gives it"):
        embed(Inputs(small_run, str(photos)), photos.parent / "e.parquet")
    assert not list(photos.parent.glob("e.parquet*"))
