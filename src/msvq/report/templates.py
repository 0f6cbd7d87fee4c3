"""The templates of pages, and the styles and scripts that go into them."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from msvq.core.console import counted, duration, printable
from msvq.evaluate.results import percent, percent_error
from msvq.report.records import is_number


@cache
def templates(package: str = "report") -> Environment:
    """The templates of a package of msvq, and those of the report."""
    loader = ChoiceLoader([PackageLoader("msvq", name) for name in dict.fromkeys((package, "report"))])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": number,
        "printable": printable,
        "measured_in": measured_in,
        "duration": duration,
        "percent": told_percent,
        "counted": counted,
    }
    return environment


def number(value: Any, pattern: str) -> str:
    """A number as its pattern says, a dash where there is none; what rounds to 0 has no sign."""
    told = pattern.format(value).replace("%", " %") if is_number(value) else "–"
    return told if re.search("[1-9]", told) else told.removeprefix("-")


def told_percent(value: Any, error: float | None = None, *, num: int | None = None) -> str:
    """An accuracy, with its error or that of `num` test pictures; a dash where there is none."""
    return percent(value, percent_error(value, num) if error is None else error) if is_number(value) else "–"


def measured_in(columns: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Those of the columns, by their keys, in which at least one of the rows has a number."""
    known = {key for row in rows for key, value in row.items() if is_number(value)}
    return {key: column for key, column in columns.items() if key in known}


def resource(name: str, package: str = "report") -> Markup:
    """A style or script of our own, which goes into a page as it is."""
    return Markup((resources.files(f"msvq.{package}") / name).read_text(encoding="utf-8"))
