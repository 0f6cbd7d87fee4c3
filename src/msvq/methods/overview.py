"""What `msvq methods` shows, counted on the methods themselves."""

from collections import Counter

from msvq.methods import METHODS
from msvq.model.queue import Queue
from msvq.model.resnet import ResNet
from msvq.model.teacher import Teacher


def overview() -> list[dict[str, str | int]]:
    """One row per method, by building each on a tiny backbone and counting its parts."""
    rows: list[dict[str, str | int]] = []
    for name, kind in METHODS.items():
        facts = {"num_classes": 10} if kind.needs_labels else {}
        method = kind(ResNet(width=1), **facts)
        parts = list(method.modules())
        rows.append(
            {
                "name": name,
                "paper": kind.paper,
                "views": " + ".join(f"{num} {view}" for view, num in Counter(method.views).items()),
                "teachers": sum(isinstance(part, Teacher) for part in parts),
                "queues": sum(isinstance(part, Queue) for part in parts),
                "student passes": kind.student_passes,
            }
        )
    return rows
