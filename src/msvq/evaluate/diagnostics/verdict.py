"""Did it work? A badge and a sentence from what was measured, with labels or without.

Trained features are held against those of the network before training, a colour histogram and 8 x 8 pixels: by how often
changed copies of pictures find their originals, and by kNN accuracy where there are labels. "good" is better than all of
them by all that was measured; nothing less is green.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msvq.evaluate.diagnostics.collapse import LOWER_RATE, OTHER_METHOD, Verdict, watch_for_collapse
from msvq.evaluate.diagnostics.copies import BASELINES

ENOUGH_STEPS = 2000  # with fewer, a run that is not good is too short before it is anything else
FEW_PICTURES = 100  # to test with: below, no clear difference means that nobody knows
CLEARLY = 2.0  # standard errors of a difference

TITLES = {
    "trained": "after training",
    "untrained": "before training",
    "colour_histogram": "by a colour histogram",
    "pixels_8x8": "by 8 x 8 pixels",
}
MORE_PICTURES = "Add pictures of the same kind: a few thousand are few."
CONTRAST = "Try --method simclr, which learns something from little soonest."


class Score(NamedTuple):
    """A share of pictures in percent, with its standard error, and of how many."""

    value: float
    error: float
    num: int


Scores = Mapping[str, Score]  # by the names of TITLES


class Pace(NamedTuple):
    """How far a run has come, and how fast."""

    steps: int
    steps_per_epoch: int
    seconds_per_step: float | None


def verdict(
    history: Sequence[Mapping[str, Any]],
    *,
    copies: Scores | None = None,
    knn: Scores | None = None,
    pace: Pace | None = None,
) -> Verdict:
    """Judge a run by its health in order (`watch_for_collapse`), its recall of copies, and its kNN accuracy.

    Where there are labels, kNN accuracy decides, and copies can but deny that it is good.
    """
    collapse = watch_for_collapse(history)
    if collapse is not None and collapse.state in ("collapsed", "collapsing"):
        return collapse
    ...
