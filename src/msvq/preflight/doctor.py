"""A look at the data before training: what there is, what is wrong with it, and what training will make of it."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from msvq.config.adapt import fit_to_data
from msvq.config.resolve import Flags
from msvq.config.settings import Settings
from msvq.core.console import Display, counted, say
from msvq.core.files import packs
from msvq.data.sources import ImageSource, absolute, find_images, plan_data
from msvq.preflight.inspection import Copies, Inspection, find_copies, inspect_pictures
from msvq.preflight.machine import free_disk

FEW_PICTURES = 200  # too few to learn from
MANY_COPIES = 0.1  # share of the training pictures
LEAK = 0.005  # share of the test pictures: fewer cannot be seen in an accuracy
FEW_OF_A_CLASS, IMBALANCE = 10, 10.0
EXTREME = 4  # times as long as wide
ADVISED = "10m"  # as README says
EXAMPLES = 3  # names that are printed with a finding; the JSON has all

Report = dict[str, Any]  # plain values, as the JSON has them


def examine_data(flags: Flags, *, download: bool = False, display: Display | None = None) -> Report:
    """The report on a data set, with what was found. Every picture is read once."""
    display = display or Display()
    settings = flags.settings()
    source = find_images(settings.data, download=download, display=display)
    seen = inspect_pictures(source, settings.data.workers, display)
    plan = _plan(settings, source, seen, flags.kept(settings))
    copies, overlap = find_copies(seen.records, seen.is_train)
    report = {
        "data": flags.data,
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
        "command": _command(flags),
    }
    report = _decodable(report)
    findings = find(report)
    hurts = any(finding.severity == "hurts" for finding in findings)
    return {**report, "findings": [asdict(finding) for finding in findings], "ok": not hurts}


def _decodable(value: Any) -> Any:
    """The value with file names that are not UTF-8 made so: \\xff stands for such a byte."""
    if isinstance(value, dict):
        return {_decodable(key): _decodable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_decodable(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


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

    def tally(words: NDArray[Any]) -> dict[str, int]:
        return dict(Counter(sorted(words.tolist())).most_common())

    return {
        **{name: [int(width[order[i]]), int(height[order[i]])] if len(order) else None for name, i in places.items()},
        "formats": tally(records["format"]),
        "modes": tally(records["mode"]),
        "smaller_than_crop": chosen(shorter < crop),
        "extreme": chosen(longer > EXTREME * shorter),
    }


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


def _plan(settings: Settings, source: ImageSource, seen: Inspection, keep: Iterable[str] | None) -> dict[str, Any]:
    """What `msvq pretrain` will make of the data. `keep`: as in `fit_to_data`; None: nothing is fitted."""
    plan = plan_data(settings.data, source)
    if keep is not None:
        settings, _ = fit_to_data(settings, int(seen.is_train.sum()), keep=keep)
    needed, free = source.bytes_to_pack(plan.side), free_disk(packs())
    return {
        "size": plan.size,
        "test_size": plan.test_size,
        "stem": settings.backbone.for_size(plan.size).stem if settings.backbone.is_resnet else None,
        "batch_size": settings.train.batch_size,
        "queue_size": settings.method.get("queue_size"),
        "mode": "memory" if source.in_memory else settings.data.mode,
        "cache_bytes": needed,
        "cache_folder": str(packs()),
        "free_bytes": free,
        "stream_advised": needed > free,
    }


def _command(flags: Flags) -> str:
    data = str(flags.data)
    name = re.sub(r"[^\w.-]+", "-", Path(absolute(data)).stem).strip("-.") or "mine"
    root = [] if flags.data_root is None else ["--data-root", str(flags.data_root)]
    overrides = [word for text in flags.overrides for word in ("--set", text)]
    time = [] if flags.seconds is None else ["--budget", ADVISED]
    return shlex.join(["msvq", "pretrain", "--data", data, *root, "--out", f"runs/{name}", *time, *overrides])


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know. `examples` name the pictures, folders or classes."""

    id: str
    severity: Literal["hurts", "note"]
    sentence: str
    advice: str
    examples: Sequence[str] = ()


def find(report: Report) -> list[Finding]:
    """All findings of a report, those that hurt first."""
    rules = (_reading, _copies, _labels, _shapes)
    return sorted((finding for rule in rules for finding in rule(report)), key=lambda f: f.severity)


def _reading(report: Report) -> Iterator[Finding]:
    counts, bad = report["counts"], report["unreadable"]
    if bad["count"]:
        total = counts["train"] + counts["test"]
        kinds = Counter(file["reason"].partition(":")[0] for file in bad["files"])
        why = ", ".join(f"{count:,} {reason!r}" for reason, count in kinds.most_common(3))
        too_many = bad["count"] > bad["allowed"] * total or bad["count"] == total
        yield Finding(
            "unreadable",
            "hurts" if too_many else "note",
            f"{_of(bad['count'], total)} pictures cannot be read: {why}",
            f"data.max_skipped = {bad['allowed']:g} does not allow so many, and training would refuse: repair or "
            f"remove them, or allow more with --set data.max_skipped=..."
            if too_many
            else "training leaves them out; repair or remove them",
            [f"{file['name']} {file['reason']}" for file in bad["files"]],
        )
    if closed := counts["unlisted"]:
        yield Finding(
            "closed-folders",
            "hurts",
            f"{counted(len(closed), 'folder')} cannot be looked into: pictures in there are missing",
            "allow reading them",
            [f"{folder['name']} {folder['reason']}" for folder in closed],
        )
    if counts["train_readable"] < FEW_PICTURES:
        yield Finding(
            "few-pictures",
            "hurts",
            f"{counted(counts['train_readable'], 'training picture')}: too few to learn from",
            f"gather at least {FEW_PICTURES}, better some thousands",
        )


def _copies(report: Report) -> Iterator[Finding]:
    overlap, num_test = report["overlap"], report["counts"]["test_readable"]
    if num := overlap["exact"] + overlap["near"]:
        leak = num > LEAK * num_test
        yield Finding(
            "train-test-overlap",
            "hurts" if leak else "note",
            f"{_of(num, num_test)} test pictures are also among the training pictures: {_kinds(overlap)}",
            f"remove one of each pair; with them, an accuracy may be {100 * num / num_test:.1f} points too high"
            if leak
            else "too few to change an accuracy; remove one of each pair if you want it clean",
            _pairs(overlap["pairs"]),
        )
    copies, num_train = report["duplicates"], report["counts"]["train_readable"]
    if num := copies["exact"] + copies["near"]:
        many = num > MANY_COPIES * num_train
        yield Finding(
            "duplicates",
            "hurts" if many else "note",
            f"{_of(num, num_train)} training pictures repeat an earlier one: {_kinds(copies)}",
            "remove the copies: the method is taught to tell a picture from its own copy"
            if many
            else "too few to matter",
            _pairs(copies["pairs"]),
        )
    if twice := copies["in_two_classes"]:
        yield Finding(
            "copies-in-two-classes",
            "note",
            f"{counted(len(twice), 'training picture')} repeat one of another class: one of the two labels is wrong",
            "training without labels does not mind; for accuracies, remove or relabel them",
            _pairs(twice),
        )


def _labels(report: Report) -> Iterator[Finding]:
    classes, counts = report["classes"], report["counts"]
    if not classes["count"]:
        yield Finding(
            "no-labels",
            "note",
            "no labels: training does not need them, but no accuracy can be measured",
            "to get one, put the pictures of each class into a folder of its own",
        )
        return
    pictures = classes["pictures"].items()
    kinds: Sequence[tuple[str, Literal["hurts", "note"], int, int]] = (
        ("lonely-classes", "hurts", 0, 2),
        ("small-classes", "note", 2, FEW_OF_A_CLASS),
    )
    for kind, severity, least, limit in kinds:
        if few := [f"{name}: {num}" for name, num in pictures if least <= num < limit]:
            sentence = f"{counted(len(few), 'class', 'classes')} with fewer than {limit} readable training pictures"
            advice = "add pictures, or remove the class: it can hardly be recognised"
            yield Finding(kind, severity, sentence, advice, few)
    if classes["imbalance"] is not None and classes["imbalance"] > IMBALANCE:
        yield Finding(
            "imbalance",
            "note",
            f"the largest class has {classes['imbalance']:,.0f} times the pictures of the smallest",
            "an accuracy mostly tells about the large classes; look at the classes one by one",
        )
    if counts["test"] and not counts["test_readable"]:
        yield Finding("no-test", "note", "no test picture can be read: no accuracy can be measured", "repair them")


def _shapes(report: Report) -> Iterator[Finding]:
    counts, sizes, plan = report["counts"], report["sizes"], report["plan"]
    num = counts["train_readable"] + counts["test_readable"]
    if small := sizes["smaller_than_crop"]:
        yield Finding(
            "small-pictures",
            "note",
            f"{_of(small['count'], num)} pictures are smaller than the {plan['size']} pixels of training",
            "they are enlarged and look blurred; --set data.size=... trains on smaller ones",
            small["files"],
        )
    if long := sizes["extreme"]:
        yield Finding(
            "long-pictures",
            "note",
            f"{_of(long['count'], num)} pictures are more than 4 times as long as wide: only the centre square is used",
            "cut them into pieces, if what matters is not in the centre",
            long["files"],
        )
    if plan["stream_advised"] and plan["mode"] == "store":
        yield Finding(
            "disk",
            "hurts",
            f"the packed pictures need {plan['cache_bytes'] / 1e9:,.1f} GB, and the disk of {plan['cache_folder']} "
            f"has {plan['free_bytes'] / 1e9:,.1f} GB left",
            "free some, point MSVQ_HOME at another disk, or decode while training with --set data.mode=stream",
        )


def _of(num: int, total: int) -> str:
    share = 100 * num / max(total, 1)
    return f"{num:,} of {total:,} ({'under 0.1' if share < 0.1 else f'{share:.1f}'} %)"


def _kinds(copies: dict[str, Any]) -> str:
    parts = (f"{copies['exact']:,} as an equal file", f"{copies['near']:,} almost equal")
    return ", ".join(part for part in parts if not part.startswith("0 "))


def _pairs(pairs: list[dict[str, str]]) -> list[str]:
    return [f"{pair['name']} {'~' if pair.get('kind') == 'near' else '='} {pair['of']}" for pair in pairs]


def show(report: Report, console: Console) -> None:
    """Print the report for a person."""

    def tell(line: str, style: str | None = None) -> None:
        one_line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        say(console, one_line, style)

    def section(title: str, lines: Iterable[str]) -> None:
        tell(title, "bold")
        for line in lines:
            tell(f"  {line}")

    section("Pictures", _count_lines(report["counts"]))
    section("Sizes", _size_lines(report["sizes"]))
    if report["classes"]["count"]:
        section("Classes", [_class_line(report["classes"])])
    section("Training will use", _plan_lines(report["plan"]))
    section("Findings", [] if report["findings"] else ["none: the data looks fine"])
    for finding in report["findings"]:
        style = "bold red" if finding["severity"] == "hurts" else "yellow"
        console.print(Text.assemble("  ", (f"{finding['severity']:5}", style)), end="")
        tell(f"  {finding['sentence']} [{finding['id']}]")
        for example in finding["examples"][:EXAMPLES]:
            tell(f"           {example}", "dim")
        if (more := len(finding["examples"]) - EXAMPLES) > 0:
            tell(f"           and {more:,} more (--json lists all)", "dim")
        tell(f"         {finding['advice']}")
    hurts = not report["ok"]
    section("To train, when what hurts is mended" if hurts else "To train", [report["command"]])


def _count_lines(counts: dict[str, Any]) -> Iterator[str]:
    labelled, unlabelled = counts["train_with_label"], counts["train_without_label"]
    labels = "none has a label" if not labelled else f"{labelled:,} with a label, {unlabelled:,} without"
    yield f"{counts['train']:,} to learn from ({labels}), {counts['test']:,} to test on"
    if counts["other_files"]:
        yield f"files that are no pictures, by their names: {counts['other_files']:,}"
    yield from counts["notes"]


def _size_lines(sizes: dict[str, Any]) -> Iterator[str]:
    if sizes["median"] is None:
        yield "no picture can be read"
        return
    extent = (f"{name} {sizes[name][0]} x {sizes[name][1]}" for name in ("smallest", "median", "largest"))
    yield f"{', '.join(extent)} (width x height)"
    for tally in (sizes["formats"], sizes["modes"]):
        yield ", ".join(f"{word} {count:,}" for word, count in tally.items())


def _class_line(classes: dict[str, Any]) -> str:
    low, high = classes["smallest"], classes["largest"]
    if low["pictures"] == high["pictures"]:
        return f"{classes['count']:,} classes, {low['pictures']:,} training pictures in each"
    return (
        f"{classes['count']:,} classes; training pictures per class: {low['pictures']:,} at least ({low['name']}), "
        f"{classes['median']:,.0f} in the median class, {high['pictures']:,} at most ({high['name']})"
    )


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
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
