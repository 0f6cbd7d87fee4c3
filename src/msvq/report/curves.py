"""Which curves the page draws, from which keys of `metrics.jsonl`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from msvq.report.chart import Series, line_chart
from msvq.report.records import Points, Record

MAX_POINTS = 200
ALL = "all"  # the soft labels together


class Curve(NamedTuple):
    """One chart: a key of the log, told for a reader."""

    key: str
    title: str
    note: str = ""
    unit: str = ""
    kind: str = "eval"


MAIN = (
    Curve("knn_top1", "kNN accuracy", "How often nearest neighbours vote for the right class. Higher is better.", " %"),
    Curve(
        "loss",
        "Loss",
        "The targets move with the teachers and queues, so a loss that stays level may still teach.",
        kind="step",
    ),
    Curve("rank", "Rank of the features", "Directions that the features really use. Near 1: the encoder collapsed."),
    Curve("feature_spread", "Spread of the features", "How far pictures lie apart, 0 to 1. Near 0: it collapsed."),
    Curve("lr", "Learning rate", "A rise to warm up, then a slow fall to 0 is as it should be.", kind="step"),
)
MORE = (
    Curve("false_negatives.all", "False negatives found", "By all soft labels together, for each picture."),
    Curve("knn_top1_val", "kNN accuracy, validation", "On labelled pictures that are kept out of the vote.", " %"),
    Curve("alignment", "Alignment", "Distance of two views of one picture. Lower: views agree."),
    Curve("uniformity", "Uniformity", "How evenly pictures spread over the sphere. Lower: more evenly."),
    Curve("embedding_rank", "Rank of the embedding", "As above, behind the projection head."),
    Curve("embedding_spread", "Spread of the embedding", "As above, behind the projection head."),
    Curve("kl", "Divergence from the targets", "The part of the loss that the student can still remove.", kind="step"),
    Curve("same_class_share", "Same class in the queue", "Share of the negatives that are false ones."),
    Curve("disagreement", "Disagreement of soft labels", "0: all find the same pictures, so one would do."),
    Curve("queue_filled", "Queue filled", "How much of the queue holds pictures already."),
    Curve("queue_age", "Age of the queue", "How long negatives have waited. Old ones were seen by an older teacher."),
    Curve("images_per_second", "Pictures per second", kind="epoch"),
)
# Several curves of one run in one chart.
TEACHERS = {
    "student_teacher1": "student and teacher 1",
    "student_teacher2": "student and teacher 2",
    "teacher1_teacher2": "teacher 1 and teacher 2",
}


def smooth(points: Points, num: int = MAX_POINTS) -> Points:
    """At most `num` points, each the mean of its stretch of the curve."""
    chunks = np.array_split(np.array(points, dtype=float), min(num, len(points)))
    return [(float(chunk[-1, 0]), float(chunk[:, 1].mean())) for chunk in chunks]


def charts(records: Sequence[Record], curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A chart for each curve that some run has, the runs overlaid."""
    # Where an epoch's length is not known yet, all are told in steps.
    in_steps = any(record.steps_per_epoch is None and record.last_step > 0 for record in records)
    drawn = []
    for curve in curves:
        found = [(record.title, record.curve(curve.key, curve.kind, in_steps=in_steps)) for record in records]
        if curve.key == "knn_top1":
            reasons = {record.why_curve_differs: None for record in records if record.why_curve_differs}
            curve = curve._replace(note=" ".join([curve.note, *reasons]))
        drawn += _chart(curve, found, x_label="step" if in_steps and curve.kind == "step" else "epoch")
    return drawn


def teacher_charts(record: Record) -> list[dict[str, Any]]:
    """How far student and teachers are from one another, in one chart."""
    note = "Relative distance of their weights. 0: one and the same. Growing without end: the rate is too high."
    return _chart(
        Curve("", "Student and teachers", note), [(name, record.curve(key)) for key, name in TEACHERS.items()]
    )


def false_negative_charts(record: Record) -> list[dict[str, Any]]:
    """What the soft labels found over the epochs, as the paper's figure 5; and how they weigh."""
    found = Curve(
        "",
        "False negatives found, of the top 5",
        "“all” counts what the labels find together: the further above the others, the more they add to one another.",
    )
    mass = Curve("", "Weight on the right class", "Share of a soft label that lies on pictures of the query's class.")
    entropy = Curve("", "Entropy of the soft labels", "0: all weight on one picture. High: spread over many.")
    labels = views(record)
    return [
        *_chart(found, [(view, record.curve(f"false_negatives.{view}")) for view in (*labels, ALL)]),
        *_chart(mass, [(view, record.curve(f"soft_labels.{view}.mass")) for view in labels]),
        *_chart(entropy, [(view, record.curve(f"soft_labels.{view}.entropy")) for view in labels]),
    ]


def views(record: Record) -> list[str]:
    """The views whose soft labels the run has logged, such as view2."""
    found = (line.get(key) for line in record.metrics for key in ("soft_labels", "false_negatives"))
    return sorted({str(name) for names in found if isinstance(names, dict) for name in names} - {ALL})


def _chart(curve: Curve, found: Sequence[tuple[str, Points]], *, x_label: str = "epoch") -> list[dict[str, Any]]:
    """Names and their points in one chart; none if there is nothing to draw a line through."""
    series = [Series(name, smooth(points), style) for style, (name, points) in enumerate(found) if len(points) > 1]
    if not series:
        return []
    chart = line_chart(series, x_label=x_label, y_label=curve.title, unit=curve.unit)
    return [{"title": curve.title, "note": curve.note, "chart": chart}]
