"""Has the encoder collapsed? A warning in plain words from the numbers of the log, without labels.

A collapse has two faces: all pictures get the same answer (the spread goes to 0), or answers that differ along one line
only (the rank goes to 1). It shows behind the projector first, where the loss looks; the backbone often lags behind.

The thresholds were chosen by looking at these runs of 100 to 400 steps on `patterns`, one seed each, ResNet-18 of
width 16 (w8: 8), batch 64. Spread and rank, in this order, of the backbone's features and of the embeddings behind the
projector:

                                         features     embeddings
    untrained                           0.12  18     0.10  12     SimSiam 0.11 20, Supervised 0.13 3.2; w8: 7 and 8
    MSVQ, ReSSL                         0.57  40     0.41  4.8    while young 0.31, 0.16 24
    MSVQ without warm_start             0.32  56     0.08  8.9    w8: 0.08 8, 0.18 9, 0.45 11, or stuck at 0.03 2.9
    MoCoV2                              0.57  31     0.37  3.3    w8: 0.07 1.7, then 0.13 1.9, then 0.20 2.1: recovers
    SimCLR, BYOL, SimSiam               0.41  15     0.81  15     the least of them
    Supervised                          0.64  25     0.91  3.2
    BYOL without predictor              0.45  31     0.10  4.4    w8: 0.62 9.4 and 0.02 1.7
    SimSiam without stop-gradient       0.32  19     0.21  8.4    falling; w8: 0.16 4 and 0.09 2
    base_lr 10: MSVQ                    0.49  12     0.01  1.1
                MoCoV2                  0.51  2.3    0.12  1.1
                BYOL                    0.43  5.8    0.23  1.5    halfway 0.57 1.4 and 0.23 1.0
    base_lr 30: MSVQ                    0.07  2.1    0.0004  1.0  halfway 0.0006 1.0

So no number is enough alone: a sound young MoCo has a low rank, and MSVQ that has not begun to learn, or any
untrained network, a small spread. One number at its very end, or several together, make a collapse.
What is missed: a slow collapse before it is far, above all where the untrained rank is low already. In toy runs with a
small backbone, SimSiam without stop-gradient (0.86 5.1 from 0.46 15, 60 steps) and BYOL without predictor (0.07 2.2
from 0.06 2.7, 200 steps) still passed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

State = Literal["collapsed", "collapsing", "too-short", "weak", "better", "good", "unknown"]

SAME = 0.001  # a spread below which there is no difference between pictures, whatever it was before training
NO_SPREAD = {"feature": 0.02, "embedding": 0.025}  # and below which there is none left, if it was twice that
ONE_LINE = 1.5  # a rank below which one direction holds all, if it was twice that before training
HALF = 0.5  # of what was before training
SMALL_SPREAD = {"feature": 0.25, "embedding": 0.15}
FEW_DIRECTIONS = {"feature": 0.4, "embedding": 0.2}  # of the rank before training
RISING = 1.2  # times the spread of the measurement before
FALLEN, SPREAD_AFTER_FALL = 0.8, 0.25  # a spread below this share of its best, and below this

DOCTOR = "Check that the pictures really differ and can be read: msvq doctor --data PATH."
LOWER_RATE = "Lower the learning rate to a third or a tenth: --set train.base_lr=..."
MORE_NEGATIVES = "Use more pictures, or a smaller batch (--set train.batch_size=...), which takes more steps an epoch."
WARM_START = "With msvq and its family, begin with contrast: --set method.warm_start=0.5."
OTHER_METHOD = "Try a method that compares pictures with each other: --method msvq, mocov2 or simclr."
FULL_PRECISION = "Compute in full precision: --precision fp32."
WAIT = "Look again after some epochs; if nothing changes, stop the run and start anew."
LONGER = "Train for more epochs (--epochs), or begin with contrast: --set method.warm_start=0.5 (msvq and its family)."
TOO_EARLY = (
    "It is too early to judge: behind the projection head all pictures get similar answers so far, which may pass."
)


class Verdict(NamedTuple):
    """What the numbers say, in a sentence for a person, and what to try."""

    state: State
    sentence: str
    advice: tuple[str, ...] = ()


class HealthSample(NamedTuple):
    """Spread (0..1) and rank of one stage at one time; None where they were not measured."""

    spread: float | None
    rank: float | None


def watch_for_collapse(history: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """What a run's measurements in order say of a collapse, the first of the untrained encoder; None: no sign of one.

    They are the lines of `measure_health`, and more keys do no harm. What is missing (or None) is not judged.
    """
    looks = {stage: [_look(line, stage) for line in history] for stage in ("feature", "embedding")}
    seen = [look for stage in looks.values() for look in stage[-1:] if look != HealthSample(None, None)]
    if any(not math.isfinite(number) for look in seen for number in look if number is not None):
        return Verdict(
            "collapsed",
            "The encoder is broken: its features are no numbers any more, because the training ran out of bounds.",
            (LOWER_RATE, FULL_PRECISION, DOCTOR),
        )
    if len(history) < 2 or not seen:
        return Verdict("unknown", "It is too early to judge: nothing was measured after training began.")
    for stage in looks:
        if ended := _at_its_end(stage, looks[stage][0], looks[stage][-1]):
            return ended
    return _on_the_way(looks["feature"], looks["embedding"])


def _at_its_end(stage: str, before: HealthSample, now: HealthSample) -> Verdict | None:
    """One number that says it all, of the backbone's features or of the embeddings."""
    if now.spread is not None and _gone(stage, now.spread, before.spread):
        return _all_the_same(stage, before)
    if now.rank is not None and now.rank < ONE_LINE and _share(now.rank, before.rank) < HALF:
        return _one_line(stage, now.rank)
    return None


def _on_the_way(features: Sequence[HealthSample], embeddings: Sequence[HealthSample]) -> Verdict | None:
    """Several numbers that say it together."""
    (first, *_, feature), (begin, *trained) = features, embeddings
    now = trained[-1]
    if now.spread is None or now.rank is None or feature.spread is None:
        return None
    kept, feature_kept = _share(now.rank, begin.rank), _share(feature.rank, first.rank)
    earlier = [look.spread for look in trained[:-1] if _known(look.spread)]
    if now.spread < SMALL_SPREAD["embedding"] and kept < HALF:
        if feature.spread < SMALL_SPREAD["feature"]:
            return _all_the_same("feature", first)
        if not earlier:  # a sound run may pass through here, but does not stay
            return Verdict("unknown", TOO_EARLY, (WAIT, LONGER))
        if now.spread <= RISING * earlier[-1]:
            return _fading(now, begin)
    if kept < FEW_DIRECTIONS["embedding"] and feature_kept < FEW_DIRECTIONS["feature"]:
        return _fading(feature, first)
    if earlier and now.spread < min(SPREAD_AFTER_FALL, FALLEN * max(earlier)) and kept < HALF:
        return _fading(now, begin)
    return None


def _share(now: float | None, before: float | None) -> float:
    """What is left of a number; all of it where it is not known."""
    return now / before if _known(now) and _known(before) and before > 0 else 1.0


def _gone(stage: str, now: float, before: float | None) -> bool:
    """Whether there is no spread left, and that not only because there never was any."""
    if now < SAME:
        return True
    return now < NO_SPREAD[stage] and (not _known(before) or now < HALF * before)


def _all_the_same(stage: str, before: HealthSample) -> Verdict:
    """Every picture gets the same answer."""
    if before.spread is not None and before.spread < SAME:
        return Verdict(
            "collapsed",
            "All pictures look the same to the encoder, and did before training: there may be nothing to tell apart.",
            (DOCTOR,),
        )
    what = (
        "The encoder has collapsed: it gives nearly the same answer for every picture, so its features are of no use."
        if stage == "feature"
        else "The training has collapsed: behind the projection head nearly every picture gets the same answer, so "
        "there is nothing left to learn from."
    )
    return Verdict("collapsed", what, (LOWER_RATE, MORE_NEGATIVES, WARM_START, DOCTOR))


def _one_line(stage: str, rank: float) -> Verdict:
    """Answers differ along one direction only."""
    where = "its features" if stage == "feature" else "the answers behind the projection head"
    return Verdict(
        "collapsed",
        f"The encoder has collapsed to one line: {where} differ in a single direction (rank {rank:.1f}), so most of "
        f"what tells pictures apart is lost.",
        (LOWER_RATE, OTHER_METHOD, MORE_NEGATIVES),
    )


def _fading(now: HealthSample, before: HealthSample) -> Verdict:
    """On the way there."""
    ranks = f" (rank {now.rank:.1f}, from {before.rank:.1f} before training)" if now.rank and before.rank else ""
    return Verdict(
        "collapsing",
        f"The encoder may be collapsing: it tells pictures apart by fewer and fewer directions{ranks}.",
        (WAIT, LOWER_RATE, WARM_START, MORE_NEGATIVES),
    )


def _look(line: Mapping[str, Any], stage: str) -> HealthSample:
    """The numbers of a line of the log, by the names that `measure_health` gives them."""
    rank = line.get("rank" if stage == "feature" else "embedding_rank")
    return HealthSample(line.get(f"{stage}_spread"), rank)


def _known(number: float | None) -> TypeGuard[float]:
    return number is not None and math.isfinite(number)
