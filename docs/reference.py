"""The reference pages of the site, made from the code when the site is built."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

import msvq
from docs.reference_settings import methods_page, prose, recipes_page, settings_page, table
from docs.source_reading import assignment, definition, signature
from msvq.cli import app
from msvq.config.describe import PLAIN, code, comments_of, type_words

# Beside what `import msvq` gives: the parts that a method or a loop of one's own is made of.
PARTS = (
    "msvq.methods.base",
    "msvq.model.teacher",
    "msvq.model.queue",
    "msvq.model.relations",
    "msvq.model.losses",
    "msvq.model.heads",
    "msvq.model.resnet",
    "msvq.core.runtime",
    "msvq.data.augment",
)
TYPES = {"Callback": ("msvq.train.callbacks", ("Line", "Callback"))}  # names for types, and what they are made of
EXAMPLE = re.compile(r"\s*Examples?: (?P<commands>.*)\Z", re.DOTALL)


def commands_page() -> str:
    """Every command with its help, arguments and options."""
    commands = {str(one.name or one.callback.__name__): one.callback for one in app.registered_commands if one.callback}
    parts = [
        "# Commands\n\nWhat `msvq COMMAND --help` prints. `--debug`, on any command, shows the traceback of an error. "
        "Bad input is answered with one sentence and exit code 2. This page is made from the code.\n",
        table(
            ("command", "what it does"),
            ([f"[`msvq {name}`](#msvq-{name})", prose(_first_sentence(one))] for name, one in commands.items()),
        ),
    ]
    parts += [_command(name, function) for name, function in commands.items()]
    return "\n".join(parts)


def _first_sentence(function: Callable[..., Any]) -> str:
    return EXAMPLE.sub("", inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def _command(name: str, function: Callable[..., Any]) -> str:
    words = inspect.getdoc(function) or ""
    example = EXAMPLE.search(words)
    parts = [f"## msvq {name}", prose(EXAMPLE.sub("", words))]
    if example is not None:
        parts.append("\n".join(f"    {line.removeprefix('or: ').strip()}" for line in example["commands"].splitlines()))
    hints = get_type_hints(function, include_extras=True)
    rows = [_parameter(one, hints[one.name]) for one in inspect.signature(function).parameters.values()]
    if rows:
        parts.append(table(("option", "value", "default", "what it is"), rows))
    return "\n\n".join(parts) + "\n"


def _parameter(parameter: inspect.Parameter, hint: Any) -> list[str]:
    """A row: an option's names, its value in words, its default and its help."""
    kind, info = get_args(hint)[:2]
    help_text = info.help or ""
    told, _, default = help_text.removesuffix(")").partition(" (default: ")
    if not default:
        told = help_text
        default = "needed" if parameter.default is parameter.empty else code(parameter.default)
    value = type_words(kind).removesuffix(" or null")
    if isinstance(info, ArgumentInfo):
        return [f"`{info.metavar or parameter.name.upper()}`", value, default, prose(told)]
    written = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    names = ", ".join(written or [f"--{parameter.name.replace('_', '-')}"])
    if value == PLAIN[bool]:
        return [f"`{names}`", "-", "-", prose(told)]
    return [f"`{names}`", f"`{info.metavar}`" if info.metavar else value, default.replace("`null`", "-"), prose(told)]


def api_page() -> str:
    """What `import msvq` gives, and the parts for a loop or a method of one's own."""
    parts = [
        "# Python\n\nWhat `import msvq` gives, and below it the parts that methods are made of. Signatures and words "
        "are those of the code.\n",
        "## msvq\n",
    ]
    for name in msvq.__all__:
        thing = getattr(msvq, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            parts += _described(thing, f"msvq.{name}")
        elif name in TYPES:
            parts += _type(name)
    for module in map(importlib.import_module, PARTS):
        parts.append(f"## {module.__name__}\n\n{prose(inspect.getdoc(module) or '')}\n")
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", None) == module.__name__ and not name.startswith("_")
            if own and (inspect.isclass(thing) or inspect.isfunction(thing)):
                parts += _described(thing, name)
    return "\n".join(parts)


def _type(name: str) -> Iterator[str]:
    """Heading, definition and words of a name for a type."""
    place, names = TYPES[name]
    found = {one: assignment(importlib.import_module(place), one) for one in names}
    yield f"### msvq.{name}\n"
    yield _block("\n".join(code for code, _ in found.values()))
    yield "\n".join(f"- `{one}`: {prose(words)}" for one, (_, words) in found.items()) + "\n"


def _described(thing: Any, name: str) -> Iterator[str]:
    """Heading, signature and words of a function or class, and of a class's own members."""
    node = definition(thing)
    yield f"### {name}\n"
    if isinstance(node, ast.FunctionDef):
        yield _block(signature(node, node.name)) + f"\n{prose(inspect.getdoc(thing) or '')}\n"
        return
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    made = [signature(part, node.name) for part in functions if part.name == "__init__"]
    yield _block(made[0] if made else f"class {node.name}({', '.join(map(ast.unparse, node.bases))})")
    yield f"{prose(ast.get_docstring(node) or '')}\n"
    shared = [part for base in thing.__mro__[1:] if base.__module__ == "msvq.api" for part in definition(base).body]
    functions += [part for part in shared if isinstance(part, ast.FunctionDef)]
    members = [*_values(thing), *(_member(part) for part in functions if not part.name.startswith("_"))]
    yield "\n".join(members) + "\n"


def _values(kind: type) -> Iterator[str]:
    for key, words in comments_of(kind).items():
        if not key.startswith("_"):
            yield f"- `{key}`" + (f": {prose(words)}" if words else "")


def _member(node: ast.FunctionDef) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    attribute = decorators & {"property", "cached_property"}
    shown = node.name if attribute else " ".join(signature(node, node.name).split())
    shown = shown.replace("( ", "(").replace(",)", ")")
    words = prose(ast.get_docstring(node) or "").replace("\n", "\n    ")
    return f"- `{shown}`\n\n    {words}\n"


def _block(text: str) -> str:
    return f"```python\n{text}\n```\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/methods.md": methods_page,
    "reference/recipes.md": recipes_page,
    "reference/api.md": api_page,
}
