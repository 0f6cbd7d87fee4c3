"""What evaluate and analyze have found, for a person or as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.core.console import Display
from msvq.runs.metrics import nan_to_none

EXPLAINED = {
    "knn": "the most similar labelled pictures vote; nothing is trained",
    "probe": "one fit on features without augmentation, so no paper's number: it asks what linear asks, in seconds",
    "linear": "the paper's protocol; the last epoch counts, the best was chosen on the test pictures",
    "finetune": "the network goes on learning, with labels; from scratch it is the same one without pre-training",
}


def show_result(result: Mapping[str, Any], path: Path, console: Console, *, as_json: bool) -> None:
    """Print what a protocol says for a person, or as JSON."""
    if as_json:
        console.print_json(json.dumps(result))
        return
    say = Display(console).note
    share = "" if result["labels"] == 1 else f" with {result['num_labels']:,} labels ({100 * result['labels']:g} %)"
    say(f"{result['protocol']} of the {result['checkpoint']} checkpoint on {result['data']}{share}")
    table = Table("", "top-1", "top-5", box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {"": result["kind"], "_best": "best epoch, by the test pictures", "scratch_": "from scratch"}
    for key, title in rows.items():
        first, second = (f"{key}{top}" if key.endswith("_") else f"{top}{key}" for top in ("top1", "top5"))
        if first in result:
            table.add_row(title, _told(result, first), _told(result, second))
    console.print(table)
    say(f"{result['kind']}: {EXPLAINED[result['kind']]}.")
    say(f"{result['num_test']:,} test pictures; seeds {len(result['seeds'])}; result  {path}")


def _told(result: Mapping[str, Any], key: str) -> str:
    spread = f" ± {result[f'{key}_std']:.1f}" if f"{key}_std" in result else ""
    return f"{result[key]:.1f}{spread} %"


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


def audit_table(audit: Mapping[str, Any]) -> Table:
    """What each soft label finds."""
    table = Table("soft label", "found in top 5", "mass on the class", "entropy", box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in [*(key for key in audit if key.startswith("view")), "all", "one_hot"]:
        numbers = (audit[name].get(key) for key in ("found", "mass", "entropy"))
        table.add_row(name.replace("_", "-"), *("-" if number is None else f"{number:.2f}" for number in numbers))
    return table
