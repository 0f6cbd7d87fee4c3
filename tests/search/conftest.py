"""A small run, a folder of pictures, and commands as a person types them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns

SMALL = ["backbone.width=4", "data.limit=64", "train.batch_size=32", "method.queue_size=32"]
NUM = 30
Says = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 15 pictures, and two files that are none."""
    images, _ = make_patterns(NUM, seed=5)
    for index, image in enumerate(images):
        path = tmp_path / "photos" / ("beach" if index < 15 else "city") / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((48, 40)).save(path)
    (tmp_path / "photos" / "beach" / "99.jpg").touch()
    (tmp_path / "photos" / "city" / "letter.jpg").write_text("dear")
    return tmp_path / "photos"


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Runs a command; code, output and error output."""
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))

    def run(*arguments: str | Path | int) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def save_arrays(path: Path, num: int = NUM) -> None:
    images, labels = make_patterns(num, seed=5)
    np.savez(path, images=images, labels=labels)
