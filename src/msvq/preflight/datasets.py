"""`msvq datasets`: what is known, where it is, whether it is complete, and what has been packed."""

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msvq.core.console import say
from msvq.core.files import downloads, expanduser, packs
from msvq.data.sources.benchmarks import BENCHMARKS, DatasetSpec, find_benchmark
from msvq.data.sources.folders import walk

SPLITS = ("train", "test", "val", "unlabeled")  # folders of pictures

STL10 = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}

# The files of an extracted archive, and how many bytes each has at least (its pixels).
_FILES = {
    "cifar10": {**{f"data_batch_{i}": 10_000 * 3072 for i in range(1, 6)}, "test_batch": 10_000 * 3072},
    "cifar100": {"train": 50_000 * 3072, "test": 10_000 * 3072},
    "stl10": {f"{split}_X.bin": n * 27648 for split, n in STL10.items()} | {"train_y.bin": 5_000, "test_y.bin": 8_000},
}


def catalogue(root: Path | None = None) -> list[dict[str, Any]]:
    """A row for each data set that is known by name."""
    own = {"name": "patterns", "title": "embedded", "train": 10_000, "test": 2_000, "classes": 10, "size": 32}
    rows: list[dict[str, Any]] = [{**own, "where": "", "state": "complete: made when needed", "complete": True}]
    for name, spec in BENCHMARKS.items():
        path, state = _state(name, spec, root)
        row = {"name": name, "title": spec.title, "train": spec.num_train, "test": spec.num_test}
        row |= {"classes": spec.num_classes, "size": spec.test_size, "where": "" if path is None else str(path)}
        rows.append(row | {"state": state, "complete": state == "complete"})
    return rows


def _state(name: str, spec: DatasetSpec, root: Path | None) -> tuple[Path | None, str]:
    place = find_benchmark(name, root)
    if place is None:
        part = (downloads() if root is None else root) / f"{spec.archive.name}.part"
        begun = f"{part.stat().st_size / 1e6:,.0f} MB of it downloaded" if part.is_file() else "not there"
        return None, f"{begun}; --download fetches {spec.archive.num_bytes / 1e6:,.0f} MB"
    if place.form == "archive":
        return place.path, "archive, extracted when first used"
    if place.form == "files" and name in _FILES:
        expected = _FILES[name]
        missing = [file for file in expected if not (place.path / file).is_file()]
        short = [f for f in expected if f not in missing and (place.path / f).stat().st_size < expected[f]]
        gaps = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"{', '.join(short)} too short"] * bool(short)
        return place.path, f"partial: {'; '.join(gaps)}" if gaps else "complete"
    folders = {child.name.lower(): child for child in place.path.iterdir() if child.is_dir()}
    counts = {split: len(walk(folders[split]).names) for split in SPLITS if split in folders}
    judged = ("val", "test") if place.form == "files" else ("test", "val")  # Tiny ImageNet's own test has no labels
    train = counts.get("train", 0) + counts.get("unlabeled", 0)
    test = next((counts[split] for split in judged if split in counts), 0)
    if train >= spec.num_train and test >= spec.num_test:
        return place.path, "complete"
    return place.path, f"partial: {train:,} training and {test:,} test pictures"


def packed() -> list[dict[str, Any]]:
    """A row for each folder that has been decoded into the cache."""
    rows = []
    for card in sorted(packs().glob("*/*/pack.json")):
        try:
            facts = json.loads(card.read_text(encoding="utf-8"))
            size = sum(file.stat().st_size for file in card.parent.iterdir())
            row = {"source": facts["root"], "pictures": facts["pictures"], "size": facts["side"]}
            rows.append(row | {"bytes": size, "where": str(card.parent)})
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being replaced, or damaged: it is packed anew when it is needed
    return rows


def show_catalogue(root: Path | None, *, as_json: bool, console: Console) -> None:
    """Print the data sets and the packs."""
    root = None if root is None else expanduser(root)
    known, cached = catalogue(root), packed()
    if as_json:
        console.print_json(json.dumps({"known": known, "packed": cached}))
        return
    table = Table("name", "train", "test", "classes", "size", "state", box=box.SIMPLE, pad_edge=False)
    for row in known:
        numbers = (f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), str(row["size"]))
        state = row["state"] + (f"\n{row['where']}" if row["where"] else "")
        table.add_row(row["name"], *numbers, Text(state))
    console.print(table)
    looked_in = f"Looked in {downloads() if root is None else root}; --data-root names another folder."
    say(console, f"{looked_in} Your own pictures need no name: --data PATH.")
    if cached:
        table = Table("packed from", "pictures", "size", "MB", box=box.SIMPLE, pad_edge=False)
        for row in cached:
            table.add_row(Text(row["source"]), f"{row['pictures']:,}", str(row["size"]), f"{row['bytes'] / 1e6:,.0f}")
        console.print(table)
        say(console, f"Packs are in {packs()} and may be deleted: they are made again.")
