"""A run directory of somebody else, or with files of somebody else in it: nothing of theirs is lost or written to."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import msvq
from msvq.cli import main
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.files import RUN_FILES, written_files
from msvq.evaluate.protocols import PROTOCOLS
from msvq.report.page import report_on
from msvq.runs.beside import compare_without_labels
from msvq.runs.run_dir import start_directory

SMALL = ["backbone.width=2", "data.limit=64", "train.batch_size=32", "method.queue_size=64"]
COMMANDS = {
    "overwrite": ["pretrain", "--out", "RUN", "--overwrite", "--data", "patterns"],
    "resume": ["pretrain", "--out", "RUN", "--resume"],
    "auto": ["pretrain", "--out", "RUN", "--auto-resume", "--data", "patterns", "--epochs", "3"],
    "report": ["report", "RUN"],
    "evaluate": ["evaluate", "RUN", "--protocol", "probe"],
    "analyze": ["analyze", "RUN"],
}
TRAINING = [word for setting in SMALL for word in ("--set", setting)] + ["--epochs", "1"]
FOLDERS = [name for name, wanted in RUN_FILES.items() if wanted is not None]
REPLACED = [name for name, wanted in RUN_FILES.items() if wanted is None and name != "skipped.csv"]
Call = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "x"
    run = msvq.pretrain(data="patterns", out=out, epochs=2, overrides=SMALL)
    run.probe()
    run.report()  # with figures
    return run.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def others(run: Path, tmp_path: Path) -> Path:
    """A folder of somebody else, with files of the names that a run writes and of others."""
    folder = tmp_path / "others"
    for name in FOLDERS:
        if (run / name).is_dir():
            shutil.copytree(run / name, folder, dirs_exist_ok=True)
    (folder / "deep").mkdir()
    for name in ("precious", "deep/precious", "events.out.tfevents.1.x"):
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def call(run: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command on the run: its exit code and what it says of an error."""

    def run_it(command: str) -> tuple[int, str]:
        words = [str(run) if word == "RUN" else word for word in COMMANDS[command]]
        with pytest.raises(SystemExit) as ended:
            main(words + (TRAINING if command == "overwrite" else []))
        return int(ended.value.code or 0), capsys.readouterr().err

    return run_it


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def put_link(place: Path, target: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, name) for command in ("overwrite", "resume", "auto") for name in FOLDERS),
        *(("report", "figures"), ("evaluate", "eval"), ("analyze", "eval"), ("analyze", "figures")),
    ],
)
def test_a_folder_that_is_a_link_is_refused_and_left_alone(
    run: Path, others: Path, call: Call, command: str, name: str
) -> None:
    put_link(run / name, others)
    before, ours = everything(others), everything(run)
    code, said = call(command)
    assert code == 2 and said.count("\n") == 1
    assert f"{str(run / name)!r} is a link to {str(others)!r}" in said and "remove it" in said
    assert everything(others) == before
    assert everything(run) == ours


@pytest.mark.parametrize("command", ["overwrite", "resume", "auto"])
@pytest.mark.parametrize("name", [".lock", "skipped.csv"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_file_that_is_written_in_place_is_no_link(
    run: Path, others: Path, call: Call, command: str, name: str, link: Callable[[Path, Path], None]
) -> None:
    (run / name).unlink(missing_ok=True)
    link(run / name, others / "precious")
    code, said = call(command)
    assert code == 2 and said.count("\n") == 1 and str(run / name) in said and "link" in said
    assert (others / "precious").read_text() == "mine"


@pytest.mark.parametrize("command", ["overwrite", "resume", "report", "evaluate", "analyze"])
def test_a_link_in_place_of_a_file_is_replaced_and_its_target_stays(
    run: Path, others: Path, call: Call, command: str
) -> None:
    linked = [run / name for name in REPLACED if (run / name).is_file()]
    linked += [file for name in FOLDERS if (run / name).is_dir() for file in (run / name).iterdir()]
    for number, path in enumerate(linked):
        shutil.move(path, others / f"{number}-{path.name}")
        path.symlink_to(others / f"{number}-{path.name}")
    before = everything(others)
    code, said = call(command)
    assert code == 0, said
    assert everything(others) == before
    written = {
        "overwrite": ["config.yaml", "metrics.jsonl", "report.html", "checkpoints/last.ckpt", "eval/analysis.json"],
        "resume": ["config.yaml", "metrics.jsonl", "encoder.json", "report.html", "eval/analysis.json"],
        "report": ["report.html", "figures/map.png"],
        "evaluate": ["eval/probe.json"],
        "analyze": ["report.html", "eval/analysis.json", "eval/map.npz"],
    }
    assert all((run / name).is_file() and not (run / name).is_symlink() for name in written[command])


def test_a_run_that_goes_on_follows_no_link_in_place_of_a_file(run: Path, others: Path) -> None:
    for name in ("metrics.jsonl", "checkpoints/last.ckpt", "report.html"):
        shutil.move(run / name, others / Path(name).name)
        (run / name).symlink_to(others / Path(name).name)
    before = everything(others)
    msvq.pretrain(out=run, resume=True, epochs=3)
    assert everything(others) == before
    assert not (run / "metrics.jsonl").is_symlink() and msvq.load(run).metrics()[-1]["epoch"] == 3


def test_a_file_that_is_being_written_follows_no_link(run: Path, others: Path) -> None:
    (run / f".report.html.{os.getpid()}.tmp").symlink_to(others / "precious")
    msvq.load(run).report()
    assert (others / "precious").read_text() == "mine"


def test_replacing_a_run_leaves_what_others_have_put_there(run: Path, call: Call) -> None:
    theirs = [run / "notes.txt", run / ".draft.tmp", run / "checkpoints" / "epoch100.ckpt", run / "eval" / "mine.json"]
    theirs += [run / "figures" / "poster.png", run / "figures" / "sketches" / "knn.png", run / "tensorboard" / "mine"]
    theirs += [run / "wandb" / "offline-run-1" / "run-1.wandb"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"theirs"')
    (run / "eval" / "mine.json").write_text("{}")
    before = [path.read_bytes() for path in theirs]
    assert call("overwrite") == (0, "")
    assert [path.read_bytes() for path in theirs] == before


def test_nothing_of_the_old_run_stays(run: Path) -> None:
    old = msvq.load(run)
    old.knn(k=3)
    old.linear(epochs=1, labels=0.5)
    old.analyze()
    compare_without_labels(old, ["pixels"], display=Display())
    for name in ("tensorboard/events.out.tfevents.1.x.2.0", "eval/.knn.json.12.tmp"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
    (run / ".report.html.12.tmp").touch()
    (run / ".lock").unlink()
    assert {path for path in run.rglob("*") if path.is_file()} == set(written_files(run))
    start_directory(run, Settings(), {})
    assert {path.name for path in run.iterdir()} == {"config.yaml", "environment.json"}


def test_every_protocol_is_known_as_a_file_of_a_run() -> None:
    wanted = RUN_FILES["eval"]
    assert wanted is not None and all(re.fullmatch(wanted, f"{name}-on-x.json") for name in PROTOCOLS)


@pytest.mark.parametrize("command", ["overwrite", "resume"])
@pytest.mark.parametrize(("name", "kind"), [("report.html", "folder"), ("figures", "file")])
def test_something_else_in_the_place_of_a_run_s_file_is_not_removed(
    run: Path, call: Call, command: str, name: str, kind: str
) -> None:
    shutil.rmtree(run / "figures")
    (run / "report.html").unlink()
    precious = run / name / "precious" if kind == "folder" else run / name
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("mine")
    code, said = call(command)
    assert code == 2 and said.count("\n") == 1 and f"{str(run / name)!r} is a {kind}" in said
    assert precious.read_text() == "mine"


def test_a_run_directory_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    msvq.pretrain(data="patterns", out=tmp_path / "link", epochs=1, overrides=SMALL, overwrite=True)
    assert (tmp_path / "link").is_symlink() and (run / "report.html").is_file()


def test_figures_that_compare_runs_go_through_no_link(run: Path, made: Path, others: Path, tmp_path: Path) -> None:
    (tmp_path / "both-figures").symlink_to(others)
    before = everything(others)
    with pytest.raises(msvq.BadInput, match="is a link to"):
        report_on([run, made], out=tmp_path / "both.html")
    assert everything(others) == before and not (tmp_path / "both.html").exists()
