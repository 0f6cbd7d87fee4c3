"""A linear classifier on features, from a few examples per class: its accuracy by cross-validation, and its file."""

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from msvq.core.errors import BadInput
from msvq.core.files import home, write_atomically
from msvq.data.sources.base import Positions

STRENGTHS = (1.0, 10.0, 100.0)  # inverse strengths of the penalty; unit features take large ones
FOLDS = 5
MOST = 20_000  # examples that a fit looks at: a fixed random choice of more
ROWS = 8192  # judged at a time
ABOUT = "about"


@dataclass(frozen=True)
class LinearClassifier:
    """Probabilities of classes from unit features: softmax of `weight` x + `bias`."""

    class_names: tuple[str, ...]
    weight: NDArray[np.float32]  # [C, d]
    bias: NDArray[np.float32]  # [C]
    accuracy: float  # by cross-validation, in percent
    num_examples: int
    encoder_key: str  # `weights_key` of the encoder whose features it knows

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each class [N, C], for unit features [N, d]."""
        parts = [np.zeros((0, len(self.bias)), np.float32)]
        for start in range(0, len(features), ROWS):
            logits = features[start : start + ROWS] @ self.weight.T + self.bias
            weights = np.exp(logits - logits.max(1, keepdims=True))
            parts.append(weights / weights.sum(1, keepdims=True))
        return np.concatenate(parts)


def fit_classifier(
    features: NDArray[np.float32], labels: NDArray[np.int64], class_names: tuple[str, ...], encoder_key: str
) -> LinearClassifier:
    """Learn from unit features [N, d] with labels [N]; every class has at least two."""
    judged = {strength: _cross_validate(features, labels, strength) for strength in STRENGTHS}
    # By the probability of the right class, not by accuracy: how sure it is shall mean something.
    best = max(STRENGTHS, key=lambda strength: judged[strength][0])
    weight, bias = _fit(features, labels, np.arange(len(labels)), best, len(class_names))
    return LinearClassifier(class_names, weight, bias, judged[best][1], len(labels), encoder_key)


def _cross_validate(features: NDArray[np.float32], labels: NDArray[np.int64], strength: float) -> tuple[float, float]:
    """The mean logarithm of the right class's probability, and the accuracy in percent, each row judged by others."""
    likelihood, is_right = np.zeros(len(labels)), np.zeros(len(labels), np.bool_)
    for rows, predicted in out_of_fold(features, labels, strength):
        likelihood[rows] = np.log(predicted[np.arange(len(rows)), labels[rows]] + 1e-12)
        is_right[rows] = predicted.argmax(1) == labels[rows]
    return float(likelihood.mean()), 100 * float(is_right.mean())


def out_of_fold(
    features: NDArray[np.float32], labels: NDArray[np.int64], strength: float = 10.0
) -> Iterator[tuple[Positions, NDArray[np.float32]]]:
    """Some rows [n] at a time, and their probabilities [n, C] by a classifier that has learned from others alone."""
    num_classes = int(labels.max()) + 1
    counts = np.bincount(labels)
    folds = StratifiedKFold(min(FOLDS, int(counts[counts > 0].min())), shuffle=True, random_state=0)
    for learned, asked in folds.split(labels[:, None], labels):
        weight, bias = _fit(features, labels, learned, strength, num_classes)
        model = LinearClassifier((), weight, bias, 0, 0, "")
        for start in range(0, len(asked), ROWS):
            rows = asked[start : start + ROWS]
            yield rows, model.probabilities(features[rows])


def _fit(
    features: NDArray[np.float32], labels: NDArray[np.int64], rows: Positions, strength: float, num_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight [C, d] and bias [C] from some rows; a class that is not among their labels is never likely."""
    if len(rows) > MOST:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST, replace=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough: what counts is measured
        model = LogisticRegression(C=strength, max_iter=300).fit(features[rows], labels[rows])
    weight = np.zeros((num_classes, features.shape[1]), np.float32)
    bias = np.full(num_classes, -1e4, np.float32)
    if len(model.classes_) == 2:  # scikit-learn has one row for two classes
        weight[model.classes_] = np.concatenate([-model.coef_, model.coef_]) / 2
        bias[model.classes_] = np.concatenate([-model.intercept_, model.intercept_]) / 2
    else:
        weight[model.classes_], bias[model.classes_] = model.coef_, model.intercept_
    return weight, bias


# --- saved under a name


def classifier_path(name: str) -> Path:
    """The file of a classifier: in the cache, under a name that any disk takes."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise BadInput(f"{name!r} is no name for a classifier; take letters, digits and dashes: cat-or-dog")
    return home() / "classifiers" / f"{name}.safetensors"


def save_classifier(name: str, classifier: LinearClassifier) -> Path:
    """Write it; one of the same name is replaced."""
    path = classifier_path(name)
    about = {
        "class_names": classifier.class_names,
        "accuracy": classifier.accuracy,
        "num_examples": classifier.num_examples,
        "encoder": classifier.encoder_key,
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    content = save({"weight": classifier.weight, "bias": classifier.bias, ABOUT: text})
    write_atomically(path, lambda file: file.write(content))
    return path


def load_classifier(name: str) -> LinearClassifier:
    """Read one that was saved."""
    path = classifier_path(name)
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.safetensors"))
        there = f"; there are {', '.join(known[:10])}" if known else "; make one with --examples and --save"
        raise BadInput(f"there is no classifier {name!r}{there}")
    try:
        arrays = read_safetensors(path.read_bytes())
        about = json.loads(arrays[ABOUT].tobytes())
        made = LinearClassifier(
            tuple(map(str, about["class_names"])),
            arrays["weight"],
            arrays["bias"],
            float(about["accuracy"]),
            int(about["num_examples"]),
            str(about["encoder"]),
        )
        if made.weight.shape[:1] != made.bias.shape or len(made.bias) != len(made.class_names):
            raise ValueError("shapes")
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is damaged; make it anew with --examples and --save {name}") from None
    return made
