"""Did it work? A badge and a sentence from what was measured, with labels or without.

The trained features are held against those of the network before training, of a colour histogram and of 8 x 8 pixels:
by how often changed copies of pictures find their originals, and by kNN accuracy where there are labels. What is not
clearly better than all of them is not good. `benchmarks/verdict.py` checks it on runs whose labels were hidden.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msvq.core.console import duration
from msvq.evaluate.diagnostics.collapse import LOWER_RATE, OTHER_METHOD, Verdict, watch_for_collapse
from msvq.evaluate.results import percent, percent_error, standard_error

CLEARLY = 2.0  # standard errors of a difference
ENOUGH_STEPS = 1000  # with fewer, a run that is not good is too short before it is anything else
FEW_PICTURES = 100  # with fewer, a test without a clear result says nothing

BY = {"untrained": "before training", "colour_histogram": "by a colour histogram", "pixels_8x8": "by 8 x 8 pixels"}
RIVALS = {"untrained": "before training", "colour_histogram": "a colour histogram", "pixels_8x8": "8 x 8 pixels"}
NEVER_BELOW = ("untrained", "colour_histogram")  # by any test, if a run shall be good
MORE_PICTURES = "Add pictures of the same kind: from less than a few thousand there is little to learn."


class Scores(NamedTuple):
    """What one test says of the trained encoder and of its rivals."""

    sentence: str  # with a place for the share, and perhaps for the number of pictures
    values: Mapping[str, float]  # in percent: "trained", and the names of RIVALS
    num_pictures: int
    chance: float | None = None  # of guessing, in percent

    def __str__(self) -> str:
        trained, others = self.values["trained"], {title: self.values[name] for name, title in BY.items()}
        guess = {} if self.chance is None else {"by chance": self.chance}
        rivals = ", ".join(f"{percent(value)} {title}" for title, value in {**guess, **others}.items())
        error = percent_error(trained, self.num_pictures)
        return f"{self.sentence.format(percent(trained, error), self.num_pictures)} ({rivals})"

    def is_clearly_above(self, first: str, second: str) -> bool:
        """Whether one is better than the other by more than chance."""
        values = [self.values[name] / 100 for name in (first, second)]
        if not all(map(math.isfinite, values)):
            return False
        noise = math.hypot(*(standard_error(value, self.num_pictures) for value in values))
        return values[0] - values[1] > CLEARLY * noise


def copies_found(values: Mapping[str, float], num_pictures: int) -> Scores:
    """The test that needs no labels."""
    return Scores("changed copies of pictures find their originals {} of the time", values, num_pictures)


def rightly_named(values: Mapping[str, float], num_pictures: int, chance: float | None = None) -> Scores:
    """kNN accuracy."""
    return Scores("nearest neighbours name {} of {:,} test pictures rightly", values, num_pictures, chance)


def verdict(
    history: Sequence[Mapping[str, Any]],
    tests: Sequence[Scores],
    *,
    steps: int,
    seconds_per_step: float | None = None,
) -> Verdict:
    """Judge a run by its health in order (as `watch_for_collapse` takes it) and by tests, of which the first decides.

    The others can but deny that it is good. `steps`: how long it was trained.
    """
    collapse = watch_for_collapse(history)
    if collapse is not None and (collapse.state in ("collapsed", "collapsing") or not tests):
        return collapse
    if not tests:
        return Verdict("unknown", "No sign of a collapse, but nothing was measured that tells whether it works.")
    test = tests[0]
    unbeaten = [name for name in RIVALS if not test.is_clearly_above("trained", name)]
    unbeaten.sort(key=lambda name: test.values[name], reverse=True)
    winners = [name for name in unbeaten if test.is_clearly_above(name, "trained")]
    denying = [
        other for other in tests if not all(other.values["trained"] > other.values[name] for name in NEVER_BELOW)
    ]

    if not unbeaten and not denying:
        return Verdict("good", f"It works: {test}.")
    if steps < ENOUGH_STEPS:
        return _too_short(test, steps, seconds_per_step)
    if test.num_pictures < FEW_PICTURES and unbeaten and not winners:
        return Verdict("unknown", f"{test.num_pictures} pictures are too few to tell: {test}.", (MORE_PICTURES,))
    longer = f"Train much longer: --budget {max(2, math.ceil(4 * steps * (seconds_per_step or 0) / 3600))}h, say."
    if winners:
        better = f"It is worse than {RIVALS[winners[0]]}"
        return Verdict("weak", f"{better}: {test}.", (longer, OTHER_METHOD, LOWER_RATE, MORE_PICTURES))
    if "untrained" in unbeaten:
        return Verdict("weak", f"Training has changed little: {test}.", (longer, OTHER_METHOD, LOWER_RATE))
    if unbeaten:
        return Verdict(
            "better",
            f"It has learned something, but is not clearly better than {RIVALS[unbeaten[0]]}: {test}.",
            (longer, MORE_PICTURES),
        )
    return Verdict("better", f"It has learned what the labels ask for: {test}. But {denying[0]}.")


def _too_short(test: Scores, steps: int, seconds_per_step: float | None) -> Verdict:
    """With how long would do, at the pace that the run had."""
    few = "far too few" if steps < ENOUGH_STEPS / 4 else "too few"
    needed = f" {ENOUGH_STEPS:,} would be a beginning"
    advice = f"Train longer: --set train.steps={ENOUGH_STEPS}."
    if seconds_per_step is not None:
        seconds = ENOUGH_STEPS * seconds_per_step
        needed += f", and take about {duration(seconds)} at this pace"
        advice = f"Train longer: --budget {math.ceil(1.1 * seconds / 60) + 1}m."  # also for what is around the steps
    return Verdict("too-short", f"{steps:,} steps are {few}: {test}.{needed}.", (advice,))
