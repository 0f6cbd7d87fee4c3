"""Methods from outside the package: `path/to/file.py:ClassName`."""

from msvq.core.errors import BadInput, unknown
from msvq.core.user_code import run_file
from msvq.methods.base import METHODS, Method


def register_file(name: str) -> None:
    """Run a Python file that a person has typed, never one that a recipe or run names, and register its class."""
    module, class_name = run_file(name, "method")
    kinds = {key: value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Method)}
    known = [key for key, kind in kinds.items() if kind is not Method]
    if not known:
        raise BadInput(f"{module.__file__} has no method in it: a method is a subclass of msvq.methods.Method")
    if class_name not in known:
        raise unknown(f"method class in {module.__file__}", class_name, known)
    METHODS[name] = kinds[class_name]
