"""Every command in README.md and docs/ is understood, and is run, here or in a test that is named, or says its needs.

Each page is followed from top to bottom in a folder of its own, with its pieces of Python. Where a command trains,
settings that make it small are put behind it; `photos` is a folder of 90 little pictures, and any other picture that is
named is one of them; a run that a page takes for granted is a small one. Nothing else differs from what a reader types.
"""

import re
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.reference import commands_page
from PIL import Image
from tests.docs.commands import ROOT, Command, blocks, commands_in, commands_of, mentioned_in, problem

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.methods import METHODS

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}

NARROW = "backbone.width=2"
SMALL = [NARROW, "train.batch_size=16", "data.limit=64", "data.workers=1", "analyze.map=0"]
SET = [word for setting in SMALL for word in ("--set", setting)]
BEHIND = {
    "pretrain": ["--epochs", "1", *SET, "--overwrite"],
    "plan": ["--epochs", "1", *SET, "--steps", "3"],
    "bench": [*SET, "--steps", "3"],
}
# What is run by other tests, or runs the tests.
ELSEWHERE = {
    "make demo": "tests/cli/test_cli.py::test_demo_runs_twice_but_leaves_other_runs_alone",
    "make test": "Makefile::test",
    "make check": "Makefile::check",
    "make lint": "Makefile::lint",
    "make faults": "tests/test_faults.py::test_",
    "msvq demo": "tests/cli/test_cli.py::test_demo_runs_twice_but_leaves_other_runs_alone",
    "msvq compare photos --methods msvq,simclr --seeds 3 --budget 5m": "tests/reproduce/test_compare.py::test_",
    "msvq reproduce linear --scale smoke": "tests/reproduce/test_sweep.py::test_a_sweep_is_killed",
}
MAY_FIND_SOMETHING = ("doctor",)  # exit code 1: something was found


@pytest.fixture(autouse=True)
def _methods_stay_as_they_are() -> Iterator[None]:
    """A method of one's own is forgotten afterwards."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with pictures and one small run."""
    folder = tmp_path_factory.mktemp("checkout")
    pictures, _ = make_patterns(90, seed=1)
    for index, pixels in enumerate(np.asarray(pictures)):
        file = folder / "photos" / f"kind{index % 3}" / f"{index:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    shutil.copytree(folder / "photos", folder / "labelled")
    (folder / "examples").symlink_to(ROOT / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        msvq.pretrain(data="photos", out="runs/small", epochs=1, overrides=SMALL)
    return folder


@pytest.fixture
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, for one page."""
    shutil.copytree(place, tmp_path / "checkout", symlinks=True)
    monkeypatch.chdir(tmp_path / "checkout")
    return tmp_path / "checkout"


def take_for_granted(text: str, here: Path) -> None:
    """Let every run and picture be there that is named."""
    for name in re.findall(r"\bruns/[\w-]+", text):
        if not (here / name).exists():
            shutil.copytree(here / "runs" / "small", here / name)
    for name in re.findall(r"[\w-]+\.(?:jpg|png)\b", text):
        if not (here / name).exists():
            shutil.copy(here / "photos" / "kind0" / "00.png", here / name)


def typed(command: Command) -> list[str]:
    """The words for `main`, small where it trains."""
    words = command.words
    words = words[words.index("msvq") + 1 :]
    if {"--resume", "--auto-resume"} & set(words):
        return words
    if "--budget" in words:  # an epoch is shorter
        at = words.index("--budget")
        words = [*words[:at], *words[at + 2 :]]
    behind = BEHIND.get(words[0], [])
    if behind and any(word.startswith(("timm:", "torchvision:")) for word in words):  # their networks have no width
        behind = [word for word, after in zip(behind, [*behind[1:], ""], strict=True) if NARROW not in (word, after)]
    if words[0] == "pretrain" and "--method" not in words:
        behind = [*behind, "--set", "method.queue_size=64"]
    return [*words, *behind]


def run(command: Command, here: Path) -> int:
    words = typed(command)
    begins = words[0] == "pretrain" and "--overwrite" in words
    take_for_granted(command.text.replace(words[words.index("--out") + 1], "") if begins else command.text, here)
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a page's Python has from the start; training is small."""
    pretrain = msvq.pretrain

    def small(*, epochs: int = 1, budget: str = "", overrides: tuple[str, ...] = (), **options: Any) -> msvq.Run:
        queue = [] if "method" in options else ["method.queue_size=64"]
        return pretrain(epochs=1, overrides=[*overrides, *SMALL, *queue], overwrite=True, **options)

    monkeypatch.setattr(msvq, "pretrain", small, raising=False)
    monkeypatch.setattr(msvq, "save_run", partial(msvq.save_run, overwrite=True), raising=False)
    return {"images": make_patterns(3, seed=2)[0]}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_understood(page: str) -> None:
    wrong = {str(command): problem(command) for command in commands_in(TEXTS[page], page)}
    wrong |= {str(command): problem(command, whole=False) for command in mentioned_in(TEXTS[page], page)}
    assert {command: why for command, why in wrong.items() if why} == {}


def test_the_examples_of_the_help_are_understood() -> None:
    found = commands_in(commands_page(), "commands")
    assert len(found) > 8
    assert [str(command) for command in found if problem(command)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(TEXTS[page]))])
def test_a_page_can_be_followed(
    page: str, here: Path, python: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(TEXTS[page]):
        if block.language == "python" and not block.needs:
            take_for_granted("\n".join(block.lines), here)
            exec(compile("\n" * (block.line - 1) + "\n".join(block.lines), page, "exec"), python)
        for command in commands_of(block, page):
            if command.needs or command.text in ELSEWHERE:
                continue
            assert command.words[0] in ("msvq", "torchrun"), f"{command}\nis not run: say what it needs"
            code = run(command, here)
            said = capsys.readouterr()
            assert code == 0 or (code == 1 and typed(command)[0] in MAY_FIND_SOMETHING), f"{command}\n{said.err}"


def test_what_is_said_to_be_run_elsewhere_is() -> None:
    for where in ELSEWHERE.values():
        file, name = where.split("::")
        wanted = f"{name}:" if file == "Makefile" else f"def {name}"
        assert wanted in (ROOT / file).read_text(encoding="utf-8"), where


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("msvq pretrain --data photos --out runs/x --epocs 20", "No such option: --epocs"),
        ("msvq pretrian --out runs/x", "No such command 'pretrian'"),
        ("msvq pretrain --data photos", "Missing option '--out'"),
        ("msvq pretrain --recipe cifar11 --out runs/x", "unknown recipe 'cifar11'"),
        ("msvq pretrain --out runs/x --method mocov9", "unknown method 'mocov9'"),
        ("msvq pretrain --out runs/x --backbone resnet19", "unknown backbone 'resnet19'"),
        pytest.param(
            "msvq plan --backbone timm:convnext_ato",
            "did you mean 'timm:convnext_atto'",
            marks=pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed"),
        ),
        ("msvq bench --backbone torchvision:mobilenet_v9", "unknown backbone 'torchvision:mobilenet_v9'"),
        ("msvq pretrain --out runs/x --set backbone.widht=16", "unknown setting backbone 'widht'"),
        ("msvq pretrain --out runs/x --set train.epochs=none", "train.epochs"),
        ("msvq pretrain --out runs/x --method examples/gone.py:Method", "there is no file"),
        ("msvq evaluate runs/x --protocol knm", "unknown protocol 'knm'"),
        ("msvq evaluate runs/x --protocol probe --set k=3", "Extra inputs are not permitted"),
        ("msvq reproduce tabel4 --scale smoke", "unknown table or figure 'tabel4'"),
        ("torchrun --nproc-per-node 2 -m msvq pretrain --out runs/x --epocs 2", "No such option: --epocs"),
        ("make dmeo", "no target dmeo"),
        ("python benchmarks/gone.py", "there is no benchmarks/gone.py"),
        ("python benchmarks/methods.py --stepps 3", "has no --stepps"),
    ],
)
def test_a_mistake_in_a_page_is_noticed(line: str, why: str) -> None:
    (command,) = commands_in(f"Text.\n\n    {line}\n", "page")
    assert why in problem(command)
    (fenced,) = commands_in(f"Text.\n\n```bash\n{line}  # words\n```\n", "page")
    assert why in problem(fenced)


def test_a_mistake_in_a_sentence_is_noticed() -> None:
    right, wrong = mentioned_in("Try `msvq analyze --checkpoint best` or\n`msvq bench --widht 3`.", "page")
    assert problem(right, whole=False) == ""
    assert problem(wrong, whole=False).startswith("No such option: --widht")
    assert wrong.line == 2


def test_marks_are_read() -> None:
    text = """
<!-- needs: a GPU -->

    msvq bench

    msvq plan \\
        --steps 4    # words

Text.

    msvq bench --json
    msvq plan    # some forty minutes
    msvq doctor --data cifar10 --download
"""
    found = commands_in(text, "page")
    assert [(command.text, command.line, command.needs) for command in found] == [
        ("msvq bench", 4, "a GPU"),
        ("msvq plan --steps 4", 6, "a GPU"),
        ("msvq bench --json", 11, ""),
        ("msvq plan", 12, "some forty minutes"),
        ("msvq doctor --data cifar10 --download", 13, "a download"),
    ]
