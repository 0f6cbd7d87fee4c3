"""Make a folder of photographs that may be shown: cuttings of thirteen in the public domain, under no telling names.

python docs/make_photographs.py photos     # 1,300 JPEGs; needs scikit-image, with which the thirteen come
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from skimage import data

SCENES = (
    data.astronaut,
    data.brick,
    data.camera,
    data.cat,
    data.coffee,
    data.coins,
    data.grass,
    data.gravel,
    data.hubble_deep_field,
    data.immunohistochemistry,
    data.moon,
    data.retina,
    data.rocket,
)
CUTTINGS, SIDE, LARGEST = 100, 192, 0.6  # of each; pixels; share of the photograph's shorter side


def cut(scene: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A square of anywhere, of any size, mirrored or not, in another light."""
    shorter = min(scene.size)
    side = int(shorter * rng.uniform(LARGEST / 2, LARGEST))
    left, top = (int(rng.integers(0, length - side + 1)) for length in scene.size)
    piece = scene.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    piece = ImageOps.mirror(piece) if rng.random() < 0.5 else piece
    return ImageEnhance.Brightness(piece).enhance(rng.uniform(0.75, 1.25))


def main(out: Path) -> None:
    """Write the cuttings of all, in no order."""
    rng = np.random.default_rng(0)
    out.mkdir(parents=True)
    names = rng.permutation(len(SCENES) * CUTTINGS)
    for number, name in enumerate(names):
        scene = Image.fromarray(SCENES[number // CUTTINGS]()).convert("RGB")
        cut(scene, rng).save(out / f"{name:04d}.jpg", quality=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
