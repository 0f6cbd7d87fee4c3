"""The templates of pages, and the styles and scripts that go into them."""

import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from msvq.core.console import printable
from msvq.report.records import is_number


@cache
def templates(package: str = "report") -> Environment:
    """The templates of a package of msvq, and those of the report."""
    loader = ChoiceLoader([PackageLoader("msvq", name) for name in dict.fromkeys((package, "report"))])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "printable": printable}
    return environment


def number(value: Any, pattern: str) -> str:
    """A number as its pattern says, a dash where there is none; what rounds to 0 has no sign."""
    told = pattern.format(value).replace("%", " %") if is_number(value) else "–"
    return told if re.search("[1-9]", told) else told.removeprefix("-")


def resource(name: str, package: str = "report") -> Markup:
    """A style or script of our own, which goes into a page as it is."""
    return Markup((resources.files(f"msvq.{package}") / name).read_text(encoding="utf-8"))
