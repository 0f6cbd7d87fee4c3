"""Commands that compare methods: the paper's tables and figures again, or one's own pictures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from msvq.cli import options as opt
from msvq.cli.options import app, resumable
from msvq.core.errors import BadInput


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        Argument(
            help="A table or figure: its name, or the paper's number such as table4 or figure5. Without it: the list.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str,
        Option(
            help="paper: the paper's own settings; narrow: these, but a narrow network; mini: CIFAR-10 in hours; "
            "smoke: minutes, a test."
        ),
    ] = "mini",
    datasets: Annotated[
        str | None, Option(help="Only these, as a,b. (default: the paper's, as far as the scale has them)")
    ] = None,
    methods: Annotated[
        str | None,
        Option(help="Only these rows, as a,b; also msvq-x3, msvq-x5, msvq-warm, msf, mnn ... (default: the paper's)"),
    ] = None,
    seeds: Annotated[int | None, Option(help="Runs of each row. (default: mini 3, else 1)")] = None,
    epochs: Annotated[
        int | None, Option(help="Another length than the scale's, for every run alike; a sweep of its own.")
    ] = None,
    data_root: Annotated[Path | None, Option(help="Where the named data sets are.")] = None,
    download: Annotated[bool, Option("--download", help="Fetch the data sets that are not there.")] = False,
    out: Annotated[
        Path | None, Option(help="Directory of the sweep; tables share its runs. (default: runs/reproduce-SCALE)")
    ] = None,
    known: Annotated[
        Path | None, Option(help="Cells measured elsewhere, which are not trained again: the results of another sweep.")
    ] = None,
    jobs: Annotated[int, Option(help="Runs at once, each in a process with its share of the processors.")] = 1,
    compiled: Annotated[
        bool, Option("--compile", help="Compile the networks: some minutes once, then faster steps.")
    ] = False,
    linear: Annotated[
        bool, Option("--linear", help="The 100-epoch protocol also at a small scale, on one seed of each row.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the cells and the hours; train nothing.")] = False,
) -> None:
    """Make a table or figure of the paper again, and compare it with what was published.

    Each cell is an ordinary run: finished ones are skipped, interrupted ones go on, so the same command continues a
    sweep. The exit code is 1 if a cell failed. Example: msvq reproduce linear --scale smoke
    """
    from msvq.reproduce import reproduce as command

    console = Console()
    if name is None:
        command.show_list(console)
        return
    sweep = command.plan_sweep(
        name,
        scale=scale,
        datasets=_names(datasets),
        methods=_names(methods),
        seeds=seeds,
        epochs=epochs,
        out=out,
        linear=linear,
        known=known,
    )
    if dry_run:
        command.dry_run(sweep, data_root=data_root, jobs=jobs, console=console)
        return
    with resumable():
        outcome = command.reproduce(
            sweep, data_root=data_root, download=download, jobs=jobs, compiled=compiled, console=console
        )
    command.show(outcome, console)
    raise typer.Exit(int(bool(outcome.failed)))


@app.command()
def compare(
    methods: Annotated[
        str, Option(help="Methods to compare, as a,b ('msvq methods' lists them), or path/to/file.py:ClassName.")
    ],
    pictures: opt.Pictures = None,
    data: Annotated[str | None, Option(help="What 'msvq pretrain --data' takes.")] = None,
    data_root: opt.Root = None,
    download: opt.Download = False,
    seeds: Annotated[int, Option(help="Runs of each method.")] = 3,
    budget: Annotated[
        str | None,
        Option(
            help="The time that each run has, such as 90s, 5m or 1h. (default: 5m, unless --set gives train.epochs or "
            "train.steps)",
            metavar="TIME",
        ),
    ] = None,
    settings: opt.Overrides = None,
    out: Annotated[Path | None, Option(help="Directory of the runs and the page. (default: runs/compare-NAME)")] = None,
) -> None:
    """Train several methods on the same pictures, each with several seeds and as much time, and compare them.

    The budget is that of one run; all of them together is said before they start. Finished runs are skipped and
    interrupted ones go on, so the same command continues. Without labels, methods are compared by the copies of
    pictures that they find. The exit code is 1 if a run failed.
    Example: msvq compare photos --methods msvq,simclr --seeds 3 --budget 5m
    """
    from msvq.reproduce import compare as command

    source, console = opt.one_source(pictures, data), Console()
    if source is None:
        raise BadInput("name the pictures to compare on: msvq compare FOLDER --methods a,b")
    contest = command.plan_contest(
        _names(methods) or [], source, seeds=seeds, budget=budget, out=out, overrides=settings or []
    )
    with resumable():
        found = command.hold_contest(contest, data_root=data_root, download=download, console=console)
    command.show(found, console)
    raise typer.Exit(int(bool(found.failed)))


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
