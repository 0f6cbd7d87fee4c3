"""The paper's claims, each as a difference that should be above 0, and whether it was: by a paired test over seeds."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scipy import stats

from msvq.reproduce import paper
from msvq.reproduce.experiments import stand_in

Values = Mapping[int, float]  # seed -> value
Of = Callable[[str], Values]  # row -> its values

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


def paired(better: Values, worse: Values) -> Paired | None:
    """The paired t-test of `better` being larger than `worse`, on the seeds that both have."""
    differences = [better[seed] - worse[seed] for seed in sorted(set(better) & set(worse))]
    summary = summarise(differences)
    if summary is None:
        return None
    (mean, std), num, p = summary, len(differences), None
    if std == 0:  # the same in every seed: as sure as it gets, or no difference at all
        p = 0.5 if mean == 0 else float(mean < 0)
    elif std is not None:
        p = float(stats.t.sf(mean / (std / math.sqrt(num)), num - 1))
    return Paired(mean, std, num, p)


def verdict(found: Paired | None) -> str:
    """Whether a claim held: by the sign of the mean difference, and by the test in that direction."""
    if found is None:
        return "not measured"
    word = "held" if found.mean > 0 else "not held"
    if found.p is None:
        return f"{word}, one seed"
    against_chance = found.p if found.mean > 0 else 1 - found.p
    return word if against_chance < SIGNIFICANT else f"{word}, within the noise"


# The paper's own choice for each data set, and the second teacher's momentum that equals the first's.
MOMENTUM2 = {"cifar10": "0.95", "cifar100": "0.93", "stl10": "0.99", "tinyimagenet": "0.99"}
EQUAL = {"cifar10": "0.99", "cifar100": "0.99", "stl10": "0.996", "tinyimagenet": "0.996"}
QUEUE = {"cifar10": "4096", "cifar100": "4096", "stl10": "16384", "tinyimagenet": "16384"}

NEAR = 0.25  # how far from 2 the ratio of 'all' to one view may be to be "close to twice"; 3 is what chance gives
SLIGHT = 1.25  # time or memory of MSVQ over that of ReSSL: what we take "a slight overhead" to mean at most
FAR = 2.0  # points by which weak teacher views have to beat strong ones to be "far better"; the paper has 3.1 to 8.7

Rows = tuple[str, ...] | Mapping[str, str]  # the same on every data set, or data set -> row


@dataclass(frozen=True)
class Claim:
    """The best of some rows is better than the best of others."""

    text: str
    better: Rows
    worse: Rows
    only_on: tuple[str, ...] = ()  # data sets for which the paper claims it; empty: all
    margin: float = 0.0  # by how many points at least


_FAMILY = (
    Claim("MSVQ beats ReSSL", ("msvq",), ("ressl",)),
    Claim("MSVQ beats MSV", ("msvq",), ("msv",)),
    Claim("MSVQ beats MQ", ("msvq",), ("mq",)),
    Claim("MSV beats ReSSL", ("msv",), ("ressl",)),
    Claim("MQ beats ReSSL", ("mq",), ("ressl",)),
    Claim("ReSSL beats MoCoV2 (as the tables show; the text does not claim it)", ("ressl",), ("mocov2",)),
    Claim("MSVQ beats MoCoV2 (as the tables show; the text does not claim it)", ("msvq",), ("mocov2",)),
)
_WITH_X5 = "MSVQ beats variation (ii), with X5 (the paper: on CIFAR-10 alone)"
_POSITION = (
    Claim("MSVQ beats variation (i), X3 in teacher 2", ("msvq",), ("msvq-x3",)),
    Claim("variation (ii), with X5, beats MSVQ", ("msvq-x5",), ("msvq",), ("cifar100", "stl10", "tinyimagenet")),
    Claim(_WITH_X5, ("msvq",), ("msvq-x5",), ("cifar10",)),
)
_MARGIN = f"weak teacher views are far better than strong (our reading: by {FAR:g} points)"
_UNSTABLE = "then it becomes unstable: the paper's over 32768 (where the paper's own table shows it)"
_UNEQUAL = "m_2 other than m_1 is better than equal (the paper's m_2 against m_1's)"
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "linear": _FAMILY + _POSITION,
    "knn": _FAMILY + _POSITION,
    "teacher-temperature": (
        Claim("the best τ_t is 0.03 or 0.04", ("0.03", "0.04"), ("0.01", "0.02", "0.05", "0.06", "0.07")),
    ),
    "teacher-augmentation": (Claim(_MARGIN, ("weak",), ("strong",), margin=FAR),),
    "teacher-momentum": (Claim(_UNEQUAL, MOMENTUM2, EQUAL),),
    "queue-size": (
        Claim("a larger queue helps: the paper's over 512", QUEUE, ("512",)),
        Claim(_UNSTABLE, QUEUE, ("32768",), ("cifar10", "stl10")),
    ),
    "view-position": _POSITION,
}


def judge(study: str, dataset: str, rows: Sequence[str], of: Of) -> Iterator[dict[str, Any]]:
    """The claims that the rows can decide on a data set: what was published, what was found, whether it held."""

    def published(row: str) -> Values:
        value = paper.main_value(study, row, dataset)
        return {} if value is None else {0: value}  # a single run, whatever its seed was

    place = stand_in(dataset)
    for claim in CLAIMS.get(study, ()):
        sides = (claim.better, claim.worse)
        better, worse = ((side[place],) if isinstance(side, Mapping) else side for side in sides)
        if (claim.only_on and place not in claim.only_on) or not {*better, *worse} <= set(rows):
            continue
        in_paper = paired(_best(better, published), _best(worse, published))
        ahead, behind = _best(better, of), _best(worse, of)
        tested = paired({seed: value - claim.margin for seed, value in ahead.items()}, behind)
        told = None if in_paper is None else round(in_paper.mean, 4)
        yield _as_dict(claim.text, dataset, told, paired(ahead, behind), tested)


def _as_dict(
    text: str, dataset: str, in_paper: float | None, found: Paired | None, tested: Paired | None
) -> dict[str, Any]:
    """A claim as plain values: what was found, and how a difference that should be above 0 came out."""
    mean, std, num_seeds, _ = found or (None, None, 0, None)
    return {
        "claim": text,
        "dataset": dataset,
        "published_difference": in_paper,
        "difference": mean,
        "std": std,
        "seeds": num_seeds,
        "p": tested and tested.p,
        "verdict": verdict(tested),
    }


def judge_cost(dataset: str, what: str, ratios: Values) -> dict[str, Any]:
    """One back-propagation and a slight overhead: seconds for a picture, or memory, MSVQ's over ReSSL's."""
    more = "; on a CPU, of the whole process" if what == "memory" else ""
    text = f"MSVQ takes at most {SLIGHT:g} times the {what} of ReSSL (our reading of 'slight overhead'{more})"
    return _ratio_claim(text, dataset, None, ratios, paired(dict.fromkeys(ratios, SLIGHT), ratios))


def judge_false_negatives(dataset: str, found: Mapping[str, Values]) -> dict[str, Any]:
    """'all' finds close to twice the false negatives of one view: of the views' mean, after the last epoch."""
    views = [name for name in found if name != "all"]
    everything = found.get("all", {})
    means = {seed: sum(found[view][seed] for view in views) / len(views) for seed in everything} if views else {}
    ratios = {seed: everything[seed] / mean for seed, mean in means.items() if mean}
    twice = paper.FALSE_NEGATIVES_RATIO
    tested = paired(dict.fromkeys(ratios, NEAR), {seed: abs(ratio - twice) for seed, ratio in ratios.items()})
    within = f"{twice - NEAR:g} to {twice + NEAR:g}"
    text = f"'all' finds {within} times the false negatives of one view (our reading of 'close to twice')"
    return _ratio_claim(text, dataset, twice, ratios, tested)


def _ratio_claim(
    text: str, dataset: str, published: float | None, ratios: Values, tested: Paired | None
) -> dict[str, Any]:
    """A claim about a ratio: that is told, not its distance from our reading of the claim, which was tested."""
    told = {"ratios": {str(seed): ratio for seed, ratio in ratios.items()}, "published_ratio": published}
    found = paired(ratios, dict.fromkeys(ratios, 0.0))
    return _as_dict(text, dataset, None, found, tested) | told


def _best(rows: Sequence[str], of: Of) -> dict[int, float]:
    """Seed -> the best of the rows, on the seeds that all of them have."""
    columns = [of(row) for row in rows]
    seeds = set.intersection(*(set(column) for column in columns))
    return {seed: max(column[seed] for column in columns) for seed in seeds}
