"""An exported folder, loaded back by its own library in a fresh process and compared with the original."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from msvq.data.augment import eval_view, normalise
from msvq.errors import BadInput
from msvq.export import check
from msvq.export.subject import Subject

TOLERANCE = 1e-4  # of the largest absolute difference of any feature
SHARE = 0.01  # of the largest feature, if that is less: features near zero would hide any mistake
BATCHES = (1, 2, 5)
PATIENCE = 600  # seconds for loading and answering

Arrays = dict[str, NDArray[Any]]


def verify(folder: Path, subject: Subject) -> dict[str, Any]:
    """What was measured, for the manifest. Raises if the folder cannot be loaded or gives other features."""
    generator = np.random.default_rng(0)
    size = subject.size
    question = {f"batch {num}": _normalised(subject, generator.random((num, 3, size, size))) for num in BATCHES}
    pictures = {
        "picture": generator.integers(0, 256, (size, size, 3), np.uint8),
        "other": generator.integers(0, 256, (2 * size + 5, 3 * size + 2, 3), np.uint8),  # shrunk and cut
    }
    views = {name: torch.from_numpy(array) for name, array in question.items()}
    for name, pixels in pictures.items():
        views[name] = eval_view(torch.from_numpy(pixels)[None], size=size, mean=subject.mean, std=subject.std)
    with torch.inference_mode():
        expected = {name: subject.encoder(view).numpy() for name, view in views.items()}
    if not all(np.isfinite(array).all() for array in expected.values()):
        raise BadInput("the encoder's features are not numbers: its training went astray; take another --checkpoint")
    answer = _ask(folder, question, pictures)
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
        "libraries": json.loads(str(answer["libraries"])),
    }


def _normalised(subject: Subject, pixels: NDArray[np.float64]) -> NDArray[np.float32]:
    view = normalise(torch.from_numpy(pixels.astype(np.float32)), subject.mean, subject.std)
    return view.contiguous().numpy()


def _distance(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The largest difference; infinite where shapes differ or something is no number."""
    if expected.shape != found.shape:
        return float("inf")
    largest = float(np.abs(expected - found).max())
    return largest if np.isfinite(largest) else float("inf")


def _ask(folder: Path, question: Arrays, pictures: Arrays) -> Arrays:
    with TemporaryDirectory() as place:
        paths = [Path(place) / name for name in ("question.npz", "answer.npz", "picture.png", "other.png")]
        np.savez(paths[0], **question)  # type: ignore[arg-type]
        for path, pixels in zip(paths[2:], pictures.values(), strict=True):
            Image.fromarray(pixels).save(path)
        command = [sys.executable, str(check.__file__), str(folder), *map(str, paths)]
        quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, env=quiet, capture_output=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise BadInput(f"the export was not loaded back within {PATIENCE} s; nothing was written") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise BadInput(f"the export cannot be loaded back ({said[-1]}); nothing was written, try another --format")
        with np.load(paths[1], allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
