"""Code of a person's own: `path/to/file.py:name`, run only when that person has typed it."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from msvq.core.errors import BadInput


def is_user_code(name: str) -> bool:
    """Whether a name means something in a Python file rather than in this package or another."""
    return ".py:" in name


def run_file(name: str, flag: str) -> tuple[ModuleType, str]:
    """Run the file of `file.py:name`; the module, and the name to look for in it. `flag`: what it was given to.

    This executes the file, so call it only with what a person typed, never with what a recipe or a run contains.
    """
    file, _, wanted = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"there is no file {file!r} for --{flag} {name}")
    spec = importlib.util.spec_from_file_location(f"msvq_{flag}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end itself; that ends nothing here
        raise BadInput(f"{file} cannot be loaded: {failure(error, path)}") from error
    return module, wanted


def failure(error: BaseException, path: Path) -> str:
    """An error of the code in a file, and the line of that file which led to it, if one did."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    told = repr(error)
    if not lines and isinstance(error, SyntaxError):  # it never ran
        lines, told = [error.lineno], f"{type(error).__name__}: {error.msg}"
    return f"{told} in line {lines[-1]}" if lines and lines[-1] is not None else told


def must_be_named_explicitly(kind: str, name: str) -> BadInput:
    """The refusal to run what only a recipe or a run names."""
    return BadInput(f"the {kind} is code in a file; to allow that, name it yourself: --{kind} {name}")
