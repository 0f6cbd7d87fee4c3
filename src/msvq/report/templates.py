"""How pages are made from templates: names are escaped, and a page of any package may stand in the report's frame."""

from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup


def templates(package: str = "report") -> Environment:
    """The templates of a package of msvq, and those of the report."""
    loader = ChoiceLoader([PackageLoader("msvq", name) for name in dict.fromkeys((package, "report"))])
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def resource(name: str, package: str = "report") -> Markup:
    """A style or script of our own, which goes into a page as it is."""
    return Markup((resources.files(f"msvq.{package}") / name).read_text(encoding="utf-8"))
