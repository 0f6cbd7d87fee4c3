"""The command line: one thin function per command; the work is done elsewhere."""

import json
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from msvq.display import printable
from msvq.errors import BadInput
from msvq.version import __version__

UsageError: Any = typer.BadParameter.__base__  # its home differs between the versions of typer

app = typer.Typer(
    name="msvq",
    help="Learn an image encoder from unlabelled pictures, and see whether it worked.",
    epilog="Start with: msvq demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

# Options that several commands have.
Recipe = Annotated[
    str | None, typer.Option(help="Name of a recipe or a YAML file of settings. (default: the data set's own)")
]
Data = Annotated[
    str | None, typer.Option(help="What 'msvq pretrain --data' takes. (default: the recipe's, or patterns)")
]
Root = Annotated[Path | None, typer.Option(help="Where the named data set is.")]
MethodName = Annotated[
    str | None, typer.Option(help="Name of a method, or path/to/file.py:ClassName. (default: the recipe's)")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: key.path=value. May be given again.", metavar="KEY=VALUE"),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps ... (default: auto)")]
PrecisionName = Annotated[str | None, typer.Option(help="As for 'msvq pretrain'. (default: auto)")]


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Bad input is answered with one sentence and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        code = app([a for a in arguments if a != "--debug"], prog_name="msvq", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (BadInput, UsageError, OSError) as error:
        if debug:
            traceback.print_exc()
        sentence = error.format_message() if isinstance(error, UsageError) else str(error)
        if not sentence:  # `msvq` alone: the help has been shown
            sys.exit(2)
        if isinstance(error, OSError) and error.filename:
            sentence = f"{error.filename}: {error.strerror}; is the path right, and may you write there?"
        Console(stderr=True).print(
            f"msvq: {printable(sentence)}", style="red", soft_wrap=True, markup=False, highlight=False
        )
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        way_out = "; continue the run with --resume" if "pretrain" in arguments else ""
        Console(stderr=True).print(f"msvq: interrupted{way_out}")
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"msvq {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, on any command.")] = False,
) -> None:
    """Options of every command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory of the run.")] = Path("runs/demo"),
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.", min=0)] = None,
) -> None:
    """Train MSVQ on the embedded data set in a few minutes, and show what it learned."""
    from msvq.demo import demo as run_demo

    run_demo(out=out, seed=seed)


@app.command()
def doctor(
    data: Annotated[
        str, typer.Option(help="What 'msvq pretrain --data' takes: a folder, a list, an .npz, hf:NAME or a name.")
    ],
    data_root: Annotated[Path | None, typer.Option(help="Where the named data set is.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")] = False,
    settings: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all names, instead of text.")] = False,
) -> None:
    """Look at the data before training: unreadable pictures, copies, leaks into the test, sizes, classes.

    The exit code is 1 if something was found that will hurt. Example: msvq doctor --data ~/photos
    """
    from msvq import doctor as check
    from msvq.display import Display

    display = Display(Console(stderr=True))
    report, findings = check.examine_data(
        data, data_root=data_root, download=download, overrides=settings or [], display=display
    )
    if as_json:
        typer.echo(check.as_json(report, findings))
    else:
        check.show(report, findings, Console())
    raise typer.Exit(int(any(finding.severity == "hurts" for finding in findings)))


@app.command()
def pretrain(
    out: Annotated[Path, typer.Option(help="Directory of the run.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of pictures, a .txt or .csv list of files, an .npz or .npy of pictures, hf:NAME, or the "
            "name of a data set ('msvq datasets' lists them). (default: the recipe's, or patterns)"
        ),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Where the named data set is: its official files or archive, or train/<class>/ and test/<class>/."
        ),
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="Name of a method ('msvq methods' lists them), or path/to/file.py:ClassName. (default: the recipe's)"
        ),
    ] = None,
    recipe: Recipe = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data. (default: the recipe's)")] = None,
    settings: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness. (default: 0)")] = None,
    device: Device = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32, bf16 or fp16; auto is bf16 where native. (default: auto)")
    ] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile", help="Compile the networks first: a minute or two, then faster steps.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
) -> None:
    """Train an encoder.

    Examples: msvq pretrain --data ~/photos --out runs/photos
    or: msvq pretrain --data cifar10 --download --out runs/cifar10 --epochs 20
    """
    from msvq.pretraining import pretrain as run_pretrain

    if resume and overwrite:
        raise BadInput("--resume continues a run and --overwrite replaces it; give one of them")
    run = run_pretrain(
        out=out,
        data=data,
        data_root=data_root,
        download=download,
        method=method,
        recipe=recipe,
        epochs=epochs,
        overrides=settings or [],
        seed=seed,
        device=device,
        precision=precision,
        compile=compiled,
        resume=resume,
        overwrite=overwrite,
        made_by="msvq pretrain",
    )
    where = printable(f"run     {run.path}\nreport  {run.path / 'report.html'}")
    Console().print(where, soft_wrap=True, markup=False, highlight=False)


@app.command()
def plan(
    recipe: Recipe = None,
    data: Data = None,
    data_root: Root = None,
    method: MethodName = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data. (default: the recipe's)")] = None,
    settings: Overrides = None,
    device: Device = None,
    precision: PrecisionName = None,
    out: Annotated[Path | None, typer.Option(help="Where the run would be: its free space is looked up.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps to time, at least 3; fewer if they take minutes.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Tell what a run will take of time, memory and disk, and what to change if that is too much.

    A few steps are timed; nothing is downloaded, packed or trained. A data set that is not there is planned with
    made-up pictures of its size and number. Example: msvq plan --recipe cifar10
    """
    from msvq.display import Display
    from msvq.measure import plan as planning

    report = planning.plan(
        recipe=recipe,
        data=data,
        data_root=data_root,
        method=method,
        epochs=epochs,
        overrides=settings or [],
        device=device,
        precision=precision,
        out=out,
        steps=steps,
        display=Display(Console(stderr=True)),
    )
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        planning.show(report, Console())


@app.command()
def bench(
    recipe: Recipe = None,
    data: Data = None,
    data_root: Root = None,
    method: MethodName = None,
    settings: Overrides = None,
    device: Device = None,
    precision: PrecisionName = None,
    steps: Annotated[int, typer.Option(help="Training steps to time, at least 3.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time a training step on this machine, part by part, and compare it with what the networks alone need.

    Nothing is downloaded or left behind. Example: msvq bench --recipe cifar10 --set backbone.width=16
    """
    from msvq.display import Display
    from msvq.measure import bench as timing

    report = timing.bench(
        recipe=recipe,
        data=data,
        data_root=data_root,
        method=method,
        overrides=settings or [],
        device=device,
        precision=precision,
        steps=steps,
        display=Display(Console(stderr=True)),
    )
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        timing.show(report, Console())


@app.command()
def datasets(
    data_root: Annotated[Path | None, typer.Option(help="Look here instead of the folder for downloads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the known data sets, where they are and whether they are complete; and what has been packed.

    Example: msvq datasets --data-root ~/data
    """
    from msvq.catalogue import show_catalogue

    show_catalogue(data_root, as_json=as_json, console=Console())


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
