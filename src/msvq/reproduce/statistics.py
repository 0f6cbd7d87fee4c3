"""Mean, deviation and the paired test over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SIGNIFICANT = 0.05


class Summary(NamedTuple):
    """Of the values of several seeds; no deviation for one."""

    mean: float
    std: float | None


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean and sample deviation (n - 1); nothing of nothing."""
    if not values:
        return None
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


class Paired(NamedTuple):
    """Differences of two rows, seed by seed."""

    mean: float
    std: float | None
    num_seeds: int
    p: float | None  # one-sided: how likely at least this much is if there were no difference; None for one seed


def paired(better: Mapping[int, float], worse: Mapping[int, float]) -> Paired | None:
    """The paired t-test of `better` being larger than `worse`, on the seeds that both have."""
    differences = [better[seed] - worse[seed] for seed in sorted(set(better) & set(worse))]
    summary = summarise(differences)
    if summary is None:
        return None
    num, p = len(differences), None
    if summary.std is not None:
        if summary.std == 0:  # the same in every seed: as sure as it gets, or no difference at all
            p = 0.5 if summary.mean == 0 else float(summary.mean < 0)
        else:
            p = t_tail(summary.mean / (summary.std / math.sqrt(num)), num - 1)
    return Paired(summary.mean, summary.std, num, p)


def t_tail(t: float, degrees: int) -> float:
    """P(T > t) of Student's t distribution with a whole number of degrees of freedom.

    The finite series of Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        total, term = 0.0, cosine
        for n in range(1, degrees - 1, 2):
            total += term
            term *= cosine**2 * (n + 1) / (n + 2)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        total, term = 0.0, 1.0
        for n in range(0, degrees - 1, 2):
            total += term
            term *= cosine**2 * (n + 1) / (n + 2)
        inside = sine * total
    tail = (1 - inside) / 2
    return tail if t >= 0 else 1 - tail


def verdict(found: Paired | None) -> str:
    """Whether a claim held: by the sign of the mean difference, and by the test in that direction."""
    if found is None:
        return "not measured"
    word = "held" if found.mean > 0 else "not held"
    if found.p is None:
        return f"{word}, one seed"
    against_chance = found.p if found.mean > 0 else 1 - found.p
    return word if against_chance < SIGNIFICANT else f"{word}, within the noise"
