"""How many unreadable pictures are too many."""

from collections import Counter

from msvq.core.errors import BadInput


def check_skipped(num: int, total: int, max_skipped: float, reasons: Counter[str], *, first: bool = False) -> None:
    """Raise if more pictures cannot be read than the settings allow; `first`: there are more than these."""
    if num > max_skipped * total or num == total:
        kinds: Counter[str] = Counter()
        for reason, count in reasons.items():
            kinds[reason.partition(":")[0]] += count
        why = ", ".join(f"{count:,} {reason!r}" for reason, count in kinds.most_common(3))
        if num <= max_skipped * total:
            raise BadInput(f"none of the {total:,} pictures can be read ({why}); 'msvq doctor' lists them")
        raise BadInput(
            f"{num:,} of {'the first ' if first else ''}{total:,} pictures cannot be read ({why}), more than "
            f"data.max_skipped = {max_skipped:g} allows; 'msvq doctor' lists them, "
            f"--set data.max_skipped=... allows more"
        )
