"""Commands that look things up: the data before training, the known data sets, encoders and methods."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from typer import Argument, Option

from msvq.cli import options as opt
from msvq.cli.options import app
from msvq.core.console import Display, counted
from msvq.core.errors import BadInput, unknown
from msvq.evaluate.results import percent


@app.command()
def doctor(
    pictures: opt.Pictures = None,
    data: Annotated[
        str | None, Option(help="What 'msvq pretrain --data' takes: a folder, a list, an .npz, hf:NAME or a name.")
    ] = None,
    data_root: opt.Root = None,
    download: opt.Download = False,
    settings: opt.Overrides = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with all names, instead of text.")] = False,
) -> None:
    """Look at the data before training: unreadable pictures, copies, leaks into the test, sizes, classes.

    The exit code is 1 if something was found that will hurt. Example: msvq doctor ~/photos
    """
    from msvq.config.resolve import Flags
    from msvq.preflight.doctor import examine_data, show

    source = opt.one_source(pictures, data)
    if source is None:
        raise BadInput("name the pictures to look at: msvq doctor FOLDER")
    flags = Flags(data=source, data_root=data_root, overrides=settings or [])
    report = examine_data(flags, download=download, display=Display(Console(stderr=True)))
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        show(report, Console())
    raise typer.Exit(int(not report["ok"]))


@app.command()
def datasets(
    data_root: Annotated[Path | None, Option(help="Look here instead of the folder for downloads.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """List the known data sets, where they are and whether they are complete; and what has been packed.

    Example: msvq datasets --data-root ~/data
    """
    from msvq.preflight.datasets import show_catalogue

    show_catalogue(data_root, as_json=as_json, console=Console())


@app.command()
def settings(
    key: Annotated[str | None, Argument(help="Show those whose name has this in it, such as train or lr.")] = None,
) -> None:
    """List the settings that --set and recipes take: what each may be, its default, what it is.

    Behind them stand the keywords of methods, method.KEY. Example: msvq settings projector
    """
    from msvq.config.describe import describe_keywords, describe_settings

    rows = [*describe_settings(), *describe_keywords()]
    shown = [row for row in rows if key is None or key in row.path]
    if not shown:
        raise unknown("setting", str(key), [row.path for row in rows])
    table = Table(Column("setting", no_wrap=True), "value", "default", "what it is", box=box.SIMPLE, pad_edge=False)
    for row in shown:
        table.add_row(*(escape(cell.replace("`", "")) for cell in row))
    Console().print(table)


@app.command()
def pretrained(as_json: opt.AsJson = False) -> None:
    """List the encoders that come with the package, to be named wherever a command takes an ENCODER.

    Accuracies are those of the frozen protocols on the data that they were trained on. Example: msvq pretrained
    """
    from msvq.model.pretrained import list_pretrained

    found = list_pretrained()
    if as_json:
        typer.echo(json.dumps([entry.model_dump(mode="json", exclude={"encoder"}) for entry in found], indent=1))
        return
    for entry in found:
        scores = {"kNN": entry.knn, "linear": entry.linear, "by chance": entry.chance}
        told = ", ".join(f"{name} {percent(score)}" for name, score in scores.items() if score is not None)
        where = f"hf:{entry.hub}, fetched when it is used" if entry.hub else "in the package"
        say = Display(Console()).note
        trained = f"{entry.method} on {entry.data}, {counted(entry.epochs, 'epoch')}"
        say(f"{entry.name}: {trained}{f'; {told}' if told else ''}")
        say(f"  licence {entry.licence}; {where}; sha256 {entry.sha256[:16]}")


@app.command()
def methods() -> None:
    """List the methods: paper, views, teachers, queues, and student passes in a step."""
    from msvq.methods.overview import overview

    rows = overview()
    columns = (Column(name, no_wrap=name in ("name", "paper", "views")) for name in rows[0])
    table = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
