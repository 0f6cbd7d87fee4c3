"""What the source says about itself: signatures as they are written, and the comments beside values."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

LINE = 100  # longer signatures have an argument a line


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """`name(arguments) -> result` as the source has it, without `self`."""
    words = [word for word in _arguments(node.args) if word not in ("self", "cls")]
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and name == node.name else ""
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= LINE:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inner}){result}"


def _arguments(given: ast.arguments) -> Iterator[str]:
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    yield from (_argument(place, default) for place, default in zip(places, defaults, strict=True))
    if given.vararg is not None:
        yield f"*{_argument(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    yield from (_argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True))
    if given.kwarg is not None:
        yield f"**{_argument(given.kwarg, None)}"


def _argument(given: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(given.annotation)}" if given.annotation is not None else ""
    equals = " = " if kind else "="
    return f"{given.arg}{kind}" + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def assignment(module: ModuleType, name: str) -> tuple[str, str]:
    """The line that sets a name of a module, and the words beside it."""
    line = next(line for line in inspect.getsource(module).splitlines() if line.startswith(f"{name} = "))
    code, _, words = line.partition("  # ")
    return code, words


def definition(thing: Any) -> ast.FunctionDef | ast.ClassDef:
    """The syntax tree of a function or class."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    return node
