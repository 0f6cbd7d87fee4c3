"""`msvq evaluate`: an encoder judged by a frozen protocol, on its own data or other, with all or few labels."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from msvq.config import parse_assignment
from msvq.data.sources import DataSettings, check_source, open_dataset
from msvq.data.store import DataSet
from msvq.display import Display
from msvq.errors import BadInput, unknown
from msvq.evaluate.labels import stratified
from msvq.files import write_text
from msvq.protocols import PROTOCOLS, Subject, check_neighbours
from msvq.run import Run, load
from msvq.settings import Section, explain
from msvq.train.precision import check_precision, resolve_device, resolve_precision
from msvq.version import __version__
from msvq.weights import load_encoder


def evaluate(
    run: str | Path | Run,
    *,
    protocol: str = "knn",
    data: str | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    checkpoint: str = "last",
    labels: float = 1.0,
    seeds: int = 1,
    overrides: Iterable[str] = (),
    device: str | None = None,
    precision: str | None = None,
    display: Display | None = None,
) -> tuple[dict[str, Any], Path]:
    """The result of a protocol and the file in RUN/eval that holds it. The arguments are those of `msvq evaluate`."""
    run = run if isinstance(run, Run) else load(run)
    display = display or Display()
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    changes = dict(map(parse_assignment, overrides))
    settings = _settings(PROTOCOLS[protocol].settings, changes)
    if not 0 < labels <= 1:
        raise BadInput(f"--labels is a share of the labelled pictures, above 0 and at most 1, not {labels}")
    weights = load_encoder(run, checkpoint)
    target = resolve_device(device or "auto")
    dataset, own = open_for(run, data, data_root, download=download, display=display)
    try:
        if not dataset.has_labels:
            raise BadInput(f"{dataset.name} has no labels, and {protocol} needs them; 'msvq analyze' does without")
        subject = Subject(
            weights.encoder.to(target),
            run.config.backbone,
            dataset,
            target,
            resolve_precision(check_precision(precision or "auto"), target),
            display,
        )
        found = measure(protocol, subject, settings, labels=labels, seeds=seeds)
    finally:
        if dataset.stream is not None:
            dataset.stream.workers.close()
    result = {
        "protocol": identity(protocol, settings, changes),
        **found,
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint(),
        "checkpoint": weights.checkpoint,
        "step": weights.step,
    }
    return result, save_result(run.path, result, transfer=None if own else dataset.name, changes=changes)


def measure(
    protocol: str, subject: Subject, settings: Section, *, labels: float = 1.0, seeds: int = 1
) -> dict[str, Any]:
    """What a protocol says of an encoder: means over the seeds, and each of them."""
    chosen = PROTOCOLS[protocol]
    known = subject.data.bank.labels
    repeats = seeds if chosen.random or labels < 1 else 1
    if seeds > repeats:
        subject.display.note(f"note: {protocol} with all labels has no randomness, so one measurement is enough")
    each = []
    for number in range(repeats):
        rows = stratified(known, labels, seed=number) if labels < 1 else None
        check_neighbours(settings, len(known) if rows is None else len(rows))
        each.append({"seed": number, **chosen.measure(subject, settings, rows, number)})
    numbers = [key for key, value in each[0].items() if isinstance(value, float)]
    found = {key: statistics.mean(one[key] for one in each) for key in numbers}
    if len(each) > 1:
        found |= {f"{key}_std": statistics.stdev(one[key] for one in each) for key in ("top1", "top5")}
    others = {key: value for key, value in each[0].items() if key not in (*numbers, "seed")}
    return {
        "kind": protocol,
        **found,
        **({} if len(each) > 1 else others),
        "seeds": [one["seed"] for one in each],
        "runs": [{key: one[key] for key in ("seed", *numbers)} for one in each],
        "labels": labels,
        "num_labels": len(known) if labels == 1 else len(stratified(known, labels, seed=0)),
        "num_test": len(subject.data.test),
        "settings": settings.model_dump(mode="json"),
        "precision": subject.precision,
        "msvq": __version__,
    }


def save_result(run: Path, result: dict[str, Any], *, transfer: str | None, changes: dict[str, Any]) -> Path:
    """Write a result to RUN/eval; what differs from the plain protocol is in the file's name."""
    parts = [result["kind"]]
    if transfer is not None:
        parts += ["on", transfer]
    if result["labels"] < 1:
        parts += ["labels", f"{result['labels']:g}"]
    parts += [f"{key}-{value}" for key, value in changes.items()]
    if result["checkpoint"] != "last":
        parts.append(result["checkpoint"])
    name = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in "-".join(parts))
    path = run / "eval" / f"{name}.json"
    write_text(path, json.dumps(result, indent=1) + "\n")
    return path


def open_for(
    run: Run, data: str | None, data_root: str | Path | None, *, download: bool = False, display: Display
) -> tuple[DataSet, bool]:
    """The run's own data, or other pictures as its encoder expects them; and whether they are the run's own."""
    trained = run.config.data
    own = data is None or data == trained.source
    root = Path(data_root) if data_root is not None else trained.root if own else None
    if own:
        settings = trained.model_copy(update={"root": root})
    else:
        assert data is not None
        sizes = {"size": trained.size, "test_size": trained.test_size}
        settings = DataSettings(source=data, root=root).model_copy(update=sizes)
    check_source(settings.source)
    dataset = open_dataset(settings, download=download, display=display)
    if not own:  # normalised as in training, which is what the first layer knows
        dataset = replace(dataset, mean=tuple(run.card["mean"]), std=tuple(run.card["std"]))
    return dataset, own


def _settings(kind: type[Section], changes: dict[str, Any]) -> Section:
    try:
        return kind.model_validate(changes)
    except ValidationError as error:
        raise explain(error, kind.model_fields) from None


def identity(protocol: str, settings: Section, changes: dict[str, Any]) -> str:
    """The protocol's name and version; what was changed stands behind it, so that nobody compares unlike numbers."""
    name, told = PROTOCOLS[protocol].identity(settings)
    more = "".join(f"+{key}={value}" for key, value in changes.items() if key not in told)
    return name + more


EXPLAINED = {
    "knn": "the most similar labelled pictures vote; nothing is trained",
    "probe": "one fit on features without augmentation, so no paper's number: it ranks encoders as linear does, "
    "in seconds, and usually comes out within a few points of it",
    "linear": "the paper's protocol; the last epoch counts, the best was chosen on the test pictures",
    "finetune": "the whole network goes on learning, with labels; from scratch it starts without pre-training",
}


def show(result: dict[str, Any], path: Path, console: Console, *, as_json: bool) -> None:
    """Print a result for a person, or as JSON."""
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


def _told(result: dict[str, Any], key: str) -> str:
    spread = f" ± {result[f'{key}_std']:.1f}" if f"{key}_std" in result else ""
    return f"{result[key]:.1f}{spread} %"
