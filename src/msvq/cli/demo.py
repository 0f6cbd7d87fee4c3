"""`msvq demo`: the embedded data set, a few minutes, and a table that says whether it worked."""

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from msvq.api import Run, pretrain
from msvq.core.errors import BadInput
from msvq.core.files import is_run, write_text
from msvq.data.sources import open_dataset
from msvq.evaluate.knn import knn_accuracy
from msvq.evaluate.results import percent, percent_error
from msvq.report.page import write_report
from msvq.train.resume import has_checkpoint, has_nothing_to_lose

MADE_BY = "msvq demo"


def demo(*, out: Path, seed: int | None = None) -> Run:
    """Train MSVQ on `patterns` and compare kNN of raw pixels, of the untrained and of the trained encoder.

    A run that the demo made is replaced, unless somebody went on with it; any other is left alone and refused.
    """
    console = Console()
    there = is_run(out)
    known = Run(out).environment() if there else {}
    plain = known.get("made_by") == MADE_BY and "resumed" not in known
    own = plain or (not known and has_nothing_to_lose(out) and not has_checkpoint(out))
    if there and not own:
        raise BadInput(f"--out {str(out)!r} holds a run that is not the demo's alone; choose another --out")
    run = pretrain(out=out, recipe="demo", seed=seed, overwrite=own, console=console, made_by=MADE_BY)
    judged = json.loads((run.path / "eval" / "analysis.json").read_text(encoding="utf-8"))["knn"]
    rows = {
        "chance": judged["chance"],
        "raw pixels": pixel_accuracy(run),
        "encoder, untrained": judged["accuracy"]["untrained"],
        "encoder, trained with MSVQ": judged["accuracy"]["trained"],
    }
    write_text(run.path / "eval" / "demo.json", json.dumps(rows, indent=2) + "\n")
    write_report(run.path, figures=False)  # they are drawn already
    table = Table("features", "kNN accuracy", title="10 classes, 2,000 test pictures, k = 200")
    table.columns[1].justify = "right"
    for name, accuracy in rows.items():
        error = None if name == "chance" else percent_error(accuracy, judged["pictures"])
        table.add_row(name, percent(accuracy, error))
    console.print(table)
    return run


def pixel_accuracy(run: Run) -> float:
    """kNN on the pictures themselves."""
    data, settings = open_dataset(run.config.data), run.config.evaluate
    bank, test = (
        torch.from_numpy(split.take(range(len(split)))).flatten(1) / 255 for split in (data.labelled, data.test)
    )
    return knn_accuracy(bank, test, (data.labelled.labels, data.test.labels), k=settings.knn_k, temp=settings.knn_temp)
