"""Imports go one way (design): a short look at the syntax trees keeps it true."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "msvq"

# Each part may import from itself and from these.
FOUNDATION = {"display", "errors", "files", "launch", "memory", "own_code", "ranks", "run_files", "settings", "version"}
ALLOWED = {
    "data": set(),
    "model": set(),
    "methods": {"model"},
    "train": {"data", "model", "methods"},
    "evaluate": {"data", "model", "methods", "train"},
    "analyze": {"data", "model", "methods", "train", "evaluate"},
    "report": {"train"},
    "retrieve": {"data", "model", "train", "evaluate", "report", "run", "weights"},
    "export": {"data", "model", "methods", "train", "evaluate", "report", "run", "weights"},
    "reproduce": {path.stem for path in ROOT.iterdir() if path.stem not in ("cli", "__main__")},  # all but the commands
}


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            names.add(node.module)
    return names


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part: str) -> None:
    for path in (ROOT / part).rglob("*.py"):
        for name in imported(path):
            if name.startswith("msvq."):
                used = name.split(".")[1]
                assert used in ALLOWED[part] | FOUNDATION | {part}, f"{path.name} imports {name}"


def test_a_method_imports_only_the_model_and_its_own_base() -> None:
    for path in (ROOT / "methods").glob("*.py"):
        if path.name not in ("__init__.py", "overview.py"):
            inside = {name for name in imported(path) if name.startswith("msvq.methods")}
            assert inside <= {"msvq.methods.base"}, path.name


def test_the_trainer_knows_no_method_by_name() -> None:
    for path in (ROOT / "train").glob("*.py"):
        assert {n for n in imported(path) if n.startswith("msvq.methods")} <= {"msvq.methods.base"}, path.name


def test_the_report_reads_files_without_torch() -> None:
    seen: set[str] = set()
    waiting = [f"msvq.report.{path.stem}" for path in (ROOT / "report").glob("*.py")]
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split(".")[1:])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        for other in imported(file) - seen:
            assert other.split(".")[0] not in ("torch", "torchvision"), f"{name} imports {other}"
            seen.add(other)
            if other.startswith("msvq."):
                waiting.append(other)
    assert "msvq.files" in seen


def test_there_is_no_utils() -> None:
    assert not list(ROOT.rglob("utils.py"))
