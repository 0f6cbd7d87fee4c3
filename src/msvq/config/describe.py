"""The settings in words: what each may be, its default and what it is, by their types and the comments beside them."""

import ast
import inspect
import io
import textwrap
import tokenize
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from msvq.config.settings import Settings
from msvq.methods import METHODS
from msvq.methods.keywords import KEYWORDS

PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path", type(None): "null"}
LIMITS = {"ge": "from", "gt": "above", "le": "to", "lt": "below", "min_length": "at least"}


class Described(NamedTuple):
    """A setting: its key.path, and the rest in Markdown."""

    path: str
    values: str
    default: str
    words: str


def describe_settings() -> list[Described]:
    """All that a recipe or --set may say, but for the keywords of methods."""
    sections = [(name, field.default) for name, field in Settings.model_fields.items()]
    return [
        row
        for name, default in sections
        if isinstance(default, BaseModel)
        for row in describe_section(type(default), f"{name}.", default)
    ]


def describe_keywords() -> list[Described]:
    """The keywords of all methods, each once: `method.KEY`, with the defaults of the methods that have it."""
    keywords: dict[str, dict[str, tuple[Any, Any]]] = {}
    for name, kind in METHODS.items():
        for key, described in kind.hyperparameters().items():
            keywords.setdefault(key, {})[name] = described
    return [
        Described(
            f"method.{key}",
            " or ".join(dict.fromkeys(type_words(kind) for kind, _ in of.values())),
            _defaults(of),
            KEYWORDS.get(key, "of a method of one's own"),
        )
        for key, of in sorted(keywords.items())
    ]


def _defaults(of: Mapping[str, tuple[Any, Any]]) -> str:
    """The default of most methods, then the others with the names of theirs."""
    names: dict[str, list[str]] = {}
    for name, (_, value) in of.items():
        names.setdefault(code(value), []).append(name)
    most, *others = sorted(names, key=lambda value: -len(names[value]))
    return "; ".join([most, *(f"{value}: {', '.join(names[value])}" for value in others)])


def describe_section(kind: type[BaseModel], path: str, default: BaseModel | None = None) -> Iterator[Described]:
    """Each key of a section, with those of the sections inside it."""
    comments = comments_of(kind)
    for key, field in kind.model_fields.items():
        value = field.default if default is None else getattr(default, key)
        if isinstance(value, BaseModel):
            yield from describe_section(type(value), f"{path}{key}.", value)
        else:
            words = type_words(field.annotation, field.metadata)
            yield Described(f"{path}{key}", words, code(value), comments.get(key, "").replace("None:", "null:"))


def code(value: Any) -> str:
    """A value as it is written after `--set key=`."""
    if value is None or isinstance(value, (bool, int, str, Path)):
        return f"`{yaml.safe_dump(value if not isinstance(value, Path) else str(value)).splitlines()[0]}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, (tuple, list)):
        return f"`[{', '.join(code(item).strip('`') for item in value)}]`"
    return f"`{value}`"


def type_words(annotation: Any, limits: Iterable[Any] = ()) -> str:
    """A type in words, with its range."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], [*arguments[1:], *limits])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(argument) for argument in arguments)
    if origin is tuple:
        inner = [type_words(argument) for argument in arguments if argument is not ...]
        return f"list of {inner[0]}" if ... in arguments else f"[{', '.join(inner)}]"
    if origin is list:
        return f"list of {type_words(arguments[0])}"
    if origin in (dict, Mapping):
        return "block of keys"
    words = PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([words, *_range_words(limits)])


def _range_words(limits: Iterable[Any]) -> list[str]:
    found = []
    for limit in limits:
        inner = limit.metadata if isinstance(limit, FieldInfo) else [limit]
        found += [
            f"{word} {value:g}"
            for part in inner
            for name, word in LIMITS.items()
            if (value := getattr(part, name, None)) is not None and value != float("inf")
        ]
    return found


def comments_of(kind: type) -> dict[str, str]:
    """The words beside, or else above, each annotated value of a class."""
    source = textwrap.dedent(inspect.getsource(kind))
    found: dict[int, tuple[bool, str]] = {}  # line -> (stands alone, words)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.strip() == token.string
            found[token.start[0]] = alone, token.string.lstrip("# ").strip()
    (block,) = ast.parse(source).body
    assert isinstance(block, ast.ClassDef)
    words = {}
    for node in block.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            beside = found.get(node.end_lineno or node.lineno, (True, ""))
            words[node.target.id] = _above(found, node.lineno) if beside[0] else beside[1]
    return words


def _above(found: dict[int, tuple[bool, str]], line: int) -> str:
    lines: list[str] = []
    while found.get(line - 1, (False, ""))[0]:
        line -= 1
        lines.insert(0, found[line][1])
    return " ".join(lines)
