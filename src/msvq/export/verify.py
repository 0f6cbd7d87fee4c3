"""An exported folder, loaded back by its own library in a fresh process and compared with the original."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from msvq.core.errors import BadInput
from msvq.core.launch import child_environment
from msvq.data.augment import normalise
from msvq.data.decode import decode
from msvq.export import check
from msvq.runs.encoder import LoadedEncoder

TOLERANCE = 1e-4  # of the largest absolute difference of any feature
SHARE = 0.01  # of the largest feature, if that is less: features near zero would hide any mistake
BATCHES = (1, 2, 5)
PATIENCE = 600  # seconds for loading and answering

Arrays = dict[str, NDArray[Any]]


def verify(folder: Path, encoder: LoadedEncoder) -> dict[str, Any]:
    """What was measured, for the manifest. Raises if the folder cannot be loaded or gives other features."""
    generator, size, side = np.random.default_rng(0), encoder.size, encoder.preprocessing.side
    resizing = encoder.preprocessing.resizing
    question = {f"batch {num}": _normalised(encoder, generator.random((num, 3, size, size))) for num in BATCHES}
    with TemporaryDirectory() as name:
        place = Path(name)
        files = {"picture": place / "picture.png", "other": place / "other.jpg"}
        Image.fromarray(generator.integers(0, 256, (side, side, 3), np.uint8)).save(files["picture"])
        _photograph(generator, 4 * side + 4, 6 * side + 3).save(files["other"])  # decoded at half its size, then cut
        views = question | {name: _view(encoder, decode(str(path), side, resizing)) for name, path in files.items()}
        expected = {name: _features(encoder, view) for name, view in views.items()}
        if not all(np.isfinite(array).all() for array in expected.values()):
            raise BadInput(
                "the encoder's features are not numbers: its training went astray; take another --checkpoint"
            )
        answer = _ask(folder, question, files, place)
        elsewhere = _features(encoder, _by_others(encoder, files["other"]))
    difference = {name: _distance(expected[name], answer[name]) for name in expected}
    largest, strongest = max(difference.values()), max(float(np.abs(array).max()) for array in expected.values())
    allowed = min(TOLERANCE, SHARE * strongest)
    if not largest <= allowed:
        raise BadInput(
            f"the export gives other features than the run: they differ by up to {largest:.2g}, where they go up to "
            f"{strongest:.2g} and {allowed:.2g} is allowed; nothing was written, try another --format"
        )
    return {
        "tolerance": allowed,
        "max_abs_difference": largest,
        "max_abs_feature": strongest,
        "by_batch_size": {str(num): difference[f"batch {num}"] for num in BATCHES},
        "picture_of_the_right_size": difference["picture"],
        "picture_of_another_size": difference["other"],
        "if_resized_by_other_tools": _distance(expected["other"], elsewhere),
        "libraries": json.loads(str(answer["libraries"])),
    }


def _photograph(generator: np.random.Generator, height: int, width: int) -> Image.Image:
    """Noise that is as smooth as photographs are: its power falls with the square of the frequency."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    waves = np.fft.rfft2(generator.normal(size=(3, height, width))) / frequency
    values = np.fft.irfft2(waves, (height, width))
    pixels = np.clip(128 + 50 * values / values.std(), 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _by_others(encoder: LoadedEncoder, file: Path) -> NDArray[np.float32]:
    """What tools make of a picture that follow preprocessor_config.json: the whole of it resized, then cut."""
    how = encoder.preprocessing
    with Image.open(file) as picture:
        short = min(picture.size)
        width, height = (how.side if how.squash else int(how.side * side / short) for side in picture.size)
        return _view(encoder, np.asarray(picture.resize((width, height), Image.Resampling[how.interpolation.upper()])))


def _view(encoder: LoadedEncoder, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 [H, W, 3], its centre cut out, as the encoder takes it: [1, 3, size, size]."""
    size = encoder.size
    top, left = (round((side - size) / 2) for side in pixels.shape[:2])
    return _normalised(encoder, pixels[top : top + size, left : left + size].transpose(2, 0, 1)[None] / 255)


def _features(encoder: LoadedEncoder, view: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return np.asarray(encoder.network(torch.from_numpy(view)).numpy())


def _normalised(encoder: LoadedEncoder, pixels: NDArray[np.float64]) -> NDArray[np.float32]:
    view = normalise(torch.from_numpy(pixels.astype(np.float32)), encoder.preprocessing.mean, encoder.preprocessing.std)
    return view.contiguous().numpy()


def _distance(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The largest difference; infinite where shapes differ or something is no number."""
    if expected.shape != found.shape:
        return float("inf")
    largest = float(np.abs(expected - found).max())
    return largest if np.isfinite(largest) else float("inf")


def _ask(folder: Path, question: Arrays, files: dict[str, Path], place: Path) -> Arrays:
    asked, answer = place / "question.npz", place / "answer.npz"
    np.savez(asked, **question)  # type: ignore[arg-type]
    command = [sys.executable, str(check.__file__), *map(str, (folder, asked, answer, *files.values()))]
    environment = child_environment(PYTHONDONTWRITEBYTECODE="1")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise BadInput(f"the export was not loaded back within {PATIENCE} s; nothing was written") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise BadInput(f"the export cannot be loaded back ({said[-1]}); nothing was written, try another --format")
    with np.load(answer, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
