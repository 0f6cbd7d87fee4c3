"""The base of every block of settings, and what is wrong with one in plain words."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from msvq.core.errors import BadInput, unknown


class Section(BaseModel):
    """Settings that know their keys and types, and do not change once made. Each stands beside what it configures."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


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
    *parents, key = (str(part) for part in first["loc"])
    path = ".".join([where, *parents] if where else parents)
    if first["type"] == "extra_forbidden":
        return unknown(f"setting {path}" if path else "setting", key, known)
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ").removeprefix("Tuple ")
    start = f"{path}{'.' if path else ''}{key}: {message.replace(' after validation', '')}"
    if first["type"] == "missing" and isinstance(first["input"], list | tuple):
        return BadInput(f"{path or key}: has too few values: {first['input']!r}")
    says_what_it_was = first["type"] in ("value_error", "too_short", "too_long") and ", not " in message
    return BadInput(start if says_what_it_was else f"{start}, not {first['input']!r}")
