"""Commands that tell whether an encoder is any good, and show it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from msvq.cli.options import Device, OwnBackbone, Root, app
from msvq.cli.show import show_analysis, show_result
from msvq.core.console import Display, say

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
Checkpoint = Annotated[str, typer.Option(help="last, best (by held-out pictures), or the path of a file.")]
Source = Annotated[
    str | None, typer.Option("--data", help="What 'msvq pretrain --data' takes. (default: the run's own data)")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")]


@app.command()
def evaluate(
    run: RunPath,
    protocol: Annotated[
        str,
        typer.Option(
            help="knn: what its nearest neighbours say; probe: logistic regression on features, in seconds; linear: "
            "the paper's 100 epochs; finetune: the network trained on with labels."
        ),
    ] = "knn",
    data: Source = None,
    data_root: Root = None,
    download: Download = False,
    checkpoint: Checkpoint = "last",
    labels: Annotated[float, typer.Option(help="Share of the labels to use, such as 0.01 or 0.1.")] = 1.0,
    seeds: Annotated[int, typer.Option(help="Repetitions with other seeds; mean and deviation are given.", min=1)] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value of the protocol, such as k=20 or epochs=10.", metavar="KEY=VALUE"),
    ] = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or auto. (default: fp32)")] = None,
    backbone: OwnBackbone = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
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
    run: RunPath,
    data: Source = None,
    data_root: Root = None,
    checkpoint: Checkpoint = "last",
    method: Annotated[
        str | None, typer.Option(help="path/to/file.py:ClassName, if the run's method is code of your own.")
    ] = None,
    backbone: OwnBackbone = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or auto. (default: the run's)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
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
