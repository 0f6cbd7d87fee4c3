"""A wheel has everything in it, and works where there is no checkout."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import msvq
from msvq.data.patterns import make_patterns

ROOT = Path(__file__).parent.parent
NEEDED = ("pyproject.toml", "README.md", "LICENSE")


def call(*words: str | Path, cwd: Path, **variables: str) -> str:
    ended = subprocess.run(
        list(map(str, words)), cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout, and without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "msvq"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in NEEDED:
        shutil.copy(ROOT / name, copy)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, copy, cwd=folder)
    (built,) = folder.glob("msvq-*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in packed if name.endswith(".dist-info/METADATA"))
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "msvq").rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name and not Path(name).name.startswith(".")}
    assert "msvq/py.typed" in files
    assert not files - packed, "pyproject.toml's package-data misses these"
    assert f"Version: {msvq.__version__}" in metadata


def test_an_installed_wheel_trains_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    call(*pip, "install", "--no-deps", "--no-index", "--no-compile", "--target", place, wheel, cwd=elsewhere)
    np.savez(elsewhere / "pictures.npz", images=make_patterns(40, seed=0)[0])

    def python(*words: str) -> str:
        return call(sys.executable, *words, cwd=elsewhere, PYTHONPATH=str(place), MSVQ_HOME=str(tmp_path / "home"))

    assert python("-c", "import msvq; print(msvq.__file__)").strip() == str(place / "msvq" / "__init__.py")
    assert python("-m", "msvq", "--version").strip() == f"msvq {msvq.__version__}"
    assert "msvq-dagger" in python("-m", "msvq", "methods")
    assert "cifar10-msvq-narrow" in python("-m", "msvq", "pretrained")
    PIL.Image.fromarray(make_patterns(1, seed=1)[0][0]).save(elsewhere / "query.png")
    found = python(
        "-m", "msvq", "search", "cifar10-msvq-narrow", "--data", "pictures.npz", "--query", "query.png", "--top", "3"
    )
    assert len(re.findall(r"0\.\d+", found)) >= 3
    small = ["backbone.width=2", "method.hidden_dim=8", "method.queue_size=32", "analyze.map=10"]
    settings = [word for setting in small for word in ("--set", setting)]
    python("-m", "msvq", "pretrain", "--data", "pictures.npz", "--out", "x", "--epochs", "1", *settings)
    assert {"encoder.safetensors", "report.html"} <= {path.name for path in (elsewhere / "x").iterdir()}
