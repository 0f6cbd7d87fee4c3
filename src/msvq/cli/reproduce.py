"""The command that makes the paper's tables and figures again."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from msvq.cli.options import Stopped, app


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
    try:
        outcome = command.reproduce(
            sweep, data_root=data_root, download=download, jobs=jobs, compiled=compiled, console=console
        )
    except KeyboardInterrupt as stop:
        told = f"{stop}; " if stop.args else ""
        raise Stopped(f"{told}the same command goes on", getattr(stop, "signal_number", signal.SIGINT)) from None
    command.show(outcome, console)
    raise typer.Exit(int(bool(outcome.failed)))


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
