"""The base of every block of settings, and what is wrong with one in plain words."""

from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from msvq.errors import BadInput, shorten, tell, unknown

TOO_LARGE = 2**63  # for any number: none of them is kept in more bits
MAX_VALUES = 100_000  # in a file of settings, each alias counted as what it stands for
MAX_DIGITS = 1000  # of a number: Python does not write much longer ones, but reads them in hexadecimal


class Section(BaseModel):
    """Settings that know their keys and types, and do not change once made. Each stands beside what it configures."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

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
