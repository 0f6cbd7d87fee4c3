"""Whether two pictures are one: every kind of copy that is named, and no others."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from msvq.data.to_rgb import fit_square
from msvq.search.same_picture import CHANGES, SIDE, compare, turn_invariant


def photograph(seed: int, size: int = 160) -> Image.Image:
    """Noise as smooth as photographs are, with edges: some discs on it."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))
    frequency[0, 0] = np.inf
    values = np.fft.irfft2(np.fft.rfft2(generator.normal(size=(3, size, size))) / frequency**1.3, (size, size))
    pixels = 128 + 45 * values / values.std()
    rows, columns = np.mgrid[:size, :size]
    for _ in range(6):
        y, x, radius = generator.uniform(0, size, 3) * (1, 1, 0.2)
        pixels[:, np.hypot(rows - y, columns - x) < radius] = generator.uniform(0, 255, (3, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0))


def square(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(fit_square(image, SIDE))


def saved(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=quality)
    return Image.open(file).convert("RGB")


COPIES: dict[str, list[Callable[[Image.Image], Image.Image]]] = {
    "saved again or resized": [
        lambda image: image,
        lambda image: saved(image, 30),
        lambda image: image.resize((50, 50)),
        lambda image: saved(image.resize((300, 300)), 60),
    ],
    "turned": [lambda image: image.rotate(90), lambda image: saved(image.rotate(180), 60)],
    "mirrored": [
        lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        lambda image: saved(image.transpose(Image.Transpose.TRANSPOSE), 60),
    ],
    "cropped": [
        lambda image: image.crop((5, 10, 150, 155)),
        lambda image: saved(image.crop((24, 8, 152, 136)), 75),
        lambda image: image.crop((30, 25, 145, 140)),
        lambda image: image.crop((0, 0, 136, 160)),  # one side is cut off: the middle square moves
    ],
}


@pytest.mark.parametrize("kind", COPIES)
def test_every_copy_is_known_by_its_kind(kind: str) -> None:
    originals = [photograph(seed) for seed in range(6)]
    for change in COPIES[kind]:
        first = np.stack([square(image) for image in originals])
        second = np.stack([square(change(image)) for image in originals])
        assert [CHANGES[code] for code in compare(first, second)] == [kind] * 6
        assert [CHANGES[code] for code in compare(second, first)] == [kind] * 6


def test_other_pictures_are_no_copies() -> None:
    squares = np.stack([square(photograph(seed)) for seed in range(12)])
    one, other = np.triu_indices(12, 1)
    assert not compare(squares[one], squares[other]).any()


def test_empty_pictures_are_one_only_in_one_colour() -> None:
    flat = np.stack([np.full((SIDE, SIDE, 3), value, np.uint8) for value in (255, 254, 128)])
    assert compare(flat[[0, 0, 1]], flat[[1, 2, 2]]).tolist() == [1, 0, 0]


def test_a_descriptor_does_not_change_when_a_square_is_turned_or_mirrored() -> None:
    squares = np.stack([square(photograph(seed)) for seed in range(4)])
    expected = turn_invariant(squares)
    for turns in range(4):
        turned = np.rot90(squares, turns, (1, 2))
        np.testing.assert_allclose(turn_invariant(turned), expected, atol=1e-6)
        np.testing.assert_allclose(turn_invariant(turned[:, :, ::-1]), expected, atol=1e-6)
    assert (expected @ expected.T)[~np.eye(4, dtype=bool)].max() < 0.95
