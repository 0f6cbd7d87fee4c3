"""The paper's claims (methods.md 4.6), each as a difference that should be above 0, and whether it was."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msvq.reproduce import paper
from msvq.reproduce.statistics import Paired, paired, verdict
from msvq.reproduce.studies import stand_in

Values = Mapping[int, float]  # seed -> value
Of = Callable[[str], Values]  # row -> its values

# The paper's own choice for each data set, and the second teacher's momentum that equals the first's.
MOMENTUM2 = {"cifar10": "0.95", "cifar100": "0.93", "stl10": "0.99", "tinyimagenet": "0.99"}
EQUAL = {"cifar10": "0.99", "cifar100": "0.99", "stl10": "0.996", "tinyimagenet": "0.996"}
QUEUE = {"cifar10": "4096", "cifar100": "4096", "stl10": "16384", "tinyimagenet": "16384"}

NEAR = 0.25  # how far from 2 the ratio of 'all' to one view may be to be "close to twice"; 3 is what chance gives
SLIGHT = 1.25  # time of a step of MSVQ over one of ReSSL: what we take "a slight overhead" to mean at most


@dataclass(frozen=True)
class Claim:
    """The best of some rows is better than the best of others."""

    text: str
    better: Callable[[str], Sequence[str]]  # data set -> rows
    worse: Callable[[str], Sequence[str]]
    only_on: tuple[str, ...] = ()

    def is_about(self, dataset: str) -> bool:
        """Whether the paper claims it there."""
        return not self.only_on or stand_in(dataset) in self.only_on


def _rows(*keys: str) -> Callable[[str], Sequence[str]]:
    return lambda dataset: keys


def _beats(better: str, worse: str, text: str, *only_on: str) -> Claim:
    return Claim(text, _rows(better), _rows(worse), only_on)


_FAMILY = (
    _beats("msvq", "msv", "MSVQ beats MSV"),
    _beats("msvq", "mq", "MSVQ beats MQ"),
    _beats("msv", "ressl", "MSV beats ReSSL"),
    _beats("mq", "ressl", "MQ beats ReSSL"),
    _beats("ressl", "mocov2", "ReSSL beats MoCoV2 (as the tables show; the text does not claim it)"),
)
_POSITION = (
    _beats("msvq", "msvq-x3", "MSVQ beats variation (i), X3 in teacher 2"),
    _beats("msvq-x5", "msvq", "variation (ii), with X5, beats MSVQ", "cifar100", "stl10", "tinyimagenet"),
    _beats("msvq", "msvq-x5", "but not on CIFAR-10: MSVQ beats variation (ii)", "cifar10"),
)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "linear": _FAMILY + _POSITION,
    "knn": _FAMILY + _POSITION,
    "teacher-temperature": (
        Claim(
            "the best τ_t is 0.03 or 0.04",
            _rows("0.03", "0.04"),
            _rows("0.01", "0.02", "0.05", "0.06", "0.07"),
        ),
    ),
    "teacher-augmentation": (_beats("weak", "strong", "weak teacher views are far better than strong"),),
    "teacher-momentum": (
        Claim(
            "m_2 other than m_1 is better than equal",
            lambda dataset: (MOMENTUM2[stand_in(dataset)],),
            lambda dataset: (EQUAL[stand_in(dataset)],),
        ),
    ),
    "queue-size": (
        Claim("a larger queue helps: the paper's over 512", lambda dataset: (QUEUE[stand_in(dataset)],), _rows("512")),
        Claim(
            "then it becomes unstable: the paper's over 32768",
            lambda dataset: (QUEUE[stand_in(dataset)],),
            _rows("32768"),
        ),
    ),
    "view-position": _POSITION,
}


def judge(study: str, dataset: str, rows: Sequence[str], of: Of) -> Iterator[dict[str, Any]]:
    """The claims that the rows can decide on a data set: what was published, what was found, whether it held."""
    for claim in CLAIMS.get(study, ()):
        better, worse = claim.better(dataset), claim.worse(dataset)
        if not claim.is_about(dataset) or not set(better) <= set(rows) or not set(worse) <= set(rows):
            continue
        told = [_published(study, better, dataset), _published(study, worse, dataset)]
        in_paper = None if None in told else round(told[0] - told[1], 4)  # type: ignore[operator]
        found = paired(_best(better, of), _best(worse, of))
        yield as_dict(claim.text, dataset, in_paper, found)


def as_dict(text: str, dataset: str, in_paper: float | None, found: Paired | None) -> dict[str, Any]:
    """A claim as plain values."""
    return {
        "claim": text,
        "dataset": dataset,
        "published_difference": in_paper,
        "difference": None if found is None else found.mean,
        "std": None if found is None else found.std,
        "seeds": 0 if found is None else found.num_seeds,
        "p": None if found is None else found.p,
        "verdict": verdict(found),
    }


def judge_cost(dataset: str, msvq: Values, ressl: Values) -> dict[str, Any]:
    """One back-propagation and a slight overhead: seconds of training for a picture, MSVQ's over ReSSL's."""
    ratios = {seed: msvq[seed] / ressl[seed] for seed in set(msvq) & set(ressl)}
    found = paired(dict.fromkeys(ratios, SLIGHT), ratios)
    text = f"a step of MSVQ takes at most {SLIGHT:g} times one of ReSSL (our reading of 'slight overhead')"
    return as_dict(text, dataset, None, found) | _ratios(ratios, None)


def judge_false_negatives(dataset: str, found: Mapping[str, Values]) -> dict[str, Any]:
    """'all' finds close to twice the false negatives of one view: of the views' mean, after the last epoch."""
    views = [name for name in found if name != "all"]
    everything = found.get("all", {})
    means = {seed: sum(found[view][seed] for view in views) / len(views) for seed in everything} if views else {}
    ratios = {seed: everything[seed] / mean for seed, mean in means.items() if mean}
    twice = paper.FALSE_NEGATIVES_RATIO
    result = paired(dict.fromkeys(ratios, NEAR), {seed: abs(ratio - twice) for seed, ratio in ratios.items()})
    within = f"{twice - NEAR:g} to {twice + NEAR:g}"
    text = f"'all' finds {within} times the false negatives of one view (our reading of 'close to twice')"
    return as_dict(text, dataset, NEAR, result) | _ratios(ratios, twice)


def _ratios(ratios: Values, published: float | None) -> dict[str, Any]:
    """What is told of a claim about a ratio instead of its distance from our reading of it."""
    return {"ratios": {str(seed): ratio for seed, ratio in ratios.items()}, "published_ratio": published}


def _published(study: str, rows: Sequence[str], dataset: str) -> float | None:
    """The best that the paper has of some rows; nothing if it lacks one of them."""
    values = [paper.main_value(study, row, dataset) for row in rows]
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _best(rows: Sequence[str], of: Of) -> dict[int, float]:
    """Seed -> the best of the rows, on the seeds that all of them have."""
    columns = [of(row) for row in rows]
    seeds = set.intersection(*(set(column) for column in columns))
    return {seed: max(column[seed] for column in columns) for seed in seeds}
