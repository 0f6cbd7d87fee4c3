"""Commands that tell whether an encoder is any good, and show it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from msvq.cli import options as opt
from msvq.cli.options import app
from msvq.cli.show import show_analysis, show_result
from msvq.core.console import Display, say


@app.command()
def evaluate(
    run: opt.RunPath,
    protocol: Annotated[
        str,
        typer.Option(
            help="knn: what its nearest neighbours say; probe: logistic regression on features, in seconds; linear: "
            "the paper's 100 epochs; finetune: the network trained on with labels."
        ),
    ] = "knn",
    data: opt.Source = None,
    data_root: opt.Root = None,
    download: opt.Download = False,
    checkpoint: opt.Checkpoint = "last",
    labels: Annotated[float, typer.Option(help="Share of the labels to use, such as 0.01 or 0.1.")] = 1.0,
    seeds: Annotated[int, typer.Option(help="Repetitions with other seeds; mean and deviation are given.", min=1)] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value of the protocol, such as k=20 or epochs=10.", metavar="KEY=VALUE"),
    ] = None,
    device: opt.Device = None,
    precision: opt.ExactPrecision = None,
    backbone: opt.OwnBackbone = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure an encoder by a frozen protocol; the result goes to RUN/eval.

    Labels of the training pictures teach the classifier; the test pictures only report.
    Example: msvq evaluate runs/cifar10 --protocol probe --labels 0.1
    """
    from msvq.api import load

    result = load(run, backbone=backbone).evaluate(
        protocol,
        data=data,
        data_root=data_root,
        download=download,
        checkpoint=checkpoint,
        labels=labels,
        seeds=seeds,
        overrides=settings or [],
        device=device,
        precision=precision,
        display=Display(Console(stderr=True)),
    )
    show_result(result.record, result.path, Console(), as_json=as_json)


@app.command()
def analyze(
    run: opt.RunPath,
    data: opt.Source = None,
    data_root: opt.Root = None,
    checkpoint: opt.Checkpoint = "last",
    method: Annotated[
        str | None, typer.Option(help="path/to/file.py:ClassName, if the run's method is code of your own.")
    ] = None,
    backbone: opt.OwnBackbone = None,
    device: opt.Device = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or auto. (default: the run's)")] = None,
    as_json: opt.AsJsonNotText = False,
) -> None:
    """Look inside a run: is it collapsing, what do its soft labels find, how fresh are teachers and queues.

    Draws the embedding map anew and rewrites the report, which shows the last checkpoint; what is found in another one
    is in RUN/eval under its name. Example: msvq analyze runs/cifar10
    """
    from msvq.api import load

    result = load(run, backbone=backbone).analyze(
        data=data,
        data_root=data_root,
        checkpoint=checkpoint,
        method=method,
        device=device,
        precision=precision,
        display=Display(Console(stderr=True)),
    )
    show_analysis(result.record, run, Console(), as_json=as_json)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Directories of runs.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write. (default: report.html in the run; needed for several)")
    ] = None,
) -> None:
    """Write the page about a run, or one that compares several, from their files alone.

    Example: msvq report runs/a runs/b --out compare.html
    """
    from msvq.report.page import report_on

    say(Console(), f"report  {report_on(runs, out=out)}")
