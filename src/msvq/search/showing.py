"""What a search or a look for duplicates found, on a terminal or as JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from msvq.core.console import Display, printable
from msvq.search.duplicates import Duplicates
from msvq.search.embedding import tell_skipped
from msvq.search.search import Searched

SHOWN = 5  # pictures of a group that are printed
HIGHER = (0.99, 0.995, 0.999, 0.9995)  # thresholds to try where one group holds too much


def show_search(found: Searched, console: Console, *, html: Path | None, as_json: bool) -> None:
    """Print a table per query: rank, cosine, class where it is known, and name."""
    if as_json:
        _print_json(
            {
                "pictures": found.num_pictures,
                "skipped": len(found.skipped),
                "answers": [
                    {
                        "query": answer.query,
                        "found": [
                            {"rank": h.rank, "similarity": h.similarity, "class": h.class_name or None, "name": h.name}
                            for h in answer.hits
                        ],
                    }
                    for answer in found.answers
                ],
            }
        )
        return
    say = Display(console).note
    for answer in found.answers:
        say(f"most like {answer.query}, of {found.num_pictures:,} pictures")
        rows = [(str(hit.rank), f"{hit.similarity:.3f}", hit.class_name, hit.name) for hit in answer.hits]
        for line in _table(("", "cosine", "class", "picture"), rows):
            say(line)
        say("")
    if html is not None:
        say(f"page  {html}")
    if found.skipped:
        say(tell_skipped(found.skipped))


def show_duplicates(found: Duplicates, console: Console, *, top: int, files: Iterable[Path], as_json: bool) -> None:
    """Print the first groups, and the first pictures of each."""
    if as_json:
        _print_json(
            {
                "pictures": found.num_pictures,
                "threshold": found.threshold,
                "skipped": len(found.skipped),
                "num_groups": len(found.groups),
                "groups": [
                    [{"name": m.name, "class": m.class_name or None, "similarity": m.similarity} for m in group]
                    for group in found.groups[:top]
                ],
            }
        )
        return
    say = Display(console).note
    where = f"at a cosine of {found.threshold:g} or more"
    if not found.groups:
        say(f"none of the {found.num_pictures:,} pictures is like another {where}")
    else:
        say(f"{found.num_members:,} of {found.num_pictures:,} pictures are in {len(found.groups):,} groups, {where}")
        rows = []
        for number, group in enumerate(found.groups[:top], start=1):
            for member in group[:SHOWN]:
                rows.append((str(number), f"{member.similarity:.3f}", member.class_name, member.name))
            if (more := len(group) - SHOWN) > 0:
                rows.append((str(number), "", "", f"and {more:,} more"))
        for line in _table(("group", "cosine", "class", "picture"), rows):
            say(line)
    if (more := len(found.groups) - top) > 0:
        say(f"and {more:,} more groups; --top shows more, --out FILE.csv writes all")
    if found.crowded:
        say(
            f"note: one group holds {max(map(len, found.groups)):,} pictures, so this encoder sees too much as the "
            f"same: raise --threshold, or train it longer ('msvq analyze' tells whether it has collapsed)"
        )
        higher = [threshold for threshold in HIGHER if threshold > found.threshold]
        counts = ", ".join(f"{found.at(threshold):,} at {threshold:g}" for threshold in higher)
        if counts:
            say(f"pictures that would be in a group: {counts}")
    for path in files:
        say(f"written  {path}")
    if found.skipped:
        say(tell_skipped(found.skipped))


def _table(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned lines; a column without entries is left out, and the last is as long as it needs to be."""
    used = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    cells = [[printable(row[c]).replace("\n", "\\n").replace("\t", "\\t") for c in used] for row in [titles, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(used))]
    return ["  ".join(["", *map(str.ljust, row, [*widths[:-1], 0])]) for row in cells]


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=1, default=str).encode(errors="backslashreplace").decode())  # noqa: T201
