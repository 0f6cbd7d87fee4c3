"""What `msvq methods` shows, counted on the methods themselves."""

from collections import Counter

from msvq.methods import METHODS
from msvq.model.queue import Queue
from msvq.model.resnet import ResNet
from msvq.model.teacher import Teacher

COUNTED = {"teachers": Teacher, "queues": Queue}


def overview() -> list[dict[str, str | int]]:
    """One row per method, by building each on a tiny backbone and counting its parts."""
    rows: list[dict[str, str | int]] = []
    for name, method_class in METHODS.items():
        facts = {"num_classes": 10} if method_class.needs_labels else {}
        method = method_class(ResNet(width=1), **facts)
        parts = list(method.modules())
        views = " + ".join(f"{num} {view}" for view, num in Counter(method.views).items())
        row: dict[str, str | int] = {"name": name, "paper": method_class.paper, "views": views}
        row |= {title: sum(isinstance(part, kind) for part in parts) for title, kind in COUNTED.items()}
        rows.append({**row, "student passes": method_class.student_passes})
    return rows
