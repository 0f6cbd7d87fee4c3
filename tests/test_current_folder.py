"""Commands that are given in a folder of a stranger: nothing that lies there is run, or obeyed.

The folder has a file for every module of the standard library and of all that is installed, and settings of libraries.
"""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import msvq
from msvq.cli import app, main
from msvq.core.launch import child_environment, safe_path

HOME = Path(msvq.__file__).parent.parent
SMALL = ["backbone.width=2", "train.batch_size=32", "method.queue_size=64", "analyze.map=10", "analyze.batches=2"]
FAST = [word for setting in SMALL for word in ("--set", setting)]
STEPS = ["--set", "train.steps=1"]

# What is tried of each command; `pretrain` makes the run that they are about, in that folder too.
COMMANDS = {
    "plan": ["--data", "../set", "--epochs", "1", "--steps", "3", *FAST],
    "bench": ["--steps", "3", *FAST],
    "evaluate": ["../run", "--set", "k=5"],
    "analyze": ["../run"],
    "report": ["../run"],
    "embed": ["../run", "--data", "../set", "--out", "../features.npz"],
    "search": ["../run", "--data", "../set", "--query", "../set/a/0.png"],
    "duplicates": ["../run", "--data", "../set"],
    "outliers": ["../run", "--data", "../set", "--num", "2"],
    "select": ["../run", "--data", "../set", "--num", "2"],
    "cluster": ["../run", "--data", "../set", "--num", "2"],
    "mislabelled": ["../run", "--data", "../set"],
    "classify": ["../run", "--data", "../set", "--examples", "../set"],
    "export": ["../run", "--format", "safetensors", "--out", "../model"],
    "reproduce": ["knn", "--scale", "smoke", "--methods", "simclr", "--epochs", "1", "--out", "../sweep"],
    "compare": ["../set", "--methods", "mocov2", "--seeds", "1", "--out", "../compared", *STEPS, *FAST],
    "doctor": ["--data", "../set"],
    "datasets": [],
    "methods": [],
    "settings": [],
    "runs": ["../run"],
    "pretrained": [],
}


FORKING = """
import json, os, sys
from msvq.cli import main
import torch, torchvision, sklearn.manifold, scipy.stats
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        main(words)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(f"{words[0]}: {code}")
"""


def plant(folder: Path, names: set[str]) -> None:
    """Modules that leave a mark beside the folder when they are imported."""
    folder.mkdir()
    code = f"open({str(folder.parent / 'mark')!r}, 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n"
    for name in names:
        (folder / f"{name}.py").write_text(code)


def call(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A program in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def call_msvq(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return call(folder, sys.executable, str(Path(sysconfig.get_path("scripts")) / "msvq"), *words)


def paint_set(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for index in range(240):
        path = folder / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(256, size=(40, 40, 3), dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stranger's; beside it pictures, and a run that was made from it."""
    folder = tmp_path_factory.mktemp("current") / "here"
    installed = {name for name in packages_distributions() if name.isidentifier()}
    plant(folder, {*sys.stdlib_module_names, *installed, "sitecustomize", "usercustomize", "msvq"})
    (folder / "matplotlibrc").write_text("text.usetex: True\n")
    paint_set(folder.parent / "set")
    done = call_msvq(folder, "pretrain", "--data", "../set", "--out", "../run", "--epochs", "1", *FAST)
    assert done.returncode == 0, done.stderr
    assert not (folder.parent / "mark").exists()
    assert (folder.parent / "run" / "figures" / "knn.svg").exists()  # drawn without TeX
    return folder


def test_no_command_runs_anything_of_the_current_folder(folder: Path, tmp_path: Path) -> None:
    """Each in a process of its own, forked where `msvq` is about to begin: PyTorch is imported, from there, once."""
    script = tmp_path / "msvq"
    script.write_text(FORKING)
    done = call(folder, sys.executable, str(script), json.dumps([[name, *words] for name, words in COMMANDS.items()]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder.parent / "mark").exists()


def test_every_command_is_tried() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert known - {"pretrain", "demo"} == COMMANDS.keys()  # the demo is `pretrain`, for minutes


def test_what_is_planted_would_run(tmp_path: Path) -> None:
    plant(tmp_path / "here", {"signal"})
    assert call(tmp_path / "here", sys.executable, "-c", "import signal").returncode == 1
    assert (tmp_path / "mark").read_text() == "signal\n"


def test_python_m_msvq_leaves_the_current_folder_out_as_soon_as_it_can(tmp_path: Path) -> None:
    plant(tmp_path / "here", {"signal", "json", "numpy", "PIL", "torch", "yaml", "typer", "rich"})
    paint_set(tmp_path / "set")
    done = call(tmp_path / "here", sys.executable, "-m", "msvq", "doctor", "--data", "../set")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "mark").exists()


def test_children_find_what_their_parent_finds_but_for_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, link, mine = tmp_path / "here", tmp_path / "link", str(tmp_path / "mine")
    here.mkdir()
    link.symlink_to(here)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", ".", str(here), str(link), "lib", mine, str(HOME)])
    assert safe_path() == [mine, str(HOME)]
    monkeypatch.chdir(HOME)  # where msvq itself lies, there is no way around it
    assert safe_path() == [str(HOME), str(here), str(link), mine]
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}lib")
    environment = child_environment(OMP_NUM_THREADS="1")
    assert environment["PYTHONPATH"] == os.pathsep.join(safe_path())
    assert environment["OMP_NUM_THREADS"] == "1" and environment.keys() >= os.environ.keys()


def test_settings_of_matplotlib_that_cannot_be_read_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    done = call_msvq(tmp_path, "report", str(folder.parent / "run"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "in a file matplotlibrc, are no text; remove it" in done.stderr


@pytest.mark.parametrize("place", ["", "tls", os.uname().machine, "glibc-hwcaps/x86-64-v3"])
def test_a_planted_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """The libraries of CUDA that come with PyTorch look for it in the current folder, and would run it."""
    planted = Path(place) / "libcuda.so.1"
    monkeypatch.chdir(tmp_path)
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.touch()
    with pytest.raises(SystemExit) as ended:
        main(["methods"])
    assert ended.value.code == 2
    told = f"msvq: PyTorch would run {str(planted)!r} of the current folder; start from another folder\n"
    assert capsys.readouterr().err == told
