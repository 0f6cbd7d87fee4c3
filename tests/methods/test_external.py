"""Methods from a file: only when asked for by name on the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import msvq
from msvq.cli import main
from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.methods import METHODS

EXAMPLE = Path(__file__).parents[2] / "examples" / "your_own_method.py"
NAME = f"{EXAMPLE}:BarlowTwins"
HEAD = "from msvq.methods.base import Method\nclass Mine(Method):\n"
SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.hidden_dim=16"]


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 50


def test_it_trains_from_the_command_line_and_resumes_only_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    sets = [word for setting in SMALL for word in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(out), "--method", NAME, "--epochs", "2", *sets])
    assert ended.value.code == 0
    losses = [line["loss"] for line in msvq.load(out).metrics() if line["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    assert any("agreement" in line for line in msvq.load(out).metrics())

    METHODS.pop(NAME)  # as in a new process
    run = msvq.load(out)  # opening it runs nothing
    assert NAME not in METHODS
    assert run.config.method_name == NAME
    assert run.encoder is not None
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(out), "--resume"])
    assert ended.value.code == 2
    assert "name it yourself: --method" in capsys.readouterr().err
    assert NAME not in METHODS
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(out), "--resume", "--method", NAME])
    assert ended.value.code == 0


def test_a_recipe_cannot_ask_for_code(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"method: {{name: '{tmp_path}/evil.py:Evil'}}\n")
    with pytest.raises(BadInput, match="name it yourself"):
        resolve(recipe=recipe)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        (None, "Missing", "there is no file"),
        ("x = 1", "Anything", "has no method in it: a method is a subclass of msvq.methods.Method"),
        (HEAD + "    pass", "Anything", "unknown method class in .*known: Mine"),
        ("def broken(:", "Anything", "cannot be loaded: SyntaxError"),
        ("import not_a_module", "Anything", "cannot be loaded: ModuleNotFoundError"),
        (HEAD + "    def __init__(self, backbone, *, k=1): ...", "Mine", "the keyword 'k' needs a type"),
        (
            HEAD + "    def __init__(self, backbone, *, k: int): ...",
            "Mine",
            "the keyword 'k' needs a type and a default",
        ),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str | None, name: str, sentence: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=sentence):
        resolve(recipe="demo", method=f"{path}:{name}")


def test_its_hyperparameters_are_checked() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'redundancy'\?"):
        resolve(recipe="demo", method=NAME, overrides=["method.redundanci=1"])
    with pytest.raises(BadInput, match=r"method\.redundancy: should be less than or equal to 1"):
        resolve(recipe="demo", method=NAME, overrides=["method.redundancy=3"])
