"""`msvq mislabelled`: labels that a picture's neighbours and a classifier that has not seen it contradict."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.sources.base import ImageSource, Positions
from msvq.report.pictures import class_name
from msvq.search.classifier import out_of_fold
from msvq.search.findings import Findings, make_card, open_features, open_pictures
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.neighbours import approximation_notes, nearest_neighbours
from msvq.search.page import Group

NEIGHBOURS = 10
TRUSTED = 0.7  # share of labels that a classifier agrees with, below which a warning is due
SHOWN = 6  # neighbours beside a picture on the page


@dataclass(frozen=True, kw_only=True)
class Mislabelled(Findings):
    """Pictures whose label is contradicted, the worst first."""

    positions: NDArray[np.int64]  # [n] in the source
    suspicion: NDArray[np.float64]  # [n]: 0..1
    suggested: NDArray[np.int64]  # [n]: the label that they look like


def find_mislabelled(
    inputs: Inputs,
    *,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Mislabelled:
    """Labelled pictures that both their neighbours and an out-of-fold classifier put into another class."""
    display = display or Display()
    encoder, source = open_pictures(inputs, out, html, display)
    find_judged(source, source.labels)
    index = open_features(encoder, source, display)
    labels = source.labels[index.kept]
    rows = find_judged(source, labels)
    features, given = (index.features if len(rows) == len(index) else np.array(index.features[rows])), labels[rows]
    cosines, near = nearest_neighbours(features, NEIGHBOURS, display, "comparing features")
    with display.busy("judging each label without itself"):
        classes, numbers = np.unique(given, return_inverse=True)
        suspicion, other, agrees = judge_labels(features, numbers, cosines, near)
    order = np.argsort(-suspicion, kind="stable")
    order = order[suspicion[order] > 0]
    notes = [*approximation_notes(len(features))]
    if len(rows) < int((labels >= 0).sum()):
        notes.append("pictures that are alone in their class are left out")
    if agrees < TRUSTED:
        notes.append(
            f"by this encoder a classifier agrees with {agrees:.0%} of the labels only, so many of these are its own "
            f"mistakes: a better encoder tells more"
        )
    found = _describe(index, rows, order, suspicion, classes[other], near, tuple(notes))
    found.write(out, html)
    return found


def find_judged(source: ImageSource, labels: NDArray[np.int64]) -> Positions:
    """Rows of the labels that others have too, of two classes or more."""
    rows = np.flatnonzero(labels >= 0)
    counts = np.bincount(labels[rows]) if len(rows) else np.zeros(0, np.int64)
    rows = rows[counts[labels[rows]] >= 2]
    if len(np.unique(labels[rows])) < 2:
        raise BadInput(
            f"{source.title} has no labels to judge: it takes two classes with two pictures each, such as a subfolder "
            f"per class"
        )
    return rows


def neighbour_votes(cosines: NDArray[np.float32], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Shares [N, C] of each class among neighbours [N, k], the nearer weighing more (as kNN at temperature 0.1)."""
    weights = np.exp((cosines - cosines.max(1, keepdims=True)) / 0.1).astype(np.float64)
    votes = np.zeros((len(labels), num_classes))
    for place in range(labels.shape[1]):
        votes[np.arange(len(labels)), labels[:, place]] += weights[:, place]
    shares: NDArray[np.float64] = votes / votes.sum(1, keepdims=True)
    return shares


def judge_labels(
    features: NDArray[np.float32], labels: NDArray[np.int64], cosines: NDArray[np.float32], near: Positions
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """How suspicious each label is (0: nothing contradicts it), and the class that speaks most against it.

    Neighbours [N, k] and classifier must both prefer another class than the label, and be as sure of one as they are,
    on average, of the pictures that carry its label (the rule of confident learning, Northcutt et al., arXiv
    1911.00068). The suspicion is by how much they prefer it, on average. Also the share of labels that the classifier
    agrees with.
    """
    num_classes = int(labels.max()) + 1
    own, preferred, other = np.zeros(len(labels)), np.zeros(len(labels)), np.zeros(len(labels), np.int64)
    agrees, contradicted = np.zeros(len(labels), np.bool_), np.zeros(len(labels), np.bool_)
    for rows, predicted in out_of_fold(features, labels):
        given, places = labels[rows], np.arange(len(rows))
        votes = neighbour_votes(cosines[rows], labels[near[rows]], num_classes)
        agrees[rows] = predicted.argmax(1) == given
        contradicted[rows] = ~agrees[rows] & (votes.argmax(1) != given)
        together = (votes + predicted) / 2
        own[rows] = together[places, given]
        together[places, given] = -1
        other[rows], preferred[rows] = together.argmax(1), together.max(1)
    usual = np.bincount(labels, own, num_classes) / np.maximum(np.bincount(labels, minlength=num_classes), 1)
    listed = contradicted & (preferred >= usual[other])
    return np.where(listed, np.maximum(preferred - own, 0), 0), other, float(agrees.mean())


def _describe(
    index: Index,
    rows: Positions,
    order: NDArray[np.int64],
    suspicion: NDArray[np.float64],
    suggested: NDArray[np.int64],
    near: Positions,
    notes: tuple[str, ...],
) -> Mislabelled:
    listed, groups = [], []
    for rank, place in enumerate(order.tolist(), start=1):
        looks_like = class_name(index.source.class_names, int(suggested[place]))
        score = float(suspicion[place])
        lead = make_card(index, int(rows[place]), f"{score:.2f}")
        listed.append((rank, round(score, 4), lead.name, lead.class_name, looks_like))
        cards = [make_card(index, int(rows[other]), "") for other in near[place, :SHOWN].tolist()]
        groups.append(Group(f"{lead.class_name}, or {looks_like}?", "Beside it: what it looks like most.", cards, lead))
    sentence = (
        f"{len(order):,} of {len(rows):,} labels in {index.source.title} are contradicted by the picture's neighbours "
        f"and by a classifier that has not seen it, the worst first."
    )
    return Mislabelled(
        title="Labels that may be wrong",
        sentence=sentence,
        columns=("rank", "suspicion", "file", "class", "looks_like"),
        rows=tuple(listed),
        groups=tuple(groups),
        source=index.source,
        skipped=index.left_out,
        notes=notes,
        positions=index.kept[rows[order]],
        suspicion=suspicion[order],
        suggested=suggested[order],
    )
