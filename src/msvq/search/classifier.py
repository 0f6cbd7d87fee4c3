"""A linear classifier on features, from a few examples per class: its accuracy by cross-validation, and its file."""

import json
import re
import warnings
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

STRENGTHS = (1.0, 10.0, 100.0)  # inverse strengths of the penalty; unit features take large ones
FOLDS = 5
MOST = 20_000  # examples that a fit looks at: a fixed random choice of more
ROWS = 65_536
ABOUT = "about"


@dataclass(frozen=True)
class LinearClassifier:
    """Probabilities of classes from unit features: softmax of `weight` x + `bias`."""

    class_names: tuple[str, ...]
    weight: NDArray[np.float32]  # [C, d]
    bias: NDArray[np.float32]  # [C]
    accuracy: float  # by cross-validation, in percent
    num_examples: int
    encoder_key: str  # of the encoder whose features it knows

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
    rows = np.arange(len(labels))
    judged = {strength: out_of_fold(features, labels, strength) for strength in STRENGTHS}
    # By the probability of the right class, not by accuracy: how sure it is shall mean something.
    best = max(STRENGTHS, key=lambda strength: np.log(judged[strength][rows, labels] + 1e-12).mean())
    accuracy = 100 * float((judged[best].argmax(1) == labels).mean())
    weight, bias = _fit(features, labels, best, len(class_names))
    return LinearClassifier(class_names, weight, bias, accuracy, len(labels), encoder_key)


def out_of_fold(
    features: NDArray[np.float32], labels: NDArray[np.int64], strength: float = 10.0
) -> NDArray[np.float32]:
    """Probabilities [N, C] for each row by a classifier that has learned from other rows alone."""
    num_classes = int(labels.max()) + 1
    counts = np.bincount(labels)
    folds = StratifiedKFold(min(FOLDS, int(counts[counts > 0].min())), shuffle=True, random_state=0)
    found = np.zeros((len(labels), num_classes), np.float32)
    for learned, asked in folds.split(labels[:, None], labels):
        weight, bias = _fit(features[learned], labels[learned], strength, num_classes)
        model = LinearClassifier((), weight, bias, 0, 0, "")
        found[asked] = model.probabilities(np.array(features[asked]))
    return found


def _fit(
    features: NDArray[np.float32], labels: NDArray[np.int64], strength: float, num_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight [C, d] and bias [C]; a class that is not among the labels is never likely."""
    if len(labels) > MOST:
        chosen = np.sort(np.random.default_rng(0).choice(len(labels), MOST, replace=False))
        features, labels = features[chosen], labels[chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough: what counts is measured
        model = LogisticRegression(C=strength, max_iter=300).fit(features, labels)
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


def load_classifier(name: str, encoder_key: str) -> LinearClassifier:
    """Read one that was saved, if it is of this encoder."""
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
    if made.encoder_key != encoder_key:
        raise BadInput(f"the classifier {name!r} was made with another encoder; make it anew with --examples")
    return made
