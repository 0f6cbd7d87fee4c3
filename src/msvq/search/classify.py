"""`msvq classify`: every picture with a class and how sure that is, by a classifier from a few examples per class."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.data.sources import DataSettings, find_images
from msvq.data.sources.base import ImageSource, Positions
from msvq.runs.encoder import LoadedEncoder
from msvq.search.classifier import (
    LinearClassifier,
    classifier_path,
    fit_classifier,
    load_classifier,
    save_classifier,
)
from msvq.search.findings import PAGE_PICTURES, Cell, Findings, make_card, open_features, open_pictures
from msvq.search.index import Index, open_index
from msvq.search.inputs import Inputs
from msvq.search.page import Card, Group

LAYOUT = "a folder with a subfolder per class, or a .csv with the columns file and label"


@dataclass(frozen=True, kw_only=True)
class Classified(Findings):
    """Every picture with its class, the least sure first."""

    positions: NDArray[np.int64]  # [N] in the source, in the order of the rows
    probabilities: NDArray[np.float32]  # [N, C], in the same order
    classifier: LinearClassifier
    encoder: LoadedEncoder


def classify_pictures(
    inputs: Inputs,
    *,
    examples: str | Path | None = None,
    use: str | None = None,
    save: str | None = None,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Classified:
    """Classify all pictures by a classifier from `examples` (class folders, or a CSV), or by one that was saved.

    `save`: keep the classifier under this name, by which `use` finds it.
    """
    display = display or Display()
    if (examples is None) == (use is None):
        raise BadInput("give --examples, pictures of each class, or --use with the name of a saved classifier")
    if save is not None:
        classifier_path(save)
    given = load_classifier(use) if use is not None else find_examples(str(examples), display)
    encoder, source = open_pictures(inputs, out, html, display)
    if not isinstance(given, LinearClassifier):
        classifier = learn_from(given, encoder, display)
    elif given.encoder_key == encoder.weights_key:
        classifier = given
    else:
        raise BadInput(f"the classifier {use!r} was made with another encoder; make it anew with --examples")
    index = open_features(encoder, source, display)
    if save is not None:
        save_classifier(save, classifier)
    probabilities = classifier.probabilities(index.features)
    found = _describe(index, encoder, classifier, probabilities)
    found.write(out, html)
    return found


def find_examples(examples: str, display: Display) -> ImageSource:
    """The labelled pictures that `examples` names, none decoded yet: two or more of each of two or more classes."""
    source = find_images(DataSettings(source=examples), display=display, keep_all=True)
    folder = expanduser(examples)
    if folder.is_dir():
        holds = {name.partition(os.sep)[0] for name in source.names}
        empty = [p.name for p in sorted(folder.iterdir()) if p.is_dir() and p.name[0] != "." and p.name not in holds]
        if empty:
            raise BadInput(f"--examples: the class {printable(empty[0])!r} has no picture; put two or more into it")
    if not source.class_names or not (source.labels >= 0).any():
        raise BadInput(f"--examples {examples!r} names no classes with two examples each; it is {LAYOUT}")
    if len(source.class_names) < 2:
        raise BadInput(f"--examples has the class {printable(source.class_names[0])!r} alone, and a choice takes two")
    _check_counts(source, source.labels)
    return source


def _check_counts(source: ImageSource, labels: NDArray[np.int64]) -> None:
    counts = np.bincount(labels[labels >= 0], minlength=len(source.class_names))
    for name, count in zip(source.class_names, counts.tolist(), strict=True):
        if count < 2:
            has = "no readable picture" if not count else "one example"
            raise BadInput(f"--examples: the class {printable(name)!r} has {has}; give it two or more, better ten")


def learn_from(source: ImageSource, encoder: LoadedEncoder, display: Display) -> LinearClassifier:
    """A classifier from labelled pictures."""
    index = open_index(source, encoder, display)
    labels = source.labels[index.kept]
    _check_counts(source, labels)
    features, names = np.array(index.features[labels >= 0]), tuple(map(printable, source.class_names))
    with display.busy("learning from the examples"):
        return fit_classifier(features, labels[labels >= 0], names, encoder.weights_key)


def _describe(
    index: Index, encoder: LoadedEncoder, classifier: LinearClassifier, probabilities: NDArray[np.float32]
) -> Classified:
    names, sure, chosen = classifier.class_names, probabilities.max(1), probabilities.argmax(1)
    order = np.argsort(sure, kind="stable")
    rows: list[tuple[Cell, ...]] = []
    for row in order.tolist():
        second = int(np.argsort(-probabilities[row], kind="stable")[1])
        match = index.match(row, float(sure[row]))
        rows.append((match.name, names[chosen[row]], round(match.similarity, 4), names[second], match.class_name))

    def cards(some: Positions) -> list[Card]:
        """Of the first rows, as many as a page has room for."""
        shown = some[:PAGE_PICTURES].tolist()
        return [make_card(index, row, f"{names[chosen[row]]} {sure[row]:.0%}") for row in shown]

    advice = "Look at these: it learns most from them, once they are among the examples with their right class."
    groups, surest = [Group("The least sure first", advice, cards(order))], order[::-1]
    for number, name in enumerate(names):
        of_class = surest[chosen[surest] == number]
        groups.append(Group(f"{name}: {len(of_class):,} pictures", "The surest first.", cards(of_class)))
    sentence = (
        f"The classifier is right for {classifier.accuracy:.1f} % of its {classifier.num_examples:,} examples, each "
        f"judged without itself (cross-validation; by chance {100 / len(names):.1f} %). Below: {len(index):,} pictures "
        f"in {index.source.title}, the least sure first."
    )
    return Classified(
        title="Pictures by class",
        sentence=sentence,
        columns=("file", "predicted", "confidence", "second", "class"),
        rows=tuple(rows),
        groups=tuple(groups),
        source=index.source,
        skipped=index.left_out,
        positions=index.kept[order],
        probabilities=probabilities[order],
        classifier=classifier,
        encoder=encoder,
    )
