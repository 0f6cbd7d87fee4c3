"""`msvq evaluate`: an encoder judged by a frozen protocol, on its own data or other, with all or few labels."""

import hashlib
import json
import operator
import statistics
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from msvq.config import assign, parse_assignment
from msvq.data.sources import DataSettings, absolute, check_source, open_dataset
from msvq.data.store import DataSet
from msvq.display import Display
from msvq.errors import BadInput
from msvq.evaluate.labels import stratified
from msvq.files import write_text
from msvq.protocols import PROTOCOLS, Subject, check_neighbours, check_protocols
from msvq.run import Run, load
from msvq.run_files import check_places
from msvq.settings import Section, explain, known_keys
from msvq.train.precision import check_precision, resolve_device, resolve_precision
from msvq.version import __version__
from msvq.weights import feeding, load_encoder

PRECISION = "fp32"  # of a frozen protocol: the same on every machine
BULKY = ("confusion", "class_names")  # of a result; not kept for each of several seeds
LONGEST_NAME = 150  # bytes of a result's file name; file systems take 255, with what is added while it is written


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
    backbone: str | None = None,
    display: Display | None = None,
) -> tuple[dict[str, Any], Path]:
    """The result of a protocol and the file in RUN/eval that holds it. The arguments are those of `msvq evaluate`."""
    run = run if isinstance(run, Run) else load(run, backbone=backbone)
    check_places(run.path, ["eval"])
    display = display or Display()
    check_protocols([protocol])
    changes = dict(map(parse_assignment, overrides))
    settings, changes = _settings(PROTOCOLS[protocol].settings, changes)
    try:
        labels, seeds = float(labels), operator.index(seeds)
    except (TypeError, ValueError):
        raise BadInput(f"--labels is a share and --seeds a whole number, not {labels!r} and {seeds!r}") from None
    if not 0 < labels <= 1:
        raise BadInput(f"--labels is a share of the labelled pictures, above 0 and at most 1, not {labels}")
    if seeds < 1:
        raise BadInput(f"--seeds is a number of repetitions, at least 1, not {seeds}")
    weights = load_encoder(run, checkpoint)
    target = resolve_device(device or "auto")
    dataset, own = open_for(run, data, data_root, checkpoint=checkpoint, download=download, display=display)
    try:
        if not dataset.has_labels:
            raise BadInput(f"{dataset.name} has no labels, and {protocol} needs them; 'msvq analyze' does without")
        subject = Subject(
            weights.encoder.to(target),
            run.config.backbone,
            dataset,
            target,
            resolve_precision(check_precision(precision or PRECISION), target),
            display,
        )
        found = measure(protocol, subject, settings, labels=labels, seeds=seeds)
    finally:
        if dataset.stream is not None:
            dataset.stream.workers.close()
    if subject.precision != PRECISION:
        changes["precision"] = subject.precision
    place = {"data": dataset.name, "data_fingerprint": dataset.fingerprint(), "transfer": not own}
    weighed = {"checkpoint": weights.checkpoint, "step": weights.step}
    result = {"protocol": identity(protocol, settings, changes), **found, **place, **weighed, "changes": changes}
    return result, save_result(run.path, result)


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
        seed = chosen.first_seed + number
        each.append({"seed": seed, **chosen.measure(subject, settings, rows, seed)})
    accuracies = [key for key in each[0] if "top1" in key or "top5" in key]
    found = {key: statistics.mean(one[key] for one in each) for key in accuracies}
    if len(each) > 1:
        found |= {f"{key}_std": statistics.stdev(one[key] for one in each) for key in accuracies}
    else:
        found |= {key: value for key, value in each[0].items() if key not in (*accuracies, "seed")}
    return {
        "kind": protocol,
        **found,
        "seeds": [one["seed"] for one in each],
        "runs": [{key: value for key, value in one.items() if key not in BULKY} for one in each],
        "labels": labels,
        "num_labels": len(known) if labels == 1 else len(stratified(known, labels, seed=0)),
        "num_test": len(subject.data.test),
        "settings": settings.model_dump(mode="json"),
        "precision": subject.precision,
        "msvq": __version__,
    }


def save_result(run: Path, result: dict[str, Any]) -> Path:
    """Write a result to RUN/eval; what differs from the plain protocol is in the file's name."""
    parts = [result["kind"]]
    if result["transfer"]:
        parts += ["on", result["data"]]
    if result["labels"] < 1:
        parts += ["labels", f"{result['labels']:g}"]
    if len(result["seeds"]) > 1:
        parts += ["seeds", str(len(result["seeds"]))]
    parts += [f"{key}-{value}" for key, value in result["changes"].items()]
    if result["checkpoint"] != "last":
        parts.append(result["checkpoint"])
    name = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in "-".join(parts))
    if len(name.encode()) > LONGEST_NAME:
        told = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}-{told}"
    path = run / "eval" / f"{name}.json"
    if result["transfer"] and _fingerprint(path) not in (None, result["data_fingerprint"]):  # other data of that name
        path = path.with_name(f"{name}-{result['data_fingerprint'][:6]}.json")
    write_text(path, json.dumps(result, indent=1) + "\n")
    return path


def _fingerprint(path: Path) -> str | None:
    """Of the data that an earlier result is about."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["data_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_for(
    run: Run,
    data: str | None,
    data_root: str | Path | None,
    *,
    checkpoint: str = "last",
    download: bool = False,
    moved: bool = False,
    display: Display,
) -> tuple[DataSet, bool]:
    """The run's own data, or other pictures as its encoder expects them; and whether they are the run's own.

    `moved`: `data` is where the run's own pictures are now.
    """
    trained = run.config.data
    own = moved or data is None or absolute(data) == trained.source
    root = Path(data_root) if data_root is not None else trained.root if own else None
    if own:
        settings = trained.model_copy(update={"root": root, "source": trained.source if data is None else data})
    else:
        assert data is not None
        sizes = {"size": trained.size, "test_size": trained.test_size}
        settings = DataSettings(source=data, root=root).model_copy(update=sizes)
    check_source(settings.source)
    dataset = open_dataset(settings, download=download, display=display)
    if own and not moved and run.environment().get("data_fingerprint", dataset.fingerprint()) != dataset.fingerprint():
        display.note(
            f"note: {dataset.name} has changed since the run was trained on it, so it is judged as other data; "
            f"its test pictures may be some that the run has learned from"
        )
        own = False
    if not own:  # normalised as in training, which is what the first layer knows
        known = feeding(run, checkpoint)
        dataset = replace(dataset, mean=known.mean, std=known.std)
    return dataset, own


def _settings(kind: type[Section], given: dict[str, Any]) -> tuple[Section, dict[str, Any]]:
    """The protocol's settings, and which of the given ones change it."""
    plain = kind().model_dump(mode="json")
    values = deepcopy(plain)
    for path, value in given.items():
        assign(values, path, value)
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        raise explain(error, known_keys(error, kind)) from None
    wanted = settings.model_dump(mode="json")
    return settings, {path: value for path, value in given.items() if _at(wanted, path) != _at(plain, path)}


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def identity(protocol: str, settings: Section, changes: dict[str, Any]) -> str:
    """The protocol's name and version; what was changed stands behind it, so that nobody compares unlike numbers."""
    name, told = PROTOCOLS[protocol].identity(settings)
    more = "".join(f"+{key}={value}" for key, value in changes.items() if key not in told)
    return name + more


EXPLAINED = {
    "knn": "the most similar labelled pictures vote; nothing is trained",
    "probe": "one fit on features without augmentation, so no paper's number: it asks what linear asks, in seconds",
    "linear": "the paper's protocol; the last epoch counts, the best was chosen on the test pictures",
    "finetune": "the network goes on learning, with labels; from scratch it is the same one without pre-training",
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
