"""What a look at the data found that matters, and what to do about it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

FEW_PICTURES = 200  # too few to learn from
MANY_COPIES = 0.1  # share of the training pictures
LEAK = 0.005  # share of the test pictures: fewer cannot be seen in an accuracy
FEW_OF_A_CLASS, IMBALANCE = 10, 10.0


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know. `examples` name the first few pictures or folders."""

    id: str
    severity: Literal["hurts", "note"]
    sentence: str
    advice: str
    examples: tuple[str, ...] = ()


def find(report: dict[str, Any]) -> list[Finding]:
    """All findings of a report, those that hurt first."""
    rules = (_reading, _amount, _overlap, _copies, _labels, _shapes, _disk)
    return sorted((finding for rule in rules for finding in rule(report)), key=lambda f: f.severity)


def _reading(report: dict[str, Any]) -> Iterator[Finding]:
    bad, total = report["unreadable"], report["counts"]["train"] + report["counts"]["test"]
    if bad["count"]:
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
            tuple(f"{file['name']} {file['reason']}" for file in bad["files"]),
        )
    if closed := report["counts"]["unlisted"]:
        yield Finding(
            "closed-folders",
            "hurts",
            f"{_count(len(closed), 'folder')} cannot be looked into: pictures in there are missing",
            "allow reading them",
            tuple(f"{folder['name']} {folder['reason']}" for folder in closed),
        )


def _amount(report: dict[str, Any]) -> Iterator[Finding]:
    if (num := report["counts"]["train_readable"]) < FEW_PICTURES:
        yield Finding(
            "few-pictures",
            "hurts",
            f"{_count(num, 'training picture')}: too few to learn from",
            f"gather at least {FEW_PICTURES}, better some thousands",
        )


def _overlap(report: dict[str, Any]) -> Iterator[Finding]:
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
            _pairs(overlap),
        )


def _copies(report: dict[str, Any]) -> Iterator[Finding]:
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
            _pairs(copies),
        )
    if twice := copies["in_two_classes"]:
        yield Finding(
            "copies-in-two-classes",
            "note",
            f"{_count(len(twice), 'training picture')} repeat one of another class: one of the two labels is wrong",
            "training without labels does not mind; for accuracies, remove or relabel them",
            tuple(f"{pair['name']} = {pair['of']}" for pair in twice),
        )


def _labels(report: dict[str, Any]) -> Iterator[Finding]:
    classes, counts = report["classes"], report["counts"]
    if not classes["count"]:
        yield Finding(
            "no-labels",
            "note",
            "no labels: training does not need them, but no accuracy can be measured",
            "to get one, put the pictures of each class into a folder of its own",
        )
        return
    for least, severity in ((2, "hurts"), (FEW_OF_A_CLASS, "note")):
        small = [(n, c) for n, c in classes["pictures"].items() if c < least and (least == 2 or c >= 2)]
        if small:
            yield Finding(
                "lonely-classes" if least == 2 else "small-classes",
                "hurts" if severity == "hurts" else "note",
                f"{_count(len(small), 'class', 'classes')} with fewer than {least} readable training pictures",
                "add pictures, or remove the class: it can hardly be recognised",
                tuple(f"{name}: {count}" for name, count in small),
            )
    if classes["imbalance"] is not None and classes["imbalance"] > IMBALANCE:
        yield Finding(
            "imbalance",
            "note",
            f"the largest class has {classes['imbalance']:,.0f} times the pictures of the smallest",
            "an accuracy mostly tells about the large classes; look at the classes one by one",
        )
    if counts["test"] and not counts["test_readable"]:
        yield Finding("no-test", "note", "no test picture can be read: no accuracy can be measured", "repair them")


def _shapes(report: dict[str, Any]) -> Iterator[Finding]:
    sizes, num = report["sizes"], report["counts"]["train_readable"] + report["counts"]["test_readable"]
    if small := sizes["smaller_than_crop"]:
        yield Finding(
            "small-pictures",
            "note",
            f"{_of(small['count'], num)} pictures are smaller than the {report['plan']['size']} pixels of training",
            "they are enlarged and look blurred; --set data.size=... trains on smaller ones",
            tuple(small["files"]),
        )
    if long := sizes["extreme"]:
        yield Finding(
            "long-pictures",
            "note",
            f"{_of(long['count'], num)} pictures are more than 4 times as long as wide: only the centre square is used",
            "cut them into pieces, if what matters is not in the centre",
            tuple(long["files"]),
        )


def _disk(report: dict[str, Any]) -> Iterator[Finding]:
    plan = report["plan"]
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


def _count(num: int, word: str, many: str | None = None) -> str:
    return f"{num:,} {word if num == 1 else many or word + 's'}"


def _kinds(copies: dict[str, Any]) -> str:
    parts = (f"{copies['exact']:,} as an equal file", f"{copies['near']:,} almost equal")
    return ", ".join(part for part in parts if not part.startswith("0 "))


def _pairs(copies: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{pair['name']} {'=' if pair['kind'] == 'exact' else '~'} {pair['of']}" for pair in copies["pairs"])
