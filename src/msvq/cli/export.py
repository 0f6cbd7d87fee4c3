"""The command that hands an encoder to other tools."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from msvq.cli import options as opt
from msvq.cli.options import app
from msvq.core.console import Display


@app.command()
def export(
    run: opt.RunPath,
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.", show_default=False)],
    format: Annotated[
        str,
        typer.Option(
            help="safetensors: weights, and code that reads them; torchvision, timm: for those libraries; onnx: for "
            "ONNX Runtime and others; torchscript: for torch.jit.load."
        ),
    ] = "safetensors",
    checkpoint: opt.Checkpoint = "last",
    licence: Annotated[
        str, typer.Option("--licence", "--license", help="Licence of the weights, for the model card, such as mit.")
    ] = "unknown",
    backbone: opt.OwnBackbone = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a run's encoder for other tools, with its preprocessing, a model card and an example.

    It is loaded back by its own library in a fresh process first: no feature may differ by more than 0.0001.
    Example: msvq export runs/cifar10 --format onnx --out cifar10-onnx
    """
    from msvq.api import load
    from msvq.export import export_run

    done = export_run(
        load(run, backbone=backbone),
        format=format,
        out=out,
        checkpoint=checkpoint,
        licence=licence,
        overwrite=overwrite,
        display=Display(Console(stderr=True)),
    )
    say = Display(Console()).note
    allowed = done.manifest["checked"]["tolerance"]
    say(f"{format}: features differ from the run's by at most {done.max_abs_difference:.2g} (allowed: {allowed:.2g})")
    say(f"export  {done.path}")
