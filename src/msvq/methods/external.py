"""Methods from outside the package: `path/to/file.py:ClassName`."""

import importlib.util
import sys
import traceback
from pathlib import Path

from msvq.errors import BadInput, unknown
from msvq.methods.base import METHODS, Method


def is_external(name: str) -> bool:
    """Whether a method's name is a class in a file rather than one of METHODS."""
    return ".py:" in name


def register_file(name: str) -> None:
    """Run a Python file and register its class under `file.py:ClassName`.

    This executes the file, so call it only with what a person typed, never with what a recipe or a run contains.
    """
    file, _, class_name = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"there is no file {file!r} for --method {name}")
    spec = importlib.util.spec_from_file_location(f"msvq_method_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(f"{file} cannot be loaded: {error!r} in line {place.lineno}") from error
    kinds = {key: value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Method)}
    if class_name not in kinds:
        raise unknown(f"method class in {file}", class_name, [key for key in kinds if key != "Method"])
    METHODS[name] = kinds[class_name]
