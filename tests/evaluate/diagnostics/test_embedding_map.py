"""The map of pictures: places, neighbours, thumbnails and the file that holds them."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from msvq.data.store import ImageDataset, ImageSplit, Names
from msvq.evaluate.diagnostics import embedding_map
from msvq.evaluate.diagnostics.embedding_map import (
    embed_in_plane,
    save_map,
    thumbnails,
    to_unit_square,
)
from msvq.evaluate.knn import nearest_others


def clusters(num: int, dim: int, *, of: int = 3) -> tuple[Tensor, Tensor]:
    """Features [num, dim] in `of` tight clusters, and which one each belongs to."""
    which = torch.arange(num) % of
    return torch.randn(of, dim)[which] * 3 + 0.1 * torch.randn(num, dim), which


@pytest.mark.parametrize("dim", [2, 20, 120])
def test_the_map_keeps_clusters_together_and_is_the_same_again(dim: int) -> None:
    features, which = clusters(60, dim)
    places = embed_in_plane(features, seed=3)
    assert places.shape == (60, 2) and places.dtype == np.float32
    apart = torch.cdist(torch.from_numpy(places), torch.from_numpy(places)).fill_diagonal_(float("inf"))
    assert (which[apart.argmin(1)] == which).all()
    assert np.array_equal(places, embed_in_plane(features, seed=3))


@pytest.mark.parametrize("num", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dim", [1, 3])
def test_few_pictures_have_a_place(num: int, dim: int) -> None:
    places = embed_in_plane(torch.randn(num, dim), seed=0)
    assert places.shape == (num, 2) and np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == num


@pytest.mark.parametrize("features", [torch.ones(20, 8), torch.zeros(20, 8), torch.full((20, 8), float("nan"))])
def test_features_that_are_all_the_same_lie_in_one_place(features: Tensor) -> None:
    assert (embed_in_plane(features, seed=0) == 0).all()
    assert (to_unit_square(embed_in_plane(features, seed=0)) == 0.5).all()


def test_the_unit_square_keeps_the_aspect() -> None:
    fitted = to_unit_square(np.array([[0, 0], [10, 2], [5, 4]], np.float32))
    assert fitted == pytest.approx(np.array([[0, 0.3], [1, 0.5], [0.5, 0.7]]))
    assert to_unit_square(np.zeros((0, 2), np.float32)).shape == (0, 2)


def test_thumbnails_average_areas() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 96, 96, 3), np.uint8)
    small = thumbnails(ImageSplit(images, np.zeros(3, np.int64)))
    assert small.shape == (3, 48, 48, 3) and small.dtype == np.uint8
    means = images.reshape(3, 48, 2, 48, 2, 3).astype(float).mean((2, 4))
    assert np.abs(small - means).max() <= 0.5
    as_stored = images[:, :32, :32]
    assert np.array_equal(thumbnails(ImageSplit(as_stored, np.zeros(3, np.int64))), as_stored)
    assert thumbnails(ImageSplit(images[:, :, :64], np.zeros(3, np.int64))).shape == (3, 48, 32, 3)
    assert thumbnails(ImageSplit(images[:0], np.zeros(0, np.int64))).shape == (0, 48, 48, 3)


def split(num: int, *, labelled: bool = True, names: bool = False) -> ImageSplit:
    images = np.random.default_rng(num).integers(0, 256, (num, 16, 16, 3), np.uint8)
    labels = np.arange(num, dtype=np.int64) % 3 if labelled else np.full(num, -1, np.int64)
    return ImageSplit(images, labels, Names.of(f"picture {i}.png" for i in range(num)) if names else None)


def data_of(train: ImageSplit, bank: ImageSplit, test: ImageSplit) -> ImageDataset:
    return ImageDataset("toy", train, bank, test, ("a", "b", "c"), (0.5,) * 3, (0.5,) * 3, size=16, test_size=16)


def features(encoder: nn.Module, pictures: ImageSplit) -> Tensor:
    pixels = np.concatenate([np.asarray(images) for images in pictures.batches_in_order(7)])
    with torch.no_grad():
        found: Tensor = encoder(torch.from_numpy(pixels).float().flatten(1) - 128)
    return found


def test_a_map_of_test_pictures_is_written(tmp_path: Path) -> None:
    data = data_of(split(50), split(50), split(30, names=True))
    encoders: dict[str, nn.Module] = {"before": nn.Linear(768, 8), "after": nn.Linear(768, 8)}
    save_map(tmp_path / "eval" / "map.npz", data, encoders, features, num=20)
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["map.npz"]
    saved = np.load(tmp_path / "eval" / "map.npz", allow_pickle=False)
    assert set(saved) == {"before", "after", "labels", "images", "neighbours", "class_names", "names"}
    numbers = [int(name.split()[1].removesuffix(".png")) for name in saved["names"].tolist()]
    assert len(set(numbers)) == 20
    assert np.array_equal(saved["images"], data.test.take(numbers))  # names, labels and pictures belong together
    assert saved["labels"].tolist() == [number % 3 for number in numbers]
    assert saved["class_names"].tolist() == ["a", "b", "c"]
    for name in encoders:
        assert saved[name].shape == (20, 2) and saved[name].dtype == np.float32
        assert saved[name].min() == 0 and saved[name].max() == 1
    _, after = nearest_others(features(encoders["after"], data.test.subsample(20)), 6)
    assert np.array_equal(saved["neighbours"], after.numpy()) and saved["neighbours"].dtype == np.int64


def test_without_labels_it_is_of_training_pictures(tmp_path: Path) -> None:
    nothing = split(0)
    data = data_of(split(9, labelled=False), nothing, nothing)
    save_map(tmp_path / "map.npz", data, {"after": nn.Linear(768, 4)}, features)
    saved = np.load(tmp_path / "map.npz", allow_pickle=False)
    assert saved["after"].shape == (9, 2) and saved["neighbours"].shape == (9, 6)
    assert saved["names"].tolist() == [""] * 9 and saved["labels"].tolist() == [-1] * 9


def test_scikit_learn_is_imported_when_it_is_needed() -> None:
    tree = ast.parse(Path(embedding_map.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "sklearn" in (node.module or "")]
    assert len(imports) == 1 and imports[0] not in tree.body  # inside a function: it takes a second
