"""The reference of settings, methods and recipes, made from their types, defaults and comments."""

import inspect
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import get_args

from pydantic import BaseModel

from msvq.config.describe import code, describe_section, type_words
from msvq.config.resolve import recipe_names
from msvq.config.settings import OF_OPTIMISER, Settings, TrainSettings
from msvq.evaluate.protocols import PROTOCOLS
from msvq.methods import METHODS
from msvq.methods.keywords import KEYWORDS
from msvq.methods.overview import overview

SPECIFICATION = re.compile(r" \([^()]*methods\.md[^()]*\)")  # chapters of a text that is no part of the site


def prose(text: str) -> str:
    """Words of the source as Markdown: what looks like a tag is none; what stands in backticks stays as it is."""
    parts = SPECIFICATION.sub("", text).split("`")
    parts[::2] = [part.replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def section_rows(kind: type[BaseModel], path: str, default: BaseModel | None = None) -> list[list[str]]:
    """A row for each key: name, type, default, words."""
    return [
        [f"`{row.path}`", row.values, row.default, prose(row.words)] for row in describe_section(kind, path, default)
    ]


HEADER = ("key", "value", "default", "what it is")


def settings_page() -> str:
    """Every key of a run's settings, and of the evaluation protocols."""
    parts = [
        "# Settings\n\nA run's settings come from a [recipe](recipes.md), then the command's options, then "
        "`--set key=value`, in this order. "
        "`config.yaml` in a run directory has all of them, and `--recipe runs/x/config.yaml` repeats the run. The "
        "defaults below are those without a recipe; a recipe may say otherwise. An unknown key or a value out of range "
        "is refused in one sentence. This page is made from the code.\n"
    ]
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            parts.append(_section(f"## {name}", type(field.default), f"{name}.", field.default))
        if name == "train":
            parts.append(f"What an optimiser takes where nothing else is said:\n\n{_optimisers()}")
    parts.append(
        "## method\n\n`method.name` chooses the method, as `--method` does; the other keys are the keywords of its "
        "constructor: see [methods and their keywords](methods.md). A recipe may have values for each method in "
        "`method_defaults`; a run keeps those of its own.\n"
    )
    parts.append("## Protocols\n\nOf `msvq evaluate --protocol NAME --set key=value`; these stand in no recipe.\n")
    for name, protocol in PROTOCOLS.items():
        parts.append(_section(f"### {name}", protocol.settings, "", None))
    return "\n".join(parts)


def _optimisers() -> str:
    names = get_args(TrainSettings.model_fields["optimiser"].annotation)
    rows = [TrainSettings.parse({"optimiser": name}).model_dump(include=OF_OPTIMISER) for name in names]
    values = ([code(name), *map(code, row.values())] for name, row in zip(names, rows, strict=True))
    return table(["`train.optimiser`", *(f"`train.{key}`" for key in rows[0])], values)


def _section(heading: str, kind: type[BaseModel], path: str, default: BaseModel | None) -> str:
    about = [prose(inspect.getdoc(kind) or "")]
    inner = {type(value): None for value in dict(default or kind()).values() if isinstance(value, BaseModel)}
    about += [prose(inspect.getdoc(part) or "") for part in inner]
    return f"{heading}\n\n" + "\n\n".join(about) + "\n\n" + table(HEADER, section_rows(kind, path, default))


def methods_page() -> str:
    """Every method with its keywords."""
    rows = overview()
    parts = [
        "# Methods and their keywords\n\nWhat `msvq methods` prints, and the keys of each method's `method:` block: "
        "`--set method.KEY=VALUE`. The losses and the choices behind them are on the page [methods](../methods.md). "
        "This page is made from the code.\n",
        table(
            list(rows[0]), ([f"[`{row['name']}`](#{row['name']})", *map(str, list(row.values())[1:])] for row in rows)
        ),
    ]
    for name, kind in METHODS.items():
        keywords = [
            [f"`method.{key}`", type_words(annotation), code(value), KEYWORDS.get(key, "")]
            for key, (annotation, value) in kind.hyperparameters().items()
        ]
        about = f"{kind.title}, {kind.paper}. {prose(inspect.getdoc(kind) or '')}"
        parts.append(f"## {name}\n\n{about}\n\n" + table(HEADER, keywords))
    return "\n".join(parts)


def recipes_page() -> str:
    """Every recipe as it is."""
    parts = [
        "# Recipes\n\nA recipe is a file of [settings](settings.md). `--recipe NAME` takes one of these, `--recipe "
        "FILE.yaml` your own; without it, a data set's own is taken, and `folder` for a path. This page is made from "
        "the files.\n"
    ]
    for name in recipe_names():
        text = (files("msvq.config.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
        parts.append(f"## {name}\n\n```yaml\n{text.rstrip()}\n```\n")
    return "\n".join(parts)
