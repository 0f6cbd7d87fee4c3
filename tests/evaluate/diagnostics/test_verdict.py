"""The badge: what follows from the numbers, and what can never follow."""

import itertools
import math
from typing import Any

import pytest

from msvq.evaluate.diagnostics.verdict import ENOUGH_STEPS, copies_found, rightly_named, verdict

SOUND: list[dict[str, Any]] = [
    {"feature_spread": 0.12, "rank": 18.0, "embedding_spread": 0.1, "embedding_rank": 12.0},
    {"feature_spread": 0.45, "rank": 48.0, "embedding_spread": 0.6, "embedding_rank": 30.0},
]
CONSTANT: dict[str, Any] = {"feature_spread": 0.0, "rank": 1.0, "embedding_spread": 0.0, "embedding_rank": 1.0}
LONG = 10 * ENOUGH_STEPS


def values(trained: float, untrained: float, histogram: float, pixels: float = 0.0) -> dict[str, float]:
    return {"trained": trained, "untrained": untrained, "colour_histogram": histogram, "pixels_8x8": pixels}


def judge(
    copies: dict[str, float], knn: dict[str, float] | None = None, *, num: int = 2000, steps: int = LONG, **more: Any
) -> Any:
    tests = [] if knn is None else [rightly_named(knn, num, 12.5)]
    return verdict(SOUND, [*tests, copies_found(copies, num)], steps=steps, **more)


def test_better_than_all_is_good() -> None:
    judged = judge(values(28, 2, 12, 6))
    assert (judged.state, judged.advice) == ("good", ())
    assert judged.sentence == (
        "It works: changed copies of pictures find their originals 28.0 ± 1.0 % of the time (2.0 % before training, "
        "12.0 % by a colour histogram, 6.0 % by 8 x 8 pixels)."
    )


def test_as_good_as_a_histogram_is_better_than_untrained() -> None:
    judged = judge(values(13, 2, 12))
    assert judged.state == "better" and "not clearly better than a colour histogram" in judged.sentence


def test_worse_than_a_histogram_or_than_pixels_is_weak() -> None:
    assert judge(values(12, 2, 18)).state == "weak"
    assert "worse than a colour histogram" in judge(values(12, 2, 18)).sentence
    assert "worse than 8 x 8 pixels" in judge(values(12, 2, 1, 18)).sentence
    assert judge(values(12, 2, 18)).advice


def test_no_better_than_before_training_is_weak() -> None:
    judged = judge(values(20, 19.5, 5))
    assert judged.state == "weak" and "changed little" in judged.sentence
    assert "worse than before training" in judge(values(10, 20, 5)).sentence


def test_a_short_run_that_is_not_good_is_too_short_and_told_how_long_would_do() -> None:
    judged = judge(values(2.6, 1.8, 17.5, 5.9), steps=110, seconds_per_step=1.2)
    assert judged.state == "too-short"
    assert judged.sentence.startswith("110 steps are far too few: changed copies")
    assert judged.sentence.endswith("1,000 would be a beginning, and take about 20 min at this pace.")
    assert judged.advice == ("Train longer: --budget 23m.",)  # with what is around the steps
    assert "999 steps are too few" in judge(values(12, 2, 18), steps=999).sentence
    assert judge(values(12, 2, 18), steps=110).advice == ("Train longer: --set train.steps=1000.",)
    assert judge(values(28, 2, 12), steps=110).state == "good"  # as from weights that were good already


def test_few_pictures_say_nothing_unless_the_result_is_clear() -> None:
    judged = judge(values(33, 17, 25), num=12)
    assert judged.state == "unknown" and "12 pictures are too few to tell" in judged.sentence
    assert judge(values(100, 0, 8), num=12).state == "good"
    assert judge(values(8, 0, 100), num=12).state == "weak"


def test_where_there_are_labels_they_decide() -> None:
    assert judge(values(1.1, 0.4, 0.6, 1.2), values(71, 35, 31, 34)).state == "good"  # textures: copies say little
    weak = judge(values(28, 2, 12), values(30, 25, 36, 26))
    assert (
        weak.state == "weak"
        and "name 30.0 ± 1.0 % of 2,000 test pictures rightly (12.5 % by chance, 25.0 % before" in weak.sentence
    )
    denied = judge(values(5, 2, 12), values(95, 25, 36))
    assert denied.state == "better" and "12.0 % by a colour histogram" in denied.sentence


def test_a_collapse_comes_before_everything() -> None:
    for now in (CONSTANT, {"rank": math.nan}):
        assert verdict([SOUND[0], now], [copies_found(values(28, 2, 12), 2000)], steps=LONG).state == "collapsed"


def test_without_a_test_nothing_is_known() -> None:
    assert verdict(SOUND, [], steps=LONG).state == "unknown"
    assert verdict([], [], steps=LONG).state == "unknown"


def test_an_early_look_at_the_projector_does_not_stand_in_the_way_of_what_was_tested() -> None:
    early = {"feature_spread": 0.3, "rank": 30.0, "embedding_spread": 0.08, "embedding_rank": 3.0}
    assert verdict([SOUND[0], early], [], steps=LONG).state == "unknown"
    assert verdict([SOUND[0], early], [copies_found(values(28, 2, 12), 2000)], steps=LONG).state == "good"


SHARES = (0.0, 1.0, 5.0, 5.5, 50.0, 100.0, math.nan)


@pytest.mark.parametrize(("num", "steps"), [(3, 5), (12, LONG), (2000, 5), (2000, LONG), (10**6, LONG)])
def test_nothing_that_is_not_above_untrained_and_histogram_by_all_tests_is_good(num: int, steps: int) -> None:
    seen = set()
    some = [values(*shares) for shares in itertools.product(SHARES, SHARES, SHARES, (0.0, 50.0, math.nan))]
    for test in some:
        state = judge(test, num=num, steps=steps).state
        seen.add(state)
        assert (state == "good") <= (test["trained"] > max(test["untrained"], test["colour_histogram"])), test
    assert "good" in seen
    for knn, copies in zip(some, reversed(some), strict=True):
        labelled = judge(copies, knn, num=num, steps=steps).state
        beaten = all(
            test["trained"] > test[name] for test in (knn, copies) for name in ("untrained", "colour_histogram")
        )
        assert (labelled == "good") <= beaten, (knn, copies)
