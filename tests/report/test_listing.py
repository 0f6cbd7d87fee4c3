"""msvq runs: what is in a folder, best first."""

import json
import re
from pathlib import Path

import pytest

from msvq.cli import main
from msvq.config.resolve import resolve
from msvq.core.console import duration
from msvq.core.errors import BadInput
from msvq.report.listing import list_runs
from msvq.runs.run_dir import locked


def make_run(path: Path, *, knn: list[float], finished: bool = True, state: str = "good") -> None:
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text(resolve(recipe="smoke", epochs=4).to_yaml())
    lines = [{"kind": "eval", "step": 3 * n, "epoch": n, "knn_top1": value} for n, value in enumerate(knn)]
    last = {"step": 3 * len(knn), "epoch": len(knn) - 1, "loss": 1.0, "images_per_second": 32.0}
    lines.append({"kind": "epoch", **last})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (path / "encoder.json").write_text("{}")
        (path / "eval" / "analysis.json").write_text(json.dumps({"verdict": {"state": state}}))


def test_the_best_comes_first_and_what_is_not_finished_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "a", knn=[10.0, 20.0], state="weak")
    make_run(tmp_path / "deep" / "b", knn=[10.0, 30.0, 50.0])
    make_run(tmp_path / "c", knn=[10.0, 40.0], finished=False)
    (tmp_path / "other").mkdir()
    found = list_runs(tmp_path)
    assert [(run.name, run.state, run.knn) for run in found] == [
        ("deep/b", "good", 50.0),
        ("c", "not finished", 40.0),
        ("a", "weak", 20.0),
    ]
    assert (found[0].method, found[0].data, found[0].epochs) == ("msvq", "patterns", "2/4")
    assert [run.name for run in list_runs(tmp_path / "a")] == ["a"]


def test_a_damaged_run_is_listed_as_such(tmp_path: Path) -> None:
    make_run(tmp_path / "a", knn=[10.0])
    (tmp_path / "a" / "eval" / "analysis.json").write_text("{not json")
    assert [run.state for run in list_runs(tmp_path)] == ["damaged"]


def test_a_folder_without_runs_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run in"):
        list_runs(tmp_path)
    with pytest.raises(BadInput, match="there is no folder"):
        list_runs(tmp_path / "gone")


def test_a_run_that_a_process_is_at_is_training(tmp_path: Path) -> None:
    make_run(tmp_path / "a", knn=[10.0], finished=False)
    with locked(tmp_path / "a"):
        assert [run.state for run in list_runs(tmp_path)] == ["training"]
    assert [run.state for run in list_runs(tmp_path)] == ["not finished"]


def test_runs_are_printed_a_line_each_and_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / ":cat:", knn=[10.0, 20.0])
    make_run(tmp_path / "[red]a\nb", knn=[10.0])
    with pytest.raises(SystemExit) as ended:
        main(["runs", str(tmp_path)])
    assert ended.value.code == 0
    title, *lines = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert title == ["run", "method", "data", "state", "epochs", "took", "changed", "kNN, %"]
    took = duration(6 * resolve(recipe="smoke").train.batch_size / 32)
    assert lines[0][:6] == [":cat:", "msvq", "patterns", "good", "1/4", took]
    assert lines[1][0] == "[red]a\\nb" and len(lines) == 2
