"""What a person may get wrong, as one sentence with the way out."""

from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

LONGEST = 80  # letters of what somebody gave that are repeated in an error
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = LONGEST


class BadInput(ValueError):
    """A mistake in what the user gave. The command line prints its sentence alone and exits with 2."""


def shorten(text: str) -> str:
    """The text, or its beginning if it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def tell(value: Any) -> str:
    """A value as Python writes it, short whatever it is: an error repeats what was given, and no more."""
    try:
        return shorten(_REPR.repr(value))
    except ValueError:  # an integer that Python refuses to write out
        return "a number of thousands of digits"


def first_line(error: BaseException, most: int | None = None) -> str:
    """The first line (`most` letters of it) of what another library's error says; its type where it says nothing."""
    return (next(iter(str(error).strip().splitlines()), "") or type(error).__name__)[:most]


def unknown(kind: str, name: str, known: Iterable[str], *, more: str = "") -> BadInput:
    """The error for a name that does not exist, with the nearest one that does."""
    names, name = sorted(known), shorten(name)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return BadInput(f"unknown {kind} {name!r}{hint} known: {', '.join(names)}{f', {more}' if more else ''}")
