"""Commands that tell whether an encoder is any good, and show it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from typer import Argument, Option

from msvq.cli import options as opt
from msvq.cli.options import app
from msvq.cli.search import show_table
from msvq.core.console import Display, duration, printable, say
from msvq.core.errors import BadInput
from msvq.evaluate.results import percent, percent_error
from msvq.runs.metrics import nan_to_none

EXPLAINED = {
    "knn": "the most similar labelled pictures vote; nothing is trained",
    "probe": "one fit on features without augmentation, so no paper's number: it asks what linear asks, in seconds",
    "linear": "the paper's protocol; the last epoch counts, the best was chosen on the test pictures",
    "finetune": "the network goes on learning, with labels; from scratch it is the same one without pre-training",
}

MOST_COLUMNS = 10  # classes of a confusion matrix that fits into a terminal
MOST_FILES = 5  # that are named there


@app.command()
def evaluate(
    encoder: opt.EncoderName,
    protocol: Annotated[
        str,
        Option(
            help="knn: what its nearest neighbours say; probe: logistic regression on features, in seconds; linear: "
            "the paper's 100 epochs; finetune: the network trained on with labels."
        ),
    ] = "knn",
    data: opt.Source = None,
    data_root: opt.Root = None,
    download: opt.Download = False,
    checkpoint: opt.Checkpoint = "last",
    labels: Annotated[float, Option(help="Share of the labels to use, such as 0.01 or 0.1.")] = 1.0,
    seeds: Annotated[int, Option(help="Repetitions with other seeds; mean and deviation are given.", min=1)] = 1,
    settings: Annotated[
        list[str] | None,
        Option("--set", help="Change a value of the protocol, such as k=20 or epochs=10.", metavar="KEY=VALUE"),
    ] = None,
    device: opt.Device = None,
    precision: opt.ExactPrecision = None,
    backbone: opt.EncoderBackbone = None,
    out: Annotated[
        Path | None, Option(help="Write the result to this .json file. (default: of a run, to RUN/eval)")
    ] = None,
    beside: Annotated[
        list[str] | None,
        Option(
            help="Another encoder to measure on the same pictures, 'pixels', or 'untrained' (the same network). May be "
            "given again. Without labels, it compares what can be compared. (knn and probe always have these two)",
            metavar="ENCODER",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure an encoder by a frozen protocol; of a run, the result goes to RUN/eval.

    Labels of the training pictures teach the classifier; the test pictures only report.
    Examples: msvq evaluate runs/cifar10 --protocol probe --labels 0.1
    or: msvq evaluate runs/photos --beside timm:resnet18 --beside pixels --beside untrained
    """
    from msvq.runs.beside import compare_without_labels
    from msvq.runs.evaluate import NoLabels
    from msvq.runs.evaluate import evaluate as measure

    display = Display(Console(stderr=True))
    try:
        result, path = measure(
            encoder,
            protocol=protocol,
            data=data,
            data_root=data_root,
            download=download,
            checkpoint=checkpoint,
            backbone=backbone,
            labels=labels,
            seeds=seeds,
            overrides=settings or [],
            device=device,
            precision=precision,
            out=out,
            beside=beside or [],
            rivals=True,
            display=display,
        )
    except NoLabels:
        if not beside:
            raise
        unused = {"--labels": labels != 1, "--seeds": seeds != 1, "--set": settings, "--precision": precision}
        for flag in (flag for flag, given in unused.items() if given):
            raise BadInput(f"{flag} is for a protocol, which needs labels, and there are none; leave it out") from None
        found, path = compare_without_labels(
            encoder,
            beside,
            data=data,
            data_root=data_root,
            checkpoint=checkpoint,
            backbone=backbone,
            device=device,
            out=out,
            display=display,
        )
        show_unlabelled(found, path, Console(), as_json=as_json)
        return
    show_result(result.record, path, Console(), as_json=as_json)


@app.command()
def analyze(
    run: opt.RunPath,
    data: opt.Source = None,
    data_root: opt.Root = None,
    checkpoint: opt.Checkpoint = "last",
    method: Annotated[
        str | None, Option(help="path/to/file.py:ClassName, if the run's method is code of your own.")
    ] = None,
    backbone: opt.OwnBackbone = None,
    device: opt.Device = None,
    precision: Annotated[str | None, Option(help="fp32, bf16, fp16 or auto. (default: the run's)")] = None,
    as_json: opt.AsJsonNotText = False,
) -> None:
    """Look inside a run: did it work, what do its soft labels find, how fresh are teachers and queues.

    Draws the embedding map anew and rewrites the report, which shows the last checkpoint; what is found in another one
    is in RUN/eval under its name. Example: msvq analyze runs/cifar10
    """
    from msvq.api import Run
    from msvq.runs.run_dir import open_run

    result = Run(open_run(run, backbone=backbone).path, backbone=backbone).analyze(
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
def runs(
    folder: Annotated[Path, Argument(metavar="[DIR]", help="The folder that the runs are in.")] = Path("runs"),
    as_json: opt.AsJson = False,
) -> None:
    """List runs with method, data, verdict, time of training and accuracy, best first.

    Example: msvq runs ~/experiments
    """
    from msvq.report.listing import list_runs

    found = list_runs(folder)
    if as_json:
        typer.echo(json.dumps([run._asdict() for run in found], indent=1))
        return
    rows = [
        (*run[:5], "" if run.took is None else duration(run.took), run.changed, *map(_percent, (run.knn, run.copies)))
        for run in found
    ]
    show_table(("run", "method", "data", "state", "epochs", "took", "changed", "kNN, %", "copies, %"), rows)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


@app.command()
def report(
    runs: Annotated[list[Path], Argument(metavar="RUN [RUN ...]", help="Directories of runs.", show_default=False)],
    out: Annotated[
        Path | None, Option(help="The page to write. (default: report.html in the run; needed for several)")
    ] = None,
) -> None:
    """Write the page about a run, or one that compares several, from their files alone.

    Example: msvq report runs/a runs/b --out compare.html
    """
    from msvq.report.page import report_on

    say(Console(), f"report  {report_on(runs, out=out)}")


def show_result(result: Mapping[str, Any], path: Path | None, console: Console, *, as_json: bool) -> None:
    """Print what a protocol says for a person, or as JSON."""
    if as_json:
        console.print_json(json.dumps(result))
        return
    say = Display(console).note
    share = "" if result["labels"] == 1 else f" with {result['num_labels']:,} labels ({100 * result['labels']:g} %)"
    which = result.get("encoder", f"the {result['checkpoint']} checkpoint")
    say(f"{result['protocol']} of {which} on {result['data']}{share}")
    table = _table("", "top-1", "top-5")
    rows = {"": result["kind"], "_best": "best epoch, by the test pictures", "scratch_": "from scratch"}
    for key, title in rows.items():
        first, second = (f"{key}{top}" if key.endswith("_") else f"{top}{key}" for top in ("top1", "top5"))
        if first in result:
            table.add_row(title, _told(result, first), _told(result, second))
    by_chance = ("by chance", percent(result["chance"]))
    if not result.get("beside"):
        table.add_row(*by_chance)
    console.print(table)
    if result.get("beside"):
        table = _table("encoder", "top-1", "top-5", "features", "seconds")
        for row in result["beside"]:
            tops = (_told({**row, "num_test": result["num_test"]}, top) for top in ("top1", "top5"))
            table.add_row(printable(row["encoder"]), *tops, f"{row['num_features']:,}", f"{row['seconds']:.1f}")
        table.add_row(*by_chance)
        console.print(table)
    show_mistakes(result, path, console)
    say(f"{result['kind']}: {EXPLAINED[result['kind']]}.")
    seeds = len(result["seeds"])
    error = f"the deviation over {seeds} seeds" if seeds > 1 else "one standard error of so many"
    say(f"by chance: always the commonest class. {result['num_test']:,} test pictures; ± is {error}")
    if path:
        say(f"result  {path}")


def show_mistakes(result: Mapping[str, Any], path: Path | None, console: Console) -> None:
    """Print which classes are confused, and some of the files that are taken wrongly, where a result knows."""
    matrix, mistakes = result.get("confusion") or [], result.get("mistakes") or []
    names = [printable(name) for name in result.get("class_names", ())]
    if 1 < len(matrix) == len(names) <= MOST_COLUMNS:
        table = _table("is, taken for", *map(escape, names))
        for truth, counts in enumerate(matrix):
            table.add_row(escape(names[truth]), *map(str, counts))
        console.print(table)
    if mistakes:
        told = "; ".join(f"{one['name']} ({one['class']}) for {one['guess']}" for one in mistakes[:MOST_FILES])
        rest = f"; 'mistakes' in {path} lists all" if path else "; --out FILE.json lists all"
        more = rest if len(mistakes) > MOST_FILES else ""
        say(console, f"taken wrongly, {len(mistakes):,} in all: {told}{more}.")


def show_unlabelled(found: Mapping[str, Any], path: Path | None, console: Console, *, as_json: bool) -> None:
    """Print how encoders compare on pictures without labels."""
    if as_json:
        console.print_json(json.dumps(found))
        return
    table = _table("encoder", "copies found", "neighbours in common", "rank", "features", "seconds")
    shown = {"copies": "{:.1f} %", "neighbours": "{:.1f} %", "rank": "{:.1f}"}
    shown |= {"num_features": "{:,}", "seconds": "{:.1f}"}
    for row in found["beside"]:
        told = ("-" if row[key] is None else pattern.format(row[key]) for key, pattern in shown.items())
        table.add_row(printable(row["encoder"]), *told)
    console.print(table)
    say(
        console,
        "there are no labels, so no accuracy. copies found: how often a changed view of a picture finds the picture; "
        "neighbours in common: of a picture's ten nearest, with the first encoder; rank: directions that are used."
        + (f" result  {path}" if path else ""),
    )


def _told(result: Mapping[str, Any], key: str) -> str:
    error = result.get(f"{key}_std", percent_error(result[key], result["num_test"]))
    return percent(result[key], error)


def show_analysis(result: Mapping[str, Any], run: Path, console: Console, *, as_json: bool) -> None:
    """Print an analysis for a person, or as JSON."""
    if as_json:
        console.print_json(json.dumps(nan_to_none(result)))  # what is no number is no JSON either
        return
    judged = result["verdict"]
    say = Display(console).note
    say(f"{judged['state']}: {judged['sentence']}")
    for advice in judged["advice"]:
        say(f"  - {advice}")
    table = _table("changed copies that find their originals by", "nearest", "among ten")
    for name, found in result["copies"]["recall"].items():
        shares = (f"{found[key]:.1f} ± {found[f'{key}_error']:.1f} %" for key in ("at_1", "at_10"))
        table.add_row(name.replace("_", " "), *shares)
    console.print(table)
    audit = result["false_negatives"]
    if audit is None:
        say("the method has no soft labels over a queue, so there is nothing to audit")
    else:
        rows = {name: audit[name] for name in [*(key for key in audit if key.startswith("view")), "all", "one_hot"]}
        titles = {"found": "found in top 5", "mass": "mass on the class", "entropy": "entropy"}
        known = [key for key in titles if any(row.get(key) is not None for row in rows.values())]
        table = _table("soft label", *(titles[key] for key in known))
        for name, row in rows.items():
            numbers = (row.get(key) for key in known)
            table.add_row(name.replace("_", "-"), *("-" if number is None else f"{number:.2f}" for number in numbers))
        console.print(table)
        if audit["same_class_share"] is not None:
            say(
                f"by chance 5 entries would hold {5 * audit['same_class_share']:.2f} of the class; a one-hot label "
                f"pushes away all {audit['one_hot']['pushed_away']:.0f} that the queue holds"
            )
    for name, title in (("teachers", "distance of the networks"), ("queues", "queues (age in steps)")):
        if result[name]:
            told = ", ".join(f"{key} {value:.4g}" for key, value in result[name].items())
            say(f"{title}: {told}")
    say(f"report  {run / 'report.html'}")


def _table(name: str, *numbers: str) -> Table:
    """A table of numbers, each row with its name."""
    return Table(name, *(Column(number, justify="right") for number in numbers), box=box.SIMPLE)
