"""Commands that train, and that tell what training will take."""

import json
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Option

from msvq.cli import options as opt
from msvq.cli.options import Stopped, app
from msvq.core.console import Display, duration, say
from msvq.core.launch import is_main_process


@app.command()
def demo(
    out: Annotated[Path, Option(help="Directory of the run.")] = Path("runs/demo"),
    seed: Annotated[int | None, Option(help="Seed of all randomness.", min=0)] = None,
) -> None:
    """Train MSVQ on the embedded data set in a few minutes, and show what it learned. An earlier demo is replaced."""
    from msvq.cli.demo import demo as run_demo

    started = time.monotonic()
    _tell_end(run_demo(out=out, seed=seed).path, started)


@app.command()
def pretrain(
    out: Annotated[Path, Option(help="Directory of the run.")],
    pictures: opt.Pictures = None,
    data: Annotated[
        str | None,
        Option(
            help="A folder of pictures, a .txt or .csv list of files, an .npz or .npy of pictures, hf:NAME, or the "
            "name of a data set ('msvq datasets' lists them). (default: the recipe's, or patterns)"
        ),
    ] = None,
    data_root: Annotated[
        Path | None,
        Option(help="Where the named data set is: its official files or archive, or train/<class>/ and test/<class>/."),
    ] = None,
    download: opt.Download = False,
    method: Annotated[
        str | None,
        Option(
            help="Name of a method ('msvq methods' lists them), or path/to/file.py:ClassName. (default: the recipe's)"
        ),
    ] = None,
    backbone: opt.BackboneName = None,
    init: opt.Init = None,
    recipe: opt.Recipe = None,
    epochs: opt.Epochs = None,
    budget: opt.Budget = None,
    settings: opt.Overrides = None,
    seed: Annotated[int | None, Option(help="Seed of all randomness. (default: 0)")] = None,
    device: opt.Device = None,
    precision: Annotated[
        str | None, Option(help="auto, fp32, bf16 or fp16; auto is bf16 where native. (default: auto)")
    ] = None,
    compiled: Annotated[
        bool | None, Option("--compile", help="Compile the networks first: one to three minutes, then faster steps.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out.")] = False,
    auto_resume: Annotated[
        bool, Option("--auto-resume", help="Continue the run in --out if there is one, else start it: for job queues.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run in --out.")] = False,
    loggers: Annotated[
        list[str] | None,
        Option(
            "--logger",
            help="Log to tensorboard (into the run) or wandb (its server; only into the run with "
            "WANDB_MODE=offline) too. May be given again.",
            metavar="NAME",
        ),
    ] = None,
) -> None:
    """Train an encoder.

    Examples: msvq pretrain ~/photos --out runs/photos --budget 10m
    or: msvq pretrain --data cifar10 --download --out runs/cifar10 --epochs 20
    """
    from msvq.api import pretrain as run_pretrain

    before, started = _written(out), time.monotonic()
    try:
        run = run_pretrain(
            out=out,
            data=opt.one_source(pictures, data),
            data_root=data_root,
            download=download,
            method=method,
            backbone=backbone,
            init=init,
            recipe=recipe,
            epochs=epochs,
            budget=budget,
            overrides=settings or [],
            seed=seed,
            device=device,
            precision=precision,
            compile=compiled,
            resume=resume,
            auto_resume=auto_resume,
            overwrite=overwrite,
            loggers=loggers or [],
            made_by="msvq pretrain",
        )
    except KeyboardInterrupt as stop:
        told = f"{stop}; " if stop.args else ""
        untouched = overwrite and not auto_resume and before is not None and before == _written(out)
        way = "nothing was changed" if untouched else how_to_go_on(out, method, backbone, auto_resume)
        raise Stopped(told + way, getattr(stop, "signal_number", signal.SIGINT)) from None
    if not is_main_process():
        return
    _tell_end(run.path, started)


def _tell_end(run: Path, started: float) -> None:
    """Where a run is, how long it took since `started`, and what to do with it."""
    took, place, report = duration(time.monotonic() - started), shlex.quote(str(run)), run / "report.html"
    say(Console(), f"run     {run} (in {took})\nreport  {report}\nnext    msvq search {place} --query PICTURE")


def _written(out: Path) -> int | None:
    """When the run in `out` was started, if there is one: its first file to go when it is replaced."""
    try:
        return (out / "environment.json").stat().st_mtime_ns
    except OSError:
        return None


def how_to_go_on(out: Path, method: str | None, backbone: str | None = None, auto_resume: bool = False) -> str:
    """What to type after a run was stopped."""
    from msvq.core.user_code import is_user_code
    from msvq.train.resume import has_checkpoint

    if not has_checkpoint(out):
        return f"nothing was trained yet, and the same command{'' if auto_resume else ' with --overwrite'} starts again"
    flags = {"method": method, "backbone": backbone}  # code is run only when it is named again
    named = "".join(f" --{flag} {shlex.quote(name)}" for flag, name in flags.items() if name and is_user_code(name))
    return f"continue with: msvq pretrain --out {shlex.quote(str(out))} --resume{named}"


@app.command()
def plan(
    pictures: opt.Pictures = None,
    recipe: opt.Recipe = None,
    data: opt.Data = None,
    data_root: opt.Root = None,
    method: opt.MethodName = None,
    backbone: opt.BackboneName = None,
    init: opt.Init = None,
    epochs: opt.Epochs = None,
    budget: opt.Budget = None,
    settings: opt.Overrides = None,
    device: opt.Device = None,
    precision: opt.PrecisionName = None,
    out: Annotated[Path | None, Option(help="Where the run would be: its free space is looked up.")] = None,
    steps: Annotated[int, Option(help="Training steps to time, at least 3; fewer if they are slow.")] = 5,
    as_json: opt.AsJsonNotText = False,
) -> None:
    """Tell what a run will take of time, memory and disk, and what to change if that is too much.

    A few steps are timed; nothing is downloaded, packed or trained. A data set that is not there is planned with
    made-up pictures of its size and number. Beside what takes more than half an hour stand commands for less time.
    Example: msvq plan --recipe cifar10
    """
    from msvq.config.resolve import Flags
    from msvq.preflight import plan as planning

    data = opt.one_source(pictures, data)
    flags = Flags(recipe, data, data_root, method, backbone, epochs, budget, settings or [], device, precision, init)
    report = planning.plan(flags, out=out, steps=steps, display=Display(Console(stderr=True)))
    _print_report(report, planning.show, as_json)


@app.command()
def bench(
    recipe: opt.Recipe = None,
    data: opt.Data = None,
    data_root: opt.Root = None,
    method: opt.MethodName = None,
    backbone: opt.BackboneName = None,
    settings: opt.Overrides = None,
    device: opt.Device = None,
    precision: opt.PrecisionName = None,
    steps: Annotated[int, Option(help="Training steps to time, at least 3.")] = 10,
    as_json: opt.AsJson = False,
) -> None:
    """Time a training step on this machine, part by part, and compare it with what the networks alone need.

    Nothing is downloaded or left behind. Example: msvq bench --recipe cifar10 --set backbone.width=16
    """
    from msvq.config.resolve import Flags
    from msvq.preflight import bench as timing

    flags = Flags(recipe, data, data_root, method, backbone, None, None, settings or [], device, precision)
    report = timing.bench(flags, steps=steps, display=Display(Console(stderr=True)))
    _print_report(report, timing.show, as_json)


def _print_report(report: dict[str, Any], show: Callable[[dict[str, Any], Console], None], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        show(report, Console())
