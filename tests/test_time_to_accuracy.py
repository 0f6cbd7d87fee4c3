"""The benchmark of accuracy against time: its arithmetic, and a very small run of it."""

import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from msvq.config.budget import CROPS, Rung
from msvq.core.runtime import cpu_has_bf16
from msvq.runs.run_dir import processor_name

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import time_to_accuracy  # type: ignore[import-not-found]

    return time_to_accuracy


def run(who: str, minutes: float, top1: float) -> dict[str, Any]:
    return {"contender": who, "minutes": minutes, "seed": 0, "curve": [{"minutes": minutes, "knn_top1": top1}]}


def test_conclusions_compare_with_the_bars(module: Any) -> None:
    runs = [run("budget", 10, 60), run("lightly-mocov2", 10, 44), run("lightly-byol", 10, 47), run("budget", 1.5, 50)]
    text = "\n".join(module.conclusions(runs))
    assert "budget over lightly-mocov2 after ten minutes: 16.0 points (at least 12)" in text
    assert "budget over lightly-byol after ten minutes: 13.0 points (at least 12)" in text
    assert "what the best of lightly's has after ten minutes, budget has after 1.5 (at most 1.5)" in text
    late = "\n".join(module.conclusions([*runs, run("budget", 1.5, 42)]))
    assert "budget has after 10 (at most 1.5)" in late  # by the mean
    never = "\n".join(module.conclusions([*runs, run("lightly-simclr", 10, 61)]))
    assert "budget has in none of its runs" in never
    assert module.conclusions(runs[1:3]) == [
        "lightly-mocov2 after 10 minutes: 44.0",
        "lightly-byol after 10 minutes: 47.0",
    ]


def test_a_run_takes_the_largest_network_that_makes_its_steps_in_the_minutes(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By paces of 0.1 and 0.2 seconds, each twice as long in the last quarter of a run."""
    opened: list[tuple[str, int]] = []

    def offer(network: str, least_steps: int) -> Any:
        def open_run(total: int) -> Any:
            opened.append((network, total))
            stages = [module.Stage(0, 0.75, 16), module.Stage(round(0.75 * total), 0.25, 32)]
            return contextlib.nullcontext(module.Contender(None, 64, stages, lambda start: itertools.repeat(None)))

        return module.Offer(network, least_steps, open_run)

    def pace(network: str, seconds: float) -> dict[str, Any]:
        stages = ((16, 0.75, seconds), (32, 0.25, 2 * seconds))
        return {
            "network": network,
            "stages": [dict(zip(("size", "share", "seconds"), one, strict=True)) for one in stages],
        }

    monkeypatch.setattr(module, "accuracies", lambda encoder, data: {"knn_top1": 50.0})
    data = SimpleNamespace(train=range(100), num_classes=10, size=32)
    offered, paces = [offer("small", 0), offer("large", 300)], [pace("small", 0.1), pace("large", 0.2)]
    for minutes, chosen in ((1.0, ("small", 480)), (1.25, ("large", 300))):
        found = module.train(module.Run("budget", minutes, 0), offered, paces, data, 4)
        assert opened.pop() == chosen
        assert (found["pace"]["network"], found["steps"]) == chosen
        assert [point["minutes"] / minutes for point in found["curve"]] == pytest.approx([0.2, 0.4, 0.6, 1.0])
    for wrong in ([pace("small", 0.1)], [pace("small", 0.1), pace("other", 0.2)]):
        with pytest.raises(SystemExit, match="are of other networks"):
            module.train(module.Run("budget", 1.0, 0), offered, wrong, data, 4)


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
    monkeypatch.setattr(module, "ENOUGH", 0.0)
    monkeypatch.setattr("msvq.config.budget.LADDER", (Rung("resnet8", 4, 0), Rung("resnet14", 4, 10**9)))
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
    assert "ours 0.01 min, seed 0" not in answer("--run", "budget:0.01")  # it is there, and not done again
    found = json.loads((tmp_path / "times.json").read_text())
    assert len(started) == 4
    assert found["paces"][0] == first["paces"][0] and found["runs"][0] == first["runs"][0]
    ours, budget = found["runs"]
    assert [ours["contender"], budget["contender"]] == ["ours", "budget"]
    assert [len(one["curve"]) for one in (ours, budget)] == [2, 2]
    assert [stage["size"] for stage in ours["pace"]["stages"]] == [32]
    assert [stage["size"] for stage in budget["pace"]["stages"]] == [32 * part for _, part in CROPS]
    assert [network["network"] for network in found["paces"][1]["networks"]] == ["resnet8 width 4", "resnet14 width 4"]
    assert budget["pace"] == found["paces"][1]["networks"][0]
    for record in (*found["runs"], *found["paces"]):
        assert record["data"] == "cifar10"
        assert (record["processor"], record["bf16"]) == (processor_name(), cpu_has_bf16())
    assert (ours["pictures"], ours["classes"], ours["size"], ours["batch_size"]) == (400, 10, 32, 256)

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
    (tmp_path / "times.json").write_text('{"width": 4, "paces": [], "runs": []}')
    assert module.earlier(tmp_path / "times.json", 4)["runs"] == []
    with pytest.raises(SystemExit, match="is of width 4, not 16"):
        module.earlier(tmp_path / "times.json", 16)
