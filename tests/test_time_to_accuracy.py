"""The benchmark of accuracy against time: its arithmetic, and a very small run of it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import time_to_accuracy  # type: ignore[import-not-found]

    return time_to_accuracy


def point(minutes: float, top1: float) -> dict[str, float]:
    return {"minutes": minutes, "knn_top1": top1}


def test_when_a_curve_reaches_an_accuracy(module: Any) -> None:
    curve = [point(2, 40), point(4, 50), point(6, 48)]
    assert module.minutes_to(curve, 45) == pytest.approx(3)
    assert module.minutes_to(curve, 20) == pytest.approx(1)
    assert module.minutes_to(curve, 51) is None


def test_shares_of_a_schedule(module: Any) -> None:
    assert module.shares([(0.0, 16), (0.6, 24), (0.85, 32)]) == pytest.approx([0.6, 0.25, 0.15])
    assert module.shares([(0.0, 32)]) == [1.0]


def test_conclusions_compare_with_the_bars(module: Any) -> None:
    def run(who: str, minutes: float, *curve: dict[str, float]) -> dict[str, Any]:
        return {"contender": who, "minutes": minutes, "seed": 0, "curve": list(curve)}

    runs = [
        run("fast", 10, point(3, 45), point(10, 55)),
        run("lightly", 10, point(10, 44)),
        run("ours", 15, point(15, 45)),
        run("fast", 6, point(6, 50)),
    ]
    text = "\n".join(module.conclusions(runs))
    assert "fast over lightly after ten minutes: 11.0 points (at least 7)" in text
    assert text.count("in 1 of 1 runs") == 2
    assert "0.20 of the time (at most 0.4)" in text
    assert "0.36 of the time (at most 0.4)" in text  # 5.4 minutes
    late = "\n".join(module.conclusions([*runs, run("fast", 6, point(6, 44))]))
    assert "in 1 of 2 runs" in late
    assert late.count("of the time") == 1


def test_the_command_runs_on_a_small_copy_of_the_data_set(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class folders of some pictures: paces, two contenders for a second each, and the JSON."""
    for split, num in (("train", 40), ("test", 5)):
        for name in ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(num):
                noise = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(noise).save(folder / f"{i}.png")
    words = [str(BENCHMARKS / "time_to_accuracy.py"), str(tmp_path / "data"), "--width", "4"]
    words += ["--run", "ours:0.01", "--points", "2", "--repetitions", "1", "--out", str(tmp_path / "times.json")]
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(module, "READY", 0)
    monkeypatch.setattr(module, "PACED", 1)
    started, run = [], subprocess.run

    def answer(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        module.main()
        return capsys.readouterr().out

    def start(child: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """A child's task: the first training as a process, what else there is as the process would do it."""
        assert child[:2] == [sys.executable, words[0]]
        started.append(child)
        if len(started) == 2:
            return run(child, **options)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            monkeypatch.setattr(sys, "argv", child[1:])
            module.main()
        return subprocess.CompletedProcess(child, 0, said.getvalue())

    monkeypatch.setattr(module.subprocess, "run", start)
    assert "ours after 0.01 minutes" in answer()
    first = json.loads((tmp_path / "times.json").read_text())
    assert "ours 0.01 min, seed 0" not in answer("--run", "fast:0.01")  # it is there, and not done again
    found = json.loads((tmp_path / "times.json").read_text())
    assert len(started) == 4
    assert [run["contender"] for run in found["runs"]] == ["ours", "fast"]
    assert found["runs"][0] == first["runs"][0]
    assert found["paces"]["ours"] == first["paces"]["ours"]
    assert [len(run["curve"]) for run in found["runs"]] == [2, 2]
    assert [len(found["paces"][name]) for name in ("ours", "fast")] == [1, 3]  # a pace for each resolution

    monkeypatch.undo()  # and as a person gives it: everything is there already
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MSVQ_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "ours after 0.01 minutes" in done.stdout


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": []}'])
def test_a_file_of_something_else_is_not_touched(module: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    with pytest.raises(SystemExit, match="is not a file of this script"):
        module.earlier(tmp_path / "notes.json", 16)


def test_runs_of_another_width_are_not_mixed(module: Any, tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text('{"width": 4, "paces": {}, "runs": []}')
    assert module.earlier(tmp_path / "times.json", 4)["runs"] == []
    with pytest.raises(SystemExit, match="is of width 4, not 16"):
        module.earlier(tmp_path / "times.json", 16)
