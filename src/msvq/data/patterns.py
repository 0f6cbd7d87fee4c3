"""The embedded data set `patterns`: ten families of texture, drawn from a seed in seconds.

What tells two augmented pictures apart must be the class, or a contrastive learner finds something easier
(with free colours it learns only colour). So all classes share three palettes, whose two colours swap at
random, and the texture shows in any crop; position, scale, angle, bend, light and noise vary freely.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # all float32; half the memory, and a picture needs no more

# Pairs of RGB colours of clearly different lightness: a texture must survive greyscale and jitter.
PALETTES: Array = np.array(
    [
        [(24, 40, 84), (246, 205, 120)],  # navy, honey
        [(10, 92, 92), (250, 190, 170)],  # teal, blush
        [(110, 26, 62), (176, 222, 214)],  # wine, mint
    ],
    dtype=np.float32,
)

PERIOD = (6.5, 10.5)  # pixels at 32x32: seen in a crop of a fifth of the area, not lost under a mild blur
FOREGROUND = 0.05  # how far the foreground's share strays from its family's; the two colours swap at random
EDGE = (0.30, 0.42)  # share of the picture that is neither colour alone
WARP = 2.0  # pixels
GAIN = (0.88, 1.08)
GRADIENT = 0.12  # change of light from the centre to the rim
NOISE = 5.0  # grey levels
CHUNK = 256  # pictures drawn at a time, so that the working set stays in the cache


def _fold(x: Array) -> Array:
    """Distance to the nearest whole number: a triangle wave in [0, 0.5]."""
    return np.abs(x - np.rint(x))


def _mirror(x: Array) -> Array:
    """Position in a cell, in [-0.5, 0.5]; every second cell is mirrored, so that neighbours meet seamlessly."""
    return 2 * _fold((x + 0.5) / 2) - np.float32(0.5)


def _nearer(distance: Array, other: Array) -> Array:
    """Distance to the nearer of two sets: the union of their shapes."""
    nearer: Array = np.minimum(distance, other)
    return nearer


def _hexagonal(u: Array, v: Array) -> Array:
    """Distance to the nearest point of a hexagonal lattice of spacing 1."""
    height = np.float32(3**0.5)
    even = np.hypot(_fold(u), height * _fold(v / height))
    odd = np.hypot(_fold(u + 0.5), height * _fold(v / height + 0.5))
    return _nearer(even, odd)


def _checks(u: Array, v: Array) -> Array:
    even = np.maximum(_fold(u), _fold(v))
    odd = np.maximum(_fold(u + 0.5), _fold(v + 0.5))
    return -_nearer(even, odd)


def _bricks(u: Array, v: Array) -> Array:
    row = np.floor(v)
    return -_nearer(_fold(v), 2 * _fold(u / 2 + row / 2))


def _diamonds(u: Array, v: Array) -> Array:
    even = _fold(u) + 2 * _fold(v)
    odd = _fold(u + 0.5) + 2 * _fold(v + 0.5)
    return -_nearer(even, odd)


def _pinwheels(u: Array, v: Array) -> Array:
    x, y = _mirror(u), _mirror(v)
    blades: Array = np.sin(4 * np.arctan2(y, x) + 7 * np.hypot(x, y))
    return blades


def _crosses(u: Array, v: Array) -> Array:
    x, y = _fold(u + np.rint(v) / 2), _fold(v)
    return -_nearer(np.maximum(x, 3 * y), np.maximum(3 * x, y))


# Each family with the size of its cell in periods and its middle share of foreground. A network must see some
# difference before it has learned any, or momentum contrast hardly gets going; since the two colours swap at random, a
# histogram cannot add the shares up to a class.
_FAMILIES: dict[str, tuple[Callable[[Array, Array], Array], float, float]] = {
    "stripes": (lambda u, v: _fold(u), 0.6, 0.50),
    "checks": (_checks, 1.0, 0.50),
    "dots": (lambda u, v: -_hexagonal(u, v), 0.8, 0.25),
    "grid": (lambda u, v: -_nearer(_fold(u), _fold(v)), 1.4, 0.21),
    "zigzag": (lambda u, v: _fold(v + _fold(0.55 * u) / 0.5), 1.1, 0.41),
    "bricks": (_bricks, 1.3, 0.16),
    "rings": (lambda u, v: _fold(3 * _hexagonal(u, v)), 2.8, 0.34),
    "diamonds": (_diamonds, 2.4, 0.45),
    "pinwheels": (_pinwheels, 1.5, 0.39),
    "crosses": (_crosses, 2.0, 0.30),
}

CLASS_NAMES: tuple[str, ...] = tuple(_FAMILIES)


@dataclass(frozen=True)
class _Nuisance:
    """What varies from picture to picture whatever the class; each field's first dimension is the picture."""

    period: Array  # [n] pixels
    angle: Array  # [n] radians
    shift: Array  # [n, 2] cells
    warp: Array  # [n, 2, 3] phase and the two frequencies of the bend of x and of y
    foreground: Array  # [n]
    edge: Array  # [n]
    colours: Array  # [n, 2, 3] background and foreground
    light: Array  # [n, 3] gain, gradient along x, gradient along y

    def part(self, chunk: slice) -> "_Nuisance":
        """The pictures of one chunk."""
        return _Nuisance(**{name: value[chunk] for name, value in vars(self).items()})


def _draw_nuisance(num: int, size: int, foreground: float, rng: np.random.Generator) -> _Nuisance:
    """Draw the nuisance of `num` pictures."""

    def uniform(low: float, high: float, *shape: int) -> Array:
        return rng.uniform(low, high, (num, *shape)).astype(np.float32)

    colours = PALETTES[rng.integers(len(PALETTES), size=num)]
    swap = rng.random(num) < 0.5
    colours[swap] = colours[swap, ::-1]
    slope_angle = uniform(0, 2 * np.pi)
    slope = uniform(0, GRADIENT)
    return _Nuisance(
        period=np.exp(uniform(np.log(PERIOD[0]), np.log(PERIOD[1]))) * np.float32(size / 32),
        angle=uniform(0, 2 * np.pi),
        shift=uniform(0, 16, 2),
        warp=uniform(-np.pi, np.pi, 2, 3),
        foreground=foreground + uniform(-FOREGROUND, FOREGROUND),
        edge=uniform(*EDGE),
        colours=colours,
        light=np.stack([uniform(*GAIN), slope * np.cos(slope_angle), slope * np.sin(slope_angle)], axis=1),
    )


def _coordinates(nuisance: _Nuisance, cell: float, size: int) -> tuple[Array, Array]:
    """The turned, scaled, moved and bent plane: u and v, each [n, size, size], in cells of the texture."""
    axis = (np.arange(size, dtype=np.float32) - (size - 1) / 2).astype(np.float32)
    x, y = axis[None, None, :], axis[None, :, None]

    def per_picture(values: Array) -> Array:
        return values[:, None, None]

    def bend(wave: Array) -> Array:
        # At most one wave across the picture along either axis: a bend smoother than any of the textures.
        turns = (per_picture(wave[:, 1]) * x + per_picture(wave[:, 2]) * y) / np.float32(size / 2)
        return np.float32(WARP * size / 32) * np.sin(turns + per_picture(wave[:, 0]))

    x_bent, y_bent = x + bend(nuisance.warp[:, 0]), y + bend(nuisance.warp[:, 1])
    scale = 1 / (nuisance.period * np.float32(cell))
    cos, sin = per_picture(np.cos(nuisance.angle) * scale), per_picture(np.sin(nuisance.angle) * scale)
    u = cos * x_bent + sin * y_bent + per_picture(nuisance.shift[:, 0])
    v = cos * y_bent - sin * x_bent + per_picture(nuisance.shift[:, 1])
    return u, v


def _coverage(field: Array, foreground: Array, edge: Array) -> Array:
    """How much of each pixel is foreground, [n, size, size] in [0, 1], with smooth edges.

    It is a function of the pixel's rank in its own picture, so that the shares of foreground, background
    and the tones between are those drawn, whatever the class: a histogram of colours cannot name it.
    """
    num, size, _ = field.shape
    rows = np.arange(num)[:, None]
    pixels = field.reshape(num, -1)
    threshold_rank = ((1 - foreground) * (size * size - 1)).astype(np.int64)
    threshold = np.sort(pixels, axis=1)[rows, threshold_rank[:, None]]
    # Height above the threshold by slope is the distance to the edge: all edges of a picture equally soft.
    slope_y, slope_x = np.gradient(field, axis=(1, 2))
    distance = (pixels - threshold) / (np.hypot(slope_x, slope_y).reshape(num, -1) + np.float32(1e-4))
    share = np.linspace(0, 1, size * size, dtype=np.float32) - (1 - foreground[:, None])
    ramp = np.clip(share / edge[:, None] + np.float32(0.5), 0, 1)
    coverage = np.empty_like(pixels)
    coverage[rows, np.argsort(distance, axis=1)] = ramp * ramp * (3 - 2 * ramp)
    return coverage.reshape(field.shape)


def _paint(coverage: Array, nuisance: _Nuisance, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Colour, light and grain: [n, size, size] to [n, size, size, 3] uint8."""
    num, size, _ = coverage.shape
    axis = np.linspace(-1, 1, size, dtype=np.float32)
    gain, slope_x, slope_y = nuisance.light.T[:, :, None, None]
    light = gain + slope_x * axis[None, None, :] + slope_y * axis[None, :, None]
    background, foreground = nuisance.colours[:, 0], nuisance.colours[:, 1]
    image = coverage[..., None] * (foreground - background)[:, None, None, :]
    image += background[:, None, None, :]
    image *= light[..., None]
    image += np.float32(NOISE) * rng.standard_normal((num, size, size, 3), dtype=np.float32)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _make_class(name: str, num: int, size: int, seeds: np.random.SeedSequence) -> NDArray[np.uint8]:
    """Draw `num` pictures of one class: [num, size, size, 3] uint8."""
    field, cell, foreground = _FAMILIES[name]
    # Grain has a generator of its own, read in the order of the pictures: the chunk size changes no byte.
    nuisance_rng, grain_rng = (np.random.Generator(np.random.PCG64(child)) for child in seeds.spawn(2))
    nuisance = _draw_nuisance(num, size, foreground, nuisance_rng)
    images = np.empty((num, size, size, 3), dtype=np.uint8)
    for start in range(0, num, CHUNK):
        chunk = slice(start, min(start + CHUNK, num))
        part = nuisance.part(chunk)
        coverage = _coverage(field(*_coordinates(part, cell, size)), part.foreground, part.edge)
        images[chunk] = _paint(coverage, part, grain_rng)
    return images


def make_patterns(num: int, *, seed: int, size: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw the data set: images [num, size, size, 3] uint8 and labels [num] int64.

    The classes are balanced (to within one picture) and in shuffled order. The same seed gives the same
    bytes; train and test take different seeds.
    """
    if num < 0 or size < 8:
        raise ValueError(f"need num >= 0 and size >= 8, got num={num} and size={size}")
    order_seed, *class_seeds = np.random.SeedSequence(seed).spawn(1 + len(CLASS_NAMES))
    labels = np.arange(num, dtype=np.int64) % len(CLASS_NAMES)
    np.random.Generator(np.random.PCG64(order_seed)).shuffle(labels)
    images = np.empty((num, size, size, 3), dtype=np.uint8)
    for label, (name, seeds) in enumerate(zip(CLASS_NAMES, class_seeds, strict=True)):
        members = np.flatnonzero(labels == label)
        images[members] = _make_class(name, len(members), size, seeds)
    return images, labels
