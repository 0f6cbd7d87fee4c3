"""The audit of the soft labels: how many false negatives they find, and how sure they are.

A false negative is an entry of the queue of the sample's own class: a one-hot target pushes it away, a soft label
should give it weight. Labels are looked at here and nowhere in the loss.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msvq.methods.base import SoftLabel
from msvq.model.losses import similarity
from msvq.model.relations import rows_at_once

TOP = 5  # entries of the queue that count as found
ALL = "all"  # the soft labels together
COUNT, FOUND, MASS = range(3)


class Tally:
    """Sums over samples: of the soft labels' entropy, and by class of what they find."""

    def __init__(self) -> None:
        self.num, self.entropy = 0, 0.0
        self.by_class = torch.zeros(3, 0, dtype=torch.float64)  # samples, entries found, mass on the own class

    def add(self, labels: Tensor, found: Tensor, mass: Tensor, entropy: Tensor) -> None:
        """Samples, [N] each, on the processor; those without a label count for the entropy alone."""
        self.num += len(labels)
        self.entropy += float(entropy.sum(dtype=torch.float64))
        known = labels >= 0
        if not bool(known.any()):
            return
        classes, values = labels[known], torch.stack([known, found, mass])[:, known].double()
        missing = int(classes.max()) + 1 - self.by_class.shape[1]
        if missing > 0:
            self.by_class = torch.cat([self.by_class, self.by_class.new_zeros(3, missing)], dim=1)
        self.by_class.index_add_(1, classes, values)

    def result(self) -> dict[str, float | None]:
        """The means; None where no sample counts."""
        count, found, mass = self.by_class.sum(1).tolist()
        return {"found": _mean(found, count), "mass": _mean(mass, count), "entropy": _mean(self.entropy, self.num)}


class Look(NamedTuple):
    """Some samples' soft labels and what they find, [n, Q] and [n]."""

    p: Tensor
    found: Tensor  # bool: among the top 5 and of the own class
    mass: Tensor  # on the own class
    entropy: Tensor


class Seen(NamedTuple):
    """What was seen of some samples, wherever it was computed; [n] each, but for `num_known`."""

    labels: Tensor
    found: list[tuple[str, tuple[Tensor, Tensor, Tensor]]]  # by whom, and entries found, mass, entropy
    same: Tensor  # the queue's entries of the sample's class, whoever looks at it
    num_known: Tensor  # the queue's entries whose class is known, []
    apart: list[Tensor]  # how two soft labels differ, of each two


class Audit:
    """Follows the soft labels over many batches; see `result` for what it finds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every batch."""
        self.tallies: dict[str, Tally] = {}  # by the name of the soft label
        self.all = Tally()
        self.queue = [0.0] * 4  # sums: labelled samples, their class in the queue; those with a share, the shares
        self.apart = [0.0] * 2  # pairs of soft labels, sum of their divergences
        self._uncounted: list[Seen] = []  # where it was computed: an accelerator is waited for when it is asked

    @torch.no_grad()
    def add(self, soft_labels: Sequence[SoftLabel], labels: Tensor) -> None:
        """Count a batch's soft labels, made before its keys are stored, and its labels [N], -1 where unknown.

        In pieces of the batch, so that for any queue few rows of [N, Q] are held at a time.
        """
        if not soft_labels:
            return
        labels = labels.to(soft_labels[0].z.device)
        size = Counter(len(soft_label.keys) for soft_label in soft_labels).most_common(1)[0][0]
        for part in _pieces(max((soft_label.keys for soft_label in soft_labels), key=len), len(labels)):
            looks = [_look(soft_label, part, labels[part]) for soft_label in soft_labels]
            found = [
                (soft_label.name, (look.found.sum(1), look.mass, look.entropy))
                for soft_label, look in zip(soft_labels, looks, strict=True)
            ]
            # A slot is the same picture in every queue, so long as they are equally long.
            looks = [look for look in looks if look.p.shape[1] == size]
            union = torch.stack([look.found for look in looks]).any(0).sum(1)
            found.append((ALL, (union, torch.stack([look.mass for look in looks]).mean(0), _entropy_of_mean(looks))))
            apart = [_entropy_of_mean([a, b]) - (a.entropy + b.entropy) / 2 for a, b in combinations(looks, 2)]
            keys = soft_labels[0].labels
            same, num_known = _same_class(labels[part], keys).sum(1), (keys >= 0).sum()
            self._uncounted.append(Seen(labels[part], found, same, num_known, apart))

    def _count(self) -> None:
        """Add what was seen to the sums."""
        for seen in self._uncounted:
            labels = seen.labels.cpu()
            for name, values in seen.found:
                tally = self.all if name == ALL else self.tallies.setdefault(name, Tally())
                tally.add(labels, *(value.cpu() for value in values))
            same, num_known = seen.same.cpu()[labels >= 0].double(), int(seen.num_known)
            self.queue[0] += len(same)
            self.queue[1] += float(same.sum())
            if num_known:
                self.queue[2] += len(same)
                self.queue[3] += float(same.sum()) / num_known
            for divergence in seen.apart:
                self.apart[0] += len(labels)
                self.apart[1] += float(divergence.cpu().clamp_min(0).sum(dtype=torch.float64))
        self._uncounted.clear()

    def result(self) -> dict[str, Any]:
        """What was found, ready for JSON; None where no sample counts. Means over samples:

        By the name of each soft_label, such as `view2`: `found`, entries of the sample's class among the top 5 of the
        queue; `mass`, the soft label's weight on entries of that class (its precision); `entropy` in nats.
        `all`: the soft_labels together, which are `found` by any of them (distinct slots), and their mean soft label.
        `one_hot`: what a target does that knows no other entry, and how many of the same class it has `pushed_away`.
        `same_class_share`: of the queue's labelled entries; times 5, what a random choice would find.
        `disagreement`: Jensen-Shannon divergence between two soft labels, in nats.
        `num_samples`, `num_labelled`, and `by_class`: the class's number as text -> `samples`, and `found` and `mass`
        by the names above.
        """
        self._count()
        named = {**self.tallies, ALL: self.all} if self.tallies else {}
        blind = {"found": 0.0, "mass": 0.0, "entropy": 0.0, "pushed_away": _mean(self.queue[1], self.queue[0])}
        counts = self.all.by_class[COUNT]
        return {
            **{name: tally.result() for name, tally in named.items()},
            "one_hot": blind,
            "same_class_share": _mean(self.queue[3], self.queue[2]),
            "disagreement": _mean(self.apart[1], self.apart[0]),
            "num_samples": self.all.num,
            "num_labelled": int(counts.sum()),
            "by_class": {
                str(number): {
                    "samples": int(counts[number]),
                    "found": {name: _of_class(tally, FOUND, number) for name, tally in named.items()},
                    "mass": {name: _of_class(tally, MASS, number) for name, tally in named.items()},
                }
                for number in counts.nonzero()[:, 0].tolist()
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything counted so far, as plain numbers and tensors."""
        self._count()
        tallies = {**self.tallies, ALL: self.all}
        return {
            "tallies": {name: [tally.num, tally.entropy, tally.by_class.clone()] for name, tally in tallies.items()},
            "queue": list(self.queue),
            "apart": list(self.apart),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.reset()
        for name, (num, entropy, by_class) in state["tallies"].items():
            tally = self.all if name == ALL else self.tallies.setdefault(name, Tally())
            tally.num, tally.entropy, tally.by_class = int(num), float(entropy), by_class.double().reshape(3, -1).cpu()
        self.queue, self.apart = list(state["queue"]), list(state["apart"])


@torch.no_grad()
def top_entries(soft_label: SoftLabel, k: int = TOP) -> tuple[Tensor, Tensor]:
    """Slots [N, k] of the queue that a soft label gives most weight, the heaviest first, and the weights [N, k].

    A queue smaller than k gives as many as it has.
    """
    k = min(k, len(soft_label.keys))
    found = [_log_soft_label(soft_label, part).topk(k, dim=1) for part in _pieces(soft_label.keys, len(soft_label.z))]
    if not found:
        return torch.zeros(0, k, dtype=torch.int64), torch.zeros(0, k)
    return torch.cat([part.indices for part in found]), torch.cat([part.values for part in found]).exp()


@torch.no_grad()
def worst_pairs(soft_label: SoftLabel, labels: Tensor, num: int) -> list[tuple[int, int, float]]:
    """(sample's row, slot, weight) of the `num` heaviest weights on an entry of another class, heaviest first.

    Both classes, of the samples [N] and of the entry, are known; each sample occurs once at most.
    """
    labels, pairs = labels.to(soft_label.z.device), []
    for part in _pieces(soft_label.keys, len(soft_label.z)):
        log_p, own = _log_soft_label(soft_label, part), labels[part, None]
        wrong = (own != soft_label.labels) & (own >= 0) & (soft_label.labels >= 0)
        weights, slots = log_p.exp().masked_fill(~wrong, -1).max(1)
        rows = range(part.start, part.start + len(slots))
        pairs += [pair for pair in zip(rows, slots.tolist(), weights.tolist(), strict=True) if pair[2] >= 0]
    return sorted(pairs, key=lambda pair: -pair[2])[:num]


def _pieces(keys: Tensor, num: int) -> Iterator[slice]:
    """Stretches of `num` samples, of as many rows of cosines with the keys [Q, d] as are held at a time."""
    rows = rows_at_once(keys)
    yield from (slice(start, min(start + rows, num)) for start in range(0, num, rows))


def _log_soft_label(soft_label: SoftLabel, part: slice) -> Tensor:
    """log P [n, Q] of some of a soft label's samples, in fp32 or better and out of autocast."""
    z = soft_label.z[part]
    keys = soft_label.keys.to(z.dtype if z.dtype == torch.float64 else torch.float32)
    return (similarity(z, keys) / soft_label.temp).log_softmax(1)


def _look(soft_label: SoftLabel, part: slice, labels: Tensor) -> Look:
    """A look at some of a soft label's samples, whose labels are [n]."""
    log_p = _log_soft_label(soft_label, part)
    p, own = log_p.exp(), _same_class(labels, soft_label.labels)
    top = log_p.topk(min(TOP, log_p.shape[1]), dim=1, sorted=False).indices
    found = torch.zeros_like(own).scatter_(1, top, own.gather(1, top))
    return Look(p, found, (p * own).sum(1), -(p * log_p).sum(1))


def _same_class(labels: Tensor, key_labels: Tensor) -> Tensor:
    """Whether sample and entry are of the same known class, bool [n, Q]."""
    return (labels[:, None] == key_labels) & (labels >= 0)[:, None]


def _entropy_of_mean(looks: Sequence[Look]) -> Tensor:
    """The entropy of the looks' mean soft label, [n], in nats; an entry of no weight adds nothing."""
    if len(looks) == 1:
        return looks[0].entropy
    terms: Tensor = torch.special.entr(sum((look.p for look in looks[1:]), looks[0].p) / len(looks))
    return terms.sum(1)


def _mean(total: float, num: float) -> float | None:
    return total / num if num else None


def _of_class(tally: Tally, what: int, number: int) -> float | None:
    """A class's mean of `what`; None if the tally has no sample of it."""
    if number >= tally.by_class.shape[1]:
        return None
    return _mean(float(tally.by_class[what, number]), float(tally.by_class[COUNT, number]))
