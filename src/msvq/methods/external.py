"""Methods from outside the package: `path/to/file.py:ClassName`."""

from msvq.errors import unknown
from msvq.methods.base import METHODS, Method
from msvq.own_code import is_code, run_file


def is_external(name: str) -> bool:
    """Whether a method's name is a class in a file rather than one of METHODS."""
    return is_code(name)


def register_file(name: str) -> None:
    """Run a Python file and register its class under `file.py:ClassName`.

    This executes the file, so call it only with what a person typed, never with what a recipe or a run contains.
    """
    module, class_name = run_file(name, "method")
    kinds = {key: value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Method)}
    if class_name not in kinds:
        raise unknown(f"method class in {module.__file__}", class_name, [key for key in kinds if key != "Method"])
    METHODS[name] = kinds[class_name]
