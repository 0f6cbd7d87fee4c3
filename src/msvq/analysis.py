"""`msvq analyze`: a look inside a run, from any of its checkpoints."""

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.completion import complete
from msvq.data.loader import Loader
from msvq.display import Display
from msvq.errors import BadInput
from msvq.evaluation import open_for
from msvq.methods import METHODS
from msvq.report.page import WRITTEN, write_report
from msvq.run import Run, load
from msvq.run_files import check_places
from msvq.study import study
from msvq.train.precision import check_precision, resolve_device, resolve_precision
from msvq.train.runlog import finite
from msvq.weights import load_method


def analyze(
    run: str | Path | Run,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    checkpoint: str = "last",
    method: str | None = None,
    backbone: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """What `RUN/eval/analysis.json` holds; the arguments are those of `msvq analyze`."""
    run = run if isinstance(run, Run) else load(run, backbone=backbone)
    check_places(run.path, ["eval", *WRITTEN])
    display = display or Display()
    built, name, step = load_method(run, checkpoint, method=method)
    target = resolve_device(device or "auto")
    settings = run.config
    if method is not None:
        settings = settings.model_copy(update={"method": {**settings.method, "name": method}})
    source = settings.data.model_copy(update={} if data is None else {"source": data})
    settings = settings.model_copy(update={"data": source})
    dataset, _ = open_for(run, data, data_root, moved=True, display=display)
    try:
        if run.environment().get("data_fingerprint", dataset.fingerprint()) != dataset.fingerprint():
            raise BadInput(
                f"the pictures of {dataset.name} are not those of the run; "
                f"give the right ones with --data or --data-root"
            )
        settings = complete(settings, dataset, target)
        wanted = resolve_precision(check_precision(precision or settings.train.precision), target)
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"precision": wanted})})
        pictures = dataset.bank if METHODS[settings.method_name].needs_labels else dataset.train
        loader = Loader(pictures, batch_size=settings.train.batch_size, seed=settings.train.seed, device=target)
        result = study(run, settings, dataset, built.to(target), loader, checkpoint=name, step=step, display=display)
    finally:
        if dataset.stream is not None:
            dataset.stream.workers.close()
    write_report(run.path)
    return result


def show(result: dict[str, Any], run: Path, console: Console, *, as_json: bool) -> None:
    """Print an analysis for a person, or as JSON."""
    if as_json:
        console.print_json(json.dumps(finite(result)))  # what is no number is no JSON either
        return
    judged = result["verdict"]
    say = Display(console).note
    say(f"{judged['state']}: {judged['sentence']}")
    for advice in judged["advice"]:
        say(f"  - {advice}")
    audit = result["false_negatives"]
    if audit is None:
        say("the method has no soft labels over a queue, so there is nothing to audit")
    else:
        console.print(audit_table(audit))
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


def audit_table(audit: dict[str, Any]) -> Table:
    """What each soft label finds."""
    table = Table("soft label", "found in top 5", "mass on the class", "entropy", box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in [*(key for key in audit if key.startswith("view")), "all", "one_hot"]:
        numbers = (audit[name].get(key) for key in ("found", "mass", "entropy"))
        table.add_row(name.replace("_", "-"), *("-" if number is None else f"{number:.2f}" for number in numbers))
    return table
