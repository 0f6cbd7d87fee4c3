"""The base of every block of settings, and what is wrong with one in plain words."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from msvq.core.errors import BadInput, shorten, tell, unknown

TOO_LARGE = 2**63  # for any number: none of them is kept in more bits
MAX_VALUES = 100_000  # in a file of settings, each alias counted as what it stands for
MAX_DIGITS = 1000  # of a number: Python does not write much longer ones, but reads them in hexadecimal


class Section(BaseModel):
    """Settings that know their keys and types, and do not change once made. Each stands beside what it configures."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Any) -> Self:
        """The settings that plain values describe; the first that is wrong with them is told as one sentence."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise explain(error, known_keys(error, cls)) from None

    @field_validator("*")
    @classmethod
    def _within_reason(cls, value: Any) -> Any:
        return check_size(value)


def check_size(value: Any) -> Any:
    """Raise for a number that no computer counts to, at any depth of lists."""
    for inner in value if isinstance(value, list | tuple) else ():
        check_size(inner)
    if isinstance(value, int | float) and abs(value) >= TOO_LARGE:
        raise ValueError("should be less than 2**63")
    return value


class MayChange(Enum):
    """Put on a field (`Annotated[int, MayChange.UPKEEP]`): a run that goes on may have another value of it."""

    PLACE = "where it runs and where its data is"
    UPKEEP = "how it is run, saved and shown; what it learns stays the same"
    TRAINING = "what it learns or measures from there on"


class Change(NamedTuple):
    """A setting that two runs, or two states of one, have otherwise."""

    path: str  # section.key
    old: Any
    new: Any
    may_change: MayChange | None

    @property
    def section(self) -> str:
        """The first part of the path."""
        return self.path.partition(".")[0]


def diff(old: Section, new: Section, path: str = "") -> Iterator[Change]:
    """Where two settings of a kind differ, setting by setting, as JSON values."""
    for name, field in type(old).model_fields.items():
        one, other, place = getattr(old, name), getattr(new, name), f"{path}{name}"
        mark = next((mark for mark in field.metadata if isinstance(mark, MayChange)), None)
        if isinstance(one, Section) and isinstance(other, Section):
            yield from diff(one, other, f"{place}.")
        elif isinstance(one, Mapping) and isinstance(other, Mapping):  # a method's options
            yield from _diff_options(one, other, place, mark)
        elif one != other:
            was, now = (section.model_dump(mode="json", include={name})[name] for section in (old, new))
            yield Change(place, was, now, mark)


def _diff_options(
    old: Mapping[str, Any], new: Mapping[str, Any], path: str, mark: MayChange | None
) -> Iterator[Change]:
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key), new.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping | None):
            yield from _diff_options(one, other or {}, f"{path}.{key}", mark)
        elif one != other:
            yield Change(f"{path}.{key}", one, other, mark)


def known_keys(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """The keys beside the first thing that is wrong in settings of this kind; none where there is no section."""
    section: Any = kind
    for parent in error.errors()[0]["loc"][:-1]:
        section = getattr(section, "model_fields", {}).get(str(parent))
        section = section and section.annotation
    return list(getattr(section, "model_fields", {}))


def explain(error: ValidationError, known: Iterable[str], *, where: str = "") -> BadInput:
    """The first of the errors as one sentence; `known` are the keys beside an unknown one, `where` the path to it."""
    first = error.errors()[0]
    *parents, key = (shorten(str(part)) for part in first["loc"])
    path = ".".join([where, *parents] if where else parents)
    if first["type"] == "extra_forbidden":
        return unknown(f"setting {path}" if path else "setting", key, known)
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ").removeprefix("Tuple ")
    start = f"{path}{'.' if path else ''}{key}: {message.replace(' after validation', '')}"
    if first["type"] == "missing" and isinstance(first["input"], list | tuple):
        return BadInput(f"{path or key}: has too few values: {tell(first['input'])}")
    says_what_it_was = first["type"] in ("value_error", "too_short", "too_long") and ", not " in message
    return BadInput(start if says_what_it_was else f"{start}, not {tell(first['input'])}")


def load_yaml(text: str) -> Any:
    """What a text of YAML says, as plain values; a YAMLError too for aliases that stand for more than memory holds."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count_values(node, {}) > MAX_VALUES:
            raise yaml.YAMLError("too many values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for; one that is inside itself stands for more than any number."""
    if node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
        return MAX_VALUES + 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # until it is known
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for value in inner for part in (value if isinstance(value, tuple) else (value,)))
        known[id(node)] = 1 + sum(_count_values(part, known) for part in parts)
    return known[id(node)]


# --- --set key.path=value


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key.path=value`, the value as YAML reads it."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise BadInput(f"--set takes key.path=value, such as train.epochs=20, not {tell(text)}")
    try:
        return path.strip(), load_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput(f"--set {path.strip()}: {tell(value)} is not a value") from None


def to_assignments(overrides: Sequence[str] | Mapping[str, Any]) -> Sequence[str]:
    """What --set takes, of a dictionary too."""
    if not isinstance(overrides, Mapping):
        return overrides
    return [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]


def assign(values: dict[str, Any], path: str, value: Any, *, whole: bool = False) -> None:
    """Set the value at `key.path`; `whole`: a path of one key is a section, which is not set as a whole."""
    *parents, key = path.split(".")
    if whole and not parents:
        raise BadInput(f"--set takes key.path=value, such as train.epochs=20; {path!r} is a whole section")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise BadInput(f"--set {path}: {parent!r} has no keys below it")
    values[key] = value
