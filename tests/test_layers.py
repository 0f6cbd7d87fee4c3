"""Imports go one way (design): a short look at the syntax trees keeps it true."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "msvq"

# Each part may import from itself and from the parts before it; parts of one line do not know each other.
ORDER = [
    ["core"],
    ["data", "model"],
    ["methods"],
    ["evaluate"],
    ["config"],
    ["runs"],
    ["train"],
    ["report"],  # search and export write pages and results too
    ["search", "export", "preflight"],
    ["api"],
    ["reproduce"],
    ["cli"],
]
HEIGHT = {part: height for height, parts in enumerate(ORDER) for part in parts}
LAZY = {"api", "cli"}  # may import within functions, so that `msvq --help` need not wait for PyTorch
DOORS = {"msvq", "msvq.__main__"}  # above everything


def modules() -> dict[str, Path]:
    """Every module of the package, by its full name."""
    named = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def violations() -> list[str]:
    """Imports that go up or sideways, modules without a layer, and imports within functions where none may be."""
    found = []
    for name, path in modules().items():
        part = name.split(".")[1] if "." in name else name
        if name in DOORS:
            continue
        if part not in HEIGHT:
            found.append(f"{name} is in no layer")
        tree = ast.parse(path.read_text())
        inner = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("msvq."):
                continue
            used = str(node.module).split(".")[1]
            if node in inner and part not in LAZY:
                found.append(f"{name} imports {node.module} within a function")
            if used != part and not HEIGHT.get(used, 99) < HEIGHT.get(part, -1):
                found.append(f"{name} imports {node.module}")
    return sorted(set(found))


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


def test_imports_go_one_way() -> None:
    assert violations() == []


def test_a_method_imports_only_the_model_and_its_own_base() -> None:
    for path in (ROOT / "methods").glob("*.py"):
        if path.name not in ("__init__.py", "overview.py"):
            inside = {name for name in imported(path) if name.startswith("msvq.methods")}
            assert inside <= {"msvq.methods.base"}, path.name


def test_the_trainer_knows_no_method_by_name() -> None:
    used = {ROOT / "train" / f"{n.split('.')[2]}.py" for n in imported(ROOT / "train/trainer.py") if ".train." in n}
    for path in used | {ROOT / "train/trainer.py"}:
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
    assert "msvq.core.files" in seen


def test_there_is_no_utils() -> None:
    assert not list(ROOT.rglob("utils.py"))
