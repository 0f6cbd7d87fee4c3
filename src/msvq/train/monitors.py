"""What is measured between epochs: kNN accuracy; health of features, teachers and queues; the audit of soft labels."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from msvq.core.distributed import all_gather
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.diagnostics.collapse import watch_for_collapse
from msvq.evaluate.diagnostics.false_negatives import Audit
from msvq.evaluate.diagnostics.health import AnalyzeSettings, Pairs, measure_health, queue_health, teacher_distances
from msvq.evaluate.features import Features, fit_whitening
from msvq.evaluate.knn import EvaluateSettings, knn_accuracy
from msvq.evaluate.labels import held_out
from msvq.train.callbacks import TrainerCallback
from msvq.train.trainer import StepOutput, Trainer

VALIDATION_SEED = 0  # the same pictures in every run, so that runs compare


def is_due(epoch: int, every: int, epochs: int) -> bool:
    """Every so many epochs, before the first and after the last."""
    return epoch % every == 0 or epoch == epochs


class WhiteningMonitor(TrainerCallback):
    """Fits the encoder's last layer to the features it has now, before anything else looks at them or keeps them."""

    def __init__(self, pictures: ImageSplit, *, every: int, features: Features) -> None:
        self.pictures, self.every, self.features = pictures, every, features
        self.fitted_at: int | None = None  # step

    def on_epoch_end(self, trainer: Trainer) -> Mapping[str, float]:
        """Nothing for the log."""
        if is_due(trainer.epoch, self.every, trainer.settings.epochs):
            self.on_save(trainer)
        return {}

    def on_save(self, trainer: Trainer) -> None:
        """A checkpoint may be used as it is, before the next look or after a run that was stopped."""
        if self.fitted_at != trainer.step:
            fit_whitening(trainer.method.encoder, self.features, self.pictures)
            self.fitted_at = trainer.step


class KnnMonitor(TrainerCallback):
    """Measures kNN accuracy and remembers the best, by test pictures and by held-out ones.

    Whenever the held-out pictures say that the encoder has never been better, it is saved.
    """

    def __init__(self, data: ImageDataset, settings: EvaluateSettings, *, features: Features) -> None:
        self.bank, self.test = data.labelled.subsample(settings.knn_bank), data.test
        self.settings, self.features = settings, features
        self.rest, self.held = np.arange(len(self.bank)), np.arange(0)
        if settings.validation:
            self.rest, self.held = held_out(self.bank.labels, settings.validation, seed=VALIDATION_SEED)
        self.best = self.best_val = 0.0

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """`knn_top1` of the test pictures, and `knn_top1_val` of the held-out ones."""
        bank, test = (self.features(encoder, part) for part in (self.bank, self.test))
        known, truth = self.bank.labels_as_read(), self.test.labels_as_read()
        vote = partial(knn_accuracy, k=self.settings.knn_k, temp=self.settings.knn_temp)
        found = {"knn_top1": vote(bank, test, (known, truth))}
        if len(self.held):
            rest, held = bank[self.rest], bank[self.held]
            found["knn_top1_val"] = vote(rest, held, (known[self.rest], known[self.held]))
        return found

    def on_epoch_end(self, trainer: Trainer) -> Mapping[str, float]:
        """What `measure` gives, and `knn_top1_best` over the epochs trained so far."""
        if not is_due(trainer.epoch, self.settings.every, trainer.settings.epochs):
            return {}
        found = self.measure(trainer.method.encoder)
        if trainer.epoch == 0:  # the untrained encoder is no candidate
            return found
        self.best = max(self.best, found["knn_top1"])
        if found.get("knn_top1_val", 0.0) > self.best_val:
            self.best_val = found["knn_top1_val"]
            trainer.save_best()
        return {**found, "knn_top1_best": self.best}

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best, "best_val": self.best_val}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.best, self.best_val = float(state["best"]), float(state["best_val"])


class AnalysisMonitor(TrainerCallback):
    """Measures the encoder's health, warns of a collapse, and audits the soft labels of an epoch's last batches."""

    def __init__(
        self,
        pictures: ImageSplit,
        settings: AnalyzeSettings,
        *,
        every: int,
        features: Features,
        pairs: Pairs | None = None,
    ) -> None:
        self.every, self.batches = every, settings.batches
        self.measure_health = partial(measure_health, pictures=pictures, features=features, pairs=pairs)
        self.audit = Audit()
        self.audited: int | None = None  # the epoch that the audit is of
        self.history: list[dict[str, float]] = []
        self.state: str | None = None  # of a collapse

    def on_step(self, trainer: Trainer, output: StepOutput) -> None:
        """Audit the soft labels, if the step is one of the last of an epoch that is looked at."""
        left = min(-trainer.step % len(trainer.loader), trainer.total_steps - trainer.step)
        if left >= self.batches or not is_due(trainer.epoch, self.every, trainer.settings.epochs):
            return
        if self.audited != trainer.epoch:  # a run that goes on with other settings may have left a part of an audit
            self.audit.reset()
        self.audited = trainer.epoch
        for soft_labels, labels in output.soft_labels:
            whole = [soft_label._replace(z=all_gather(soft_label.z)) for soft_label in soft_labels]
            self.audit.add(whole, all_gather(labels))

    def on_epoch_end(self, trainer: Trainer) -> Mapping[str, Any]:
        """The numbers, by the names they get in the log."""
        if not is_due(trainer.epoch, self.every, trainer.settings.epochs):
            return {}
        numbers = {**self.measure_health(trainer.method), **teacher_distances(trainer.method)}
        ages = queue_health(trainer.method, steps=trainer.step)
        numbers |= {f"queue_{name}": value for name, value in ages.items()}
        self.history.append(numbers)
        now = watch_for_collapse(self.history)
        if now is not None and now.state != self.state and now.state in ("collapsing", "collapsed"):
            trainer.announce(" ".join([f"warning: {now.sentence}", *now.advice]))
        self.state = None if now is None else now.state
        found = curves(self.audit.result())
        self.audit.reset()
        return {**numbers, **found}

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far, and the audit as far as it is."""
        audit = {"audit": self.audit.state_dict(), "audited": self.audited}
        return {"history": self.history, "state": self.state, **audit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.history = [{key: float(value) for key, value in line.items()} for line in state["history"]]
        self.state, self.audited = state["state"], state["audited"]
        self.audit.load_state_dict(state["audit"])


def curves(audit: Mapping[str, Any]) -> dict[str, Any]:
    """What of an audit is worth a curve, by the names of the log; nothing if nothing was audited."""
    views = [name for name in audit if name.startswith("view")]
    if not views:
        return {}
    found = {name: audit[name]["found"] for name in (*views, "all")}
    labels = {name: {key: audit[name][key] for key in ("mass", "entropy")} for name in views}
    lines: dict[str, Any] = {"soft_labels": labels, "disagreement": audit["disagreement"]}
    if None in found.values():
        return lines
    return {"false_negatives": found, "same_class_share": audit["same_class_share"], **lines}
