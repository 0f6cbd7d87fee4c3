"""Each example runs as it stands in the documentation, only smaller."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from examples import a_run_in_a_notebook, embed_and_classify, msvq_in_a_plain_loop, own_callback

import msvq

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64", "train.log_every=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """What the notebook leaves."""
    return a_run_in_a_notebook.main(tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL)


def test_the_notebook_judges_what_it_trains(run: msvq.Run) -> None:
    names = {path.name for path in (run.path / "eval").glob("*.json")}
    assert names >= {"knn-k-20.json", "probe-labels-0.1-seeds-3.json", "analysis.json"}
    assert (run.path / "report.html").is_file()
    assert list(Path(f"{run.path}-export").glob("*.safetensors"))


def test_the_parts_learn_in_a_plain_loop_and_leave_a_run(tmp_path: Path) -> None:
    run, losses = msvq_in_a_plain_loop.main(tmp_path / "run", num_pictures=256, epochs=2, width=4)
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    assert run.embed(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 32)
    assert (run.path / "report.html").is_file()


def test_a_pipeline_beats_chance(run: msvq.Run) -> None:
    assert embed_and_classify.main(str(run.path), num_train=200, num_test=100) > 0.1


def test_a_callback_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = [*SMALL, "data.limit=64", "train.base_lr=1e-12", "evaluate.every=1", "train.log_every=1"]  # learns nothing
    losses = own_callback.main(tmp_path / "x", epochs=20, patience=1, overrides=still)
    assert "stopped: no better than" in capsys.readouterr().out
    assert 0 < len(losses) < 20 * 2


def test_every_example_has_a_test() -> None:
    folder = Path(__file__).parent.parent / "examples"
    told = Path(__file__).read_text(encoding="utf-8")
    for path in folder.glob("*.py"):
        assert import_module(f"examples.{path.stem}").__doc__
        assert path.stem in told or path.stem == "your_own_method", path.name  # tests/methods/test_external.py
