"""msvq compare: several methods on one's own pictures, in one table, gone on with, and what is no comparison."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.reproduce import compare as comparing
from msvq.reproduce.compare import Compared, RunLength, grid, plan_contest
from msvq.reproduce.experiments import Task

TINY = [
    *("train.steps=2", "train.batch_size=16", "backbone.name=resnet8", "backbone.width=4", "method.hidden_dim=16"),
    *("method.bn_splits=2", "analyze.map=10", "analyze.batches=1", "data.size=16", "data.test_size=16"),
]
METHODS = ["simclr", "byol"]
Says = Callable[..., tuple[int, str, str]]


def paint(folder: Path, num: int = 40, *, kinds: int = 2) -> Path:
    for index, image in enumerate(make_patterns(num, seed=5)[0]):
        path = folder / (f"kind{index % kinds}" if kinds else "") / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((16, 16)).save(path)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("pictures") / "photos")


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> tuple[Path, Compared]:
    """One that was held in child processes, with one seed."""
    out = tmp_path_factory.mktemp("sweep") / "compared"
    found = msvq.compare(METHODS, photos, seeds=1, out=out, overrides=TINY, console=Console(quiet=True))
    assert found.failed == {}
    return out, found


def test_settings_may_be_a_dictionary(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "hold_contest", lambda contest, **_: contest)
    settings = {"train.steps": 2, "data.root": tmp_path, "backbone.width": 4}
    contest: Any = msvq.compare(METHODS, photos, overrides=settings)
    assert contest.tasks[0].cell.overrides == ("train.steps=2", f'data.root="{tmp_path}"', "backbone.width=4")


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    def run(*words: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_every_method_has_a_row_and_what_it_is_held_against(contest: tuple[Path, Compared]) -> None:
    out, found = contest
    assert {row["method"] for row in found.rows} == {"SimCLR", "BYOL"}
    assert [row["method"] for row in found.beside] == [
        "untrained encoder",
        "8 x 8 pixels",
        "colour histogram",
        "chance",
    ]
    scores = [row["knn"]["mean"] for row in found.rows]
    assert scores == sorted(scores, reverse=True)
    assert all((row["seeds"], row["network"], row["steps"]) == (1, "resnet8 width 4", 2) for row in found.rows)
    for row, method in ((row, row["method"].lower()) for row in found.rows):
        known = json.loads((out / "cells" / f"{method}-s0" / "eval" / "analysis.json").read_text())
        assert row["knn"]["mean"] == known["knn"]["accuracy"]["trained"]
        assert row["copies"]["mean"] == known["copies"]["recall"]["trained"]["at_1"]
    assert found.beside[-1]["knn"]["mean"] == 50.0  # two classes of equal size
    assert json.loads((out / "results" / "compare.json").read_text())["rows"] == list(found.rows)


def test_it_is_printed_and_a_page(contest: tuple[Path, Compared]) -> None:
    out, found = contest
    text, page = str(found), found.path.read_text()
    for word in ("SimCLR", "BYOL", "kNN, %", "copies found, %", "chance", "untrained encoder"):
        assert word in text and word in page
    assert "4 test pictures: their choice alone makes the best row uncertain by" in text
    assert 'href="cells/simclr-s0/report.html"' in page and "arXiv 2305.05370" not in page
    assert 'href="runs.html"' in page and (out / "runs.html").is_file()
    for record in ("sweep.json", "cells/byol-s0/environment.json"):
        assert json.loads((out / record).read_text())["made_by"] == "msvq compare"


def copied(contest: tuple[Path, Compared], place: Path) -> Path:
    return Path(shutil.copytree(contest[0], place / "compared"))


def test_another_seed_goes_on_from_what_is_there(
    contest: tuple[Path, Compared], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copied(contest, tmp_path)
    begun: list[str] = []

    def trains(place: Path, tasks: list[Task], **options: Any) -> dict[str, str]:
        """A run of seed 0 in the place of one that is missing; the last one fails."""
        for task in tasks:
            if not task.is_finished:
                begun.append(task.cell.name)
                if task.cell.method == "simclr":
                    shutil.copytree(place / "cells" / "simclr-s0", task.run)
        return {"byol-s1": "it broke"}

    monkeypatch.setattr(comparing, "run_tasks", trains)
    found = msvq.compare(METHODS, photos, seeds=2, out=out, overrides=TINY, console=Console(quiet=True))
    assert begun == ["simclr-s1", "byol-s1"]
    seeds = {row["method"]: (row["seeds"], row["knn"]["std"]) for row in found.rows}
    assert seeds == {"SimCLR": (2, 0.0), "BYOL": (1, None)}
    assert "failed: byol-s1: it broke" in str(found)


def test_nothing_is_trained_twice_and_other_things_are_refused(
    says: Says, contest: tuple[Path, Compared], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msvq.reproduce.sweep.Pool.start", lambda pool, task: pytest.fail("a run was started"))
    out, settings = copied(contest, tmp_path), [word for text in TINY for word in ("--set", text)]
    words = ["compare", photos, "--methods", "simclr,byol", "--seeds", 1, "--out", out]
    code, said, _ = says(*words, *settings)
    assert code == 0
    assert f"2 methods with 1 seed on {photos}: 2 runs, 2 of them finished, in {out}" in said.replace("\n", " ")
    code, _, error = says(*words, *settings, "--set", "train.seed=3")
    assert code == 2 and "choose another directory" in error
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    record = json.loads((out / "cells" / "byol-s0" / "environment.json").read_text())
    (out / "cells" / "byol-s0" / "environment.json").write_text(json.dumps(record | {"data_fingerprint": "other"}))
    code, _, error = says(*words, *settings)
    assert code == 2 and "the run byol-s0 in" in error and "was trained on other pictures" in error


def test_the_time_of_a_run_and_of_all_is_said(
    says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stands_in(place: Path, tasks: list[Task], **options: Any) -> dict[str, str]:
        assert [task.cell.arguments["budget"] for task in tasks] == ["5m"] * 6
        return {task.cell.name: "no" for task in tasks}

    monkeypatch.setattr(comparing, "run_tasks", stands_in)
    out = tmp_path / "compared"
    code, said, _ = says("compare", photos, "--methods", "msvq,simclr", "--out", out)
    assert code == 1  # all have failed
    assert "failed: msvq-s0: no" in said and "kNN" not in said
    assert "6 runs of 5.0 min each, 0 of them finished, 30 min in all" in said.replace("\n", " ")
    assert (out / "report.html").is_file()


def test_without_labels_copies_decide(
    says: Says, contest: tuple[Path, Compared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, out = paint(tmp_path / "plain", kinds=0), tmp_path / "compared"

    def stands_in(place: Path, tasks: list[Task], **options: Any) -> dict[str, str]:
        for task in tasks:
            shutil.copytree(contest[0] / "cells" / task.cell.name, task.run)
            file = task.run / "eval" / "analysis.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"knn": None}))
            for result in (task.run / "eval").glob("knn*.json"):
                result.unlink()
        return {}

    monkeypatch.setattr(comparing, "run_tasks", stands_in)
    code, said, _ = says("compare", plain, "--methods", "simclr,byol", "--seeds", 1, "--out", out)
    assert code == 0
    assert "has no labels, so methods are compared by the copies that they find" in said.replace("\n", " ")
    header, rows = grid(json.loads((out / "results" / "compare.json").read_text()))
    assert header == ["method", "copies found, %", "network", "steps", "seeds"]
    assert len(rows) == 2 + 3  # no chance without classes
    code, _, error = says("compare", plain, "--methods", "simclr,supervised", "--out", tmp_path / "other")
    assert code == 2 and "supervised learns from labels, and plain has none; leave it out of --methods" in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--methods", "simclr,byoll"], "unknown method 'byoll'; did you mean 'byol'"),
        (["--methods", ","], "methods to compare are a list of names"),
        (["--methods", "simclr", "--seeds", "0"], "--seeds is a number of repetitions, at least 1, not 0"),
        (["--methods", "simclr", "--budget", "soon"], "--budget 'soon' is not a time"),
        (["--methods", "simclr", "--budget", "5m", "--set", "train.epochs=2"], "both say how long a run is"),
        (["--methods", "simclr,msvq", "--set", "method.queue_size=64"], "queue_size"),
        (["--methods", "simclr", "--data", "photos"], "are two sets of pictures"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    words: list[str], told: str, says: Says, photos: Path, tmp_path: Path
) -> None:
    code, said, error = says("compare", photos, "--out", tmp_path / "out", *words)
    assert (code, said) == (2, "")
    assert told in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_pictures_have_to_be_named(says: Says) -> None:
    assert "name the pictures to compare on" in says("compare", "--methods", "simclr")[2]
    assert "there is no folder 'nowhere' here" in says("compare", "nowhere", "--methods", "simclr")[2]


def test_how_far_a_run_is(contest: tuple[Path, Compared], photos: Path, tmp_path: Path) -> None:
    done, new = (
        plan_contest(["simclr"], str(photos), seeds=1, out=out, overrides=TINY).tasks[0]
        for out in (contest[0], tmp_path)
    )
    assert (RunLength().done(done), RunLength().done(new)) == (1.0, 0.0)
