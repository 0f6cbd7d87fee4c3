"""What is looked at while a run trains: health of features, teachers and queues, and the audit of the soft labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge
from torch import Tensor

from msvq.core.schema import MayChange, Section
from msvq.evaluate.diagnostics.collapse import Verdict, verdict
from msvq.evaluate.diagnostics.false_negatives import Audit
from msvq.evaluate.diagnostics.health import HealthMonitor, queue_health, teacher_distances
from msvq.methods.base import Method, SoftLabel


class AnalyzeSettings(Section):
    """How often a run looks at itself, and at how much."""

    every: Annotated[Annotated[int, Ge(1)] | None, MayChange.TRAINING] = None  # epochs between; None: as evaluate.every
    batches: Annotated[int, Ge(1), MayChange.TRAINING] = 20  # the last of such an epoch: their soft labels are audited
    map: Annotated[int, Ge(0), MayChange.UPKEEP] = 1500  # pictures on the embedding map after training; 0: no map


class AnalysisMonitor:
    """Measures between epochs, and audits the soft labels of an epoch's last batches as they are made.

    `warn` is called when the verdict turns for the worse.
    """

    def __init__(
        self,
        health: HealthMonitor,
        settings: AnalyzeSettings,
        *,
        steps_per_epoch: int,
        warn: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        self.health, self.warn = health, warn
        self.steps, self.first = steps_per_epoch, max(0, steps_per_epoch - settings.batches)
        self.audit = Audit()
        self.audited: int | None = None  # the epoch that the audit is of
        self.history: list[dict[str, float]] = []
        self.state = "unknown"

    def due(self, epoch: int) -> bool:
        """Every `analyze.every` epochs, before the first and after the last."""
        return self.health.due(epoch)

    def wants(self, step: int) -> bool:
        """Whether the step, counted from 0, is one of the last of an epoch that is looked at.

        With the first of them the audit begins anew: an epoch that is no longer looked at, because the run goes on with
        other settings, may have left a part of one.
        """
        epoch = step // self.steps + 1
        wanted = step % self.steps >= self.first and self.due(epoch)
        if wanted and self.audited not in (None, epoch):
            self.audit.reset()
        self.audited = epoch if wanted else self.audited
        return wanted

    def observe(self, soft_labels: Sequence[SoftLabel], labels: Tensor) -> None:
        """Audit the soft labels of a batch."""
        if soft_labels:
            self.audit.add(soft_labels, labels)

    def measure(self, method: Method, epoch: int) -> Mapping[str, Any]:
        """The numbers, by the names they get in the log."""
        numbers = {**self.health.measure(method, epoch), **teacher_distances(method)}
        ages = queue_health(method, steps=epoch * self.steps)
        numbers |= {f"queue_{name}": value for name, value in ages.items()}
        self.history.append(numbers)
        self._judge()
        found = curves(self.audit.result())
        self.audit.reset()
        return {**numbers, **found}

    def _judge(self) -> None:
        now = verdict(self.history)
        if now.state != self.state and now.state in ("collapsing", "collapsed"):
            self.warn(now)
        self.state = now.state

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far, and the audit as far as it is."""
        audit = {"audit": self.audit.state_dict(), "audited": self.audited}
        return {"history": self.history, "state": self.state, **audit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.history = [{key: float(value) for key, value in line.items()} for line in state["history"]]
        self.state = state["state"]
        self.audit.load_state_dict(state["audit"])
        self.audited = state.get("audited")


def curves(audit: Mapping[str, Any]) -> dict[str, Any]:
    """What of an audit is worth a curve, by the names of the log; nothing if nothing was audited."""
    views = [name for name in audit if name.startswith("view")]
    if not views:
        return {}
    found = {name: audit[name]["found"] for name in (*views, "all")}
    labels = {name: {key: audit[name][key] for key in ("mass", "entropy")} for name in views}
    lines = (
        {"false_negatives": found, "same_class_share": audit["same_class_share"]} if None not in found.values() else {}
    )
    return {**lines, "soft_labels": labels, "disagreement": audit["disagreement"]}
