"""Commands that do something with a folder of pictures: copies, odd ones, a choice, groups, wrong labels, classes."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Option

from msvq.cli import options as opt
from msvq.cli.search import Page, over_inputs, show_table, tell_skipped
from msvq.core.console import Display

if TYPE_CHECKING:
    from msvq.search.findings import Findings
    from msvq.search.inputs import Inputs

Into = Annotated[
    Path | None, Option(help="A new folder to fill with a folder of links (or copies) per group.", metavar="DIR")
]


def _outputs(
    top: Annotated[int, Option(help="How many rows to print; --out has all.", min=1)] = 20,
    out: Annotated[Path | None, Option(help="Write all rows to this .csv or .json file.")] = None,
    html: Page = None,
    as_json: opt.AsJson = False,
) -> None:
    """What becomes of the findings, by the options that all of these commands have."""


def over_pictures(command: Callable[..., "Findings"]) -> Callable[..., None]:
    """Register a command: given the inputs, where to write, and options of its own, it gives back what to print.

    The options of `_outputs` stand behind all others.
    """
    outputs = inspect.signature(_outputs).parameters
    own = [one for name, one in inspect.signature(command).parameters.items() if name != "outputs"]

    def work(*, top: int, as_json: bool, **given: Any) -> None:
        found = command(display=Display(Console(stderr=True)), **given)
        written = [given.get(name) for name in ("out", "html", "into", "onnx")]
        if given.get("save"):
            from msvq.search.classifier import classifier_path

            written.append(classifier_path(given["save"]))
        show_findings(found, top, written, as_json=as_json)

    work.__name__, work.__doc__, work.__module__ = command.__name__, command.__doc__, command.__module__
    work.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    )
    return over_inputs(work, last=list(outputs.values()))


def show_findings(found: "Findings", top: int, files: list[Path | None], *, as_json: bool) -> None:
    """Print what was found, a table of its first rows, and what was written."""
    if as_json:
        record = {"about": found.sentence, "notes": found.notes, "skipped": len(found.skipped)}
        typer.echo(json.dumps({**record, "rows": found.records()}, indent=1))
        return
    say = Display(Console()).note
    say(found.sentence)
    columns, rows = found.overview()
    if rows:
        show_table(columns, [tuple(map(_shown, row)) for row in rows[:top]])
    if (more := len(rows) - top) > 0:
        say(f"and {more:,} more; --top shows more, --out FILE.csv writes all")
    for note in found.notes:
        say(f"note: {note}")
    for path in filter(None, files):
        say(f"written  {path}")
    if found.skipped:
        say(tell_skipped(found.skipped))


def _shown(value: str | int | float | None) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)


@over_pictures
def duplicates(
    inputs: "Inputs",
    threshold: Annotated[
        float | None,
        Option(help="List pairs too that are merely alike: from this cosine of their features on, such as 0.98."),
    ] = None,
    into: Into = None,
    **outputs: Any,
) -> "Findings":
    """Find pictures that are there more than once.

    Pictures that are near by their features, by their thumbnails however turned, or by parts of these, are compared
    pixel by pixel: equal files, and pictures that were resized, saved again, turned, mirrored or cropped. Nothing is
    deleted. 'msvq doctor' needs no encoder, and finds those of them that are neither turned nor cropped.
    Example: msvq duplicates runs/photos --data ~/photos --out duplicates.csv --html duplicates.html
    """
    from msvq.search.duplicates import find_duplicates

    return find_duplicates(inputs, threshold=threshold, into=into, **outputs)


@over_pictures
def outliers(
    inputs: "Inputs",
    num: Annotated[int | None, Option(help="How many pictures to list. (default: 50)", min=1)] = None,
    **outputs: Any,
) -> "Findings":
    """Find the pictures that are least like all others, and why.

    A picture may be far from everything by its features, nearly empty, or of another size, shape or colour.
    Example: msvq outliers runs/photos --data ~/photos --html odd.html
    """
    from msvq.search.outliers import find_outliers

    return find_outliers(inputs, num=num, **outputs)


@over_pictures
def select(
    inputs: "Inputs",
    num: Annotated[int, Option(help="How many pictures to choose.", min=1, show_default=False)],
    near: Annotated[
        list[str] | None, Option(help="Choose among pictures like this one. May be given again.", metavar="FILE")
    ] = None,
    avoid: Annotated[
        list[str] | None,
        Option(help="A picture that counts as chosen already. May be given again.", metavar="FILE"),
    ] = None,
    **outputs: Any,
) -> "Findings":
    """Choose a few pictures that cover the whole, to label first.

    Each is the one that is least like those chosen before it, so that every picture is like one of them.
    Example: msvq select runs/photos --data ~/photos --num 200 --out to-label.csv
    """
    from msvq.search.selection import select_pictures

    return select_pictures(inputs, num=num, near=near or (), avoid=avoid or (), **outputs)


@over_pictures
def cluster(
    inputs: "Inputs",
    num: Annotated[int | None, Option(help="How many groups. (default: as many as fit the pictures best)")] = None,
    into: Into = None,
    **outputs: Any,
) -> "Findings":
    """Sort pictures into groups that are alike.

    Each group has its most typical pictures first, how tight it is and, where there are labels, what is in it.
    Example: msvq cluster runs/photos --data ~/photos --num 20 --html groups.html --into sorted
    """
    from msvq.search.clusters import cluster_pictures

    return cluster_pictures(inputs, num=num, into=into, **outputs)


@over_pictures
def mislabelled(inputs: "Inputs", **outputs: Any) -> "Findings":
    """Find labels that the pictures contradict.

    A label is listed if both the most similar pictures and a classifier that has not seen it prefer another one.
    Example: msvq mislabelled runs/photos --data ~/photos --html labels.html
    """
    from msvq.search.mislabelled import find_mislabelled

    return find_mislabelled(inputs, **outputs)


@over_pictures
def classify(
    inputs: "Inputs",
    examples: Annotated[
        str | None,
        Option(help="Pictures of each class: a folder with a subfolder per class, or a .csv of file and label."),
    ] = None,
    use: Annotated[str | None, Option(help="A classifier that was saved, instead of examples.", metavar="NAME")] = None,
    save: Annotated[str | None, Option(help="Keep the classifier under this name.", metavar="NAME")] = None,
    onnx: Annotated[
        Path | None, Option(help="Write the encoder with the classifier as one .onnx file.", metavar="FILE")
    ] = None,
    **outputs: Any,
) -> "Findings":
    """Classify pictures from a few examples per class.

    Two examples of each class do, ten are better. Its accuracy, each example judged without itself, is said first.
    Example: msvq classify runs/photos --examples labelled --data ~/photos --save cat-or-dog --html classes.html
    """
    from msvq.export.classifier import check_onnx, export_classifier
    from msvq.search.classify import classify_pictures

    check_onnx(onnx)
    found = classify_pictures(inputs, examples=examples, use=use, save=save, **outputs)
    if onnx is not None:
        made = found.classifier
        export_classifier(onnx, found.encoder, made.weight, made.bias, made.class_names)
    return found
