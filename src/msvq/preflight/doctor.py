"""A look at the data before training: what there is, what is wrong with it, and what training will make of it."""

import json
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from msvq.config.adapt import fit_to_data
from msvq.config.resolve import resolve
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.files import packs
from msvq.data.sources import ImageSource, absolute, find_images, is_path, plan_data
from msvq.preflight.findings import Finding, find
from msvq.preflight.inspection import Copies, Inspection, find_copies, inspect_pictures

EXAMPLES = 3  # names that are printed with a finding; the JSON has all
EXTREME = 4  # times as long as wide


def examine_data(
    data: str,
    *,
    data_root: str | Path | None = None,
    overrides: Sequence[str] = (),
    download: bool = False,
    display: Display | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """The report on a data set as plain values, and what was found. Every picture is read once."""
    display = display or Display()
    settings = resolve(data=data, data_root=data_root, overrides=overrides)
    source = find_images(settings.data, download=download, display=display)
    seen = inspect_pictures(source, settings.data.workers, display)
    plan = _plan(settings, source, seen, overrides)
    copies, overlap = find_copies(seen.records, seen.is_train)
    report = {
        "data": data,
        "counts": _counts(source, seen),
        "sizes": _sizes(seen, plan["size"]),
        "unreadable": {
            "count": len(seen.unreadable),
            "share": len(seen.unreadable) / max(len(seen.names), 1),
            "allowed": settings.data.max_skipped,
            "files": [{"name": seen.names[i], "reason": reason} for i, reason in seen.unreadable],
        },
        "duplicates": {**_paired(seen, copies), "in_two_classes": _in_two_classes(seen, copies)},
        "overlap": _paired(seen, overlap),
        "classes": _classes(source.class_names, seen),
        "plan": plan,
        "command": _command(data, data_root, overrides),
    }
    return report, find(report)


def _counts(source: ImageSource, seen: Inspection) -> dict[str, Any]:
    labels = seen.labels[: seen.num_train]
    return {
        "train": seen.num_train,
        "train_with_label": int((labels >= 0).sum()),
        "train_without_label": int((labels < 0).sum()),
        "train_readable": int(seen.is_train.sum()),
        "test": len(seen.names) - seen.num_train,
        "test_readable": int((~seen.is_train).sum()),
        "classes": len(source.class_names),
        "other_files": source.num_others,
        "unlisted": [{"name": name, "reason": reason} for name, reason in source.unlisted],
        "notes": list(source.notes),
    }


def _sizes(seen: Inspection, crop: int) -> dict[str, Any]:
    records = seen.records
    width, height = records["width"].astype(np.int64), records["height"].astype(np.int64)
    shorter, longer = np.minimum(width, height), np.maximum(width, height)
    order = np.argsort(width * height, kind="stable")
    places = {"smallest": 0, "median": len(order) // 2, "largest": len(order) - 1}

    def chosen(mask: NDArray[np.bool_]) -> dict[str, Any] | None:
        files = [seen.names[i] for i in seen.readable[mask]]
        return {"count": len(files), "files": files} if files else None

    return {
        **{name: [int(width[order[i]]), int(height[order[i]])] if len(order) else None for name, i in places.items()},
        "formats": _tally(records["format"]),
        "modes": _tally(records["mode"]),
        "smaller_than_crop": chosen(shorter < crop),
        "extreme": chosen(longer > EXTREME * shorter),
    }


def _tally(values: NDArray[Any]) -> dict[str, int]:
    words, counts = np.unique(values, return_counts=True)
    return {str(words[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}


def _paired(seen: Inspection, copies: Copies) -> dict[str, Any]:
    pairs = [
        {"name": seen.names[seen.readable[copy]], "of": seen.names[seen.readable[first]], "kind": kind}
        for kind, columns in (("exact", copies.exact), ("near", copies.near))
        for copy, first in columns.T
    ]
    return {"exact": len(copies.exact.T), "near": len(copies.near.T), "pairs": pairs}


def _in_two_classes(seen: Inspection, copies: Copies) -> list[dict[str, str]]:
    copy, first = seen.readable[copies.exact]
    labels = seen.labels
    differ = (labels[copy] != labels[first]) & (labels[copy] >= 0) & (labels[first] >= 0)
    return [{"name": seen.names[c], "of": seen.names[f]} for c, f in zip(copy[differ], first[differ], strict=True)]


def _classes(names: Sequence[str], seen: Inspection) -> dict[str, Any]:
    labels = seen.labels[seen.readable[seen.is_train]]
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    if not len(counts):
        return {"count": 0, "smallest": None, "median": None, "largest": None, "imbalance": None, "pictures": {}}
    low, high = int(counts.argmin()), int(counts.argmax())
    return {
        "count": len(names),
        "smallest": {"name": names[low], "pictures": int(counts[low])},
        "median": float(np.median(counts)),
        "largest": {"name": names[high], "pictures": int(counts[high])},
        "imbalance": float(counts[high] / counts[low]) if counts[low] else None,
        "pictures": {name: int(count) for name, count in zip(names, counts, strict=True)},
    }


def _plan(settings: Settings, source: ImageSource, seen: Inspection, overrides: Iterable[str]) -> dict[str, Any]:
    """What `msvq pretrain` will make of the data."""
    plan = plan_data(settings.data, source)
    if is_path(settings.data.source):
        asked_for = (text.partition("=")[0].strip() for text in overrides)
        settings, _ = fit_to_data(settings, int(seen.is_train.sum()), keep=asked_for)
    folder, needed = packs(), source.bytes_to_pack(plan.side)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    return {
        "size": plan.size,
        "test_size": plan.test_size,
        "stem": settings.backbone.for_size(plan.size).stem if settings.backbone.is_resnet else None,
        "batch_size": settings.train.batch_size,
        "queue_size": settings.method.get("queue_size"),
        "mode": "memory" if source.in_memory else settings.data.mode,
        "cache_bytes": needed,
        "cache_folder": str(folder),
        "free_bytes": free,
        "stream_advised": needed > free,
    }


def _command(data: str, data_root: str | Path | None, overrides: Iterable[str]) -> str:
    name = re.sub(r"[^\w.-]+", "-", Path(absolute(data)).stem).strip("-.") or "mine"
    words = ["msvq", "pretrain", "--data", data]
    words += ["--data-root", str(data_root)] if data_root is not None else []
    words += ["--out", f"runs/{name}"]
    for text in overrides:
        words += ["--set", text]
    return shlex.join(words)


def as_json(report: dict[str, Any], findings: Sequence[Finding]) -> str:
    """The report as one JSON object, with every name that a finding is about."""
    hurts = any(finding.severity == "hurts" for finding in findings)
    whole = {**report, "findings": [vars(finding) for finding in findings], "ok": not hurts}
    return json.dumps(_decodable(whole), indent=1)


def _decodable(value: Any) -> Any:
    """The value with file names that are not UTF-8 made so: \\xff stands for such a byte."""
    if isinstance(value, dict):
        return {_decodable(key): _decodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_decodable(inner) for inner in value]
    return _utf8(value) if isinstance(value, str) else value


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def show(report: dict[str, Any], findings: Sequence[Finding], console: Console) -> None:
    """Print the report for a person."""

    def section(title: str, *lines: str) -> None:
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Text(f"  {_printable(line, console)}"), soft_wrap=True)

    section("Pictures", *_count_lines(report))
    section("Sizes", *_size_lines(report["sizes"]))
    if report["classes"]["count"]:
        section("Classes", *_class_lines(report["classes"]))
    section("Training will use", *_plan_lines(report["plan"]))
    section("Findings", *([] if findings else ["none: the data looks fine"]))
    for finding in findings:
        head = Text("  ") + Text(f"{finding.severity:5}", "bold red" if finding.severity == "hurts" else "yellow")
        console.print(head + Text(f"  {_printable(finding.sentence, console)} [{finding.id}]"), soft_wrap=True)
        for example in finding.examples[:EXAMPLES]:
            console.print(Text(f"           {_printable(example, console)}", "dim"), soft_wrap=True)
        if (more := len(finding.examples) - EXAMPLES) > 0:
            console.print(Text(f"           and {more:,} more (--json lists all)", "dim"), soft_wrap=True)
        console.print(Text(f"         {_printable(finding.advice, console)}"), soft_wrap=True)
    section("To train", report["command"])


def _printable(text: str, console: Console) -> str:
    """The text on one line, in letters that the terminal can show."""
    text = _utf8(text).encode(console.encoding, "backslashreplace").decode(console.encoding)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _count_lines(report: dict[str, Any]) -> Iterable[str]:
    counts = report["counts"]
    labelled, unlabelled = counts["train_with_label"], counts["train_without_label"]
    labels = "none has a label" if not labelled else f"{labelled:,} with a label, {unlabelled:,} without"
    yield f"{counts['train']:,} to learn from ({labels}), {counts['test']:,} to test on"
    if counts["other_files"]:
        yield f"files that are no pictures, by their names: {counts['other_files']:,}"
    yield from counts["notes"]


def _size_lines(sizes: dict[str, Any]) -> Iterable[str]:
    if sizes["median"] is None:
        yield "no picture can be read"
        return
    yield (
        ", ".join(f"{n} {sizes[n][0]} x {sizes[n][1]}" for n in ("smallest", "median", "largest")) + " (width x height)"
    )
    for tally in (sizes["formats"], sizes["modes"]):
        yield ", ".join(f"{word} {count:,}" for word, count in tally.items())


def _class_lines(classes: dict[str, Any]) -> Iterable[str]:
    low, high = classes["smallest"], classes["largest"]
    if low["pictures"] == high["pictures"]:
        yield f"{classes['count']:,} classes, {low['pictures']:,} training pictures in each"
        return
    yield (
        f"{classes['count']:,} classes; training pictures per class: {low['pictures']:,} at least ({low['name']}), "
        f"{classes['median']:,.0f} in the median class, {high['pictures']:,} at most ({high['name']})"
    )


def _plan_lines(plan: dict[str, Any]) -> Iterable[str]:
    stem = f"; the network's stem is {plan['stem']!r}" if plan["stem"] else ""
    yield f"crops of {plan['size']} pixels, tested at {plan['test_size']}{stem}"
    queue = f", a queue of {plan['queue_size']:,}" if plan["queue_size"] else ""
    yield f"batches of {plan['batch_size']:,}{queue}"
    if plan["mode"] == "store":
        needed, free = f"{plan['cache_bytes'] / 1e6:,.0f} MB", f"{plan['free_bytes'] / 1e9:,.1f} GB"
        if plan["cache_bytes"]:
            yield f"{needed} of disk for packed pictures in {plan['cache_folder']}, where {free} are free"
        else:
            yield f"the pictures are packed already, in {plan['cache_folder']}"
    elif plan["mode"] == "stream":
        yield "no disk: pictures are decoded while training (data.mode=stream)"
