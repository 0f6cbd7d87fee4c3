"""The first thing a reader sees: did it work, in numbers and in plain words."""

from typing import Any

from msvq.report.records import Record

# A sign and a word for each state, so that colour is never alone.
STATES = {
    "healthy": ("✓", "Healthy"),
    "collapsing": ("!", "Collapsing"),
    "collapsed": ("✕", "Collapsed"),
    "unknown": ("?", "Not known"),
}


def verdict(record: Record) -> dict[str, Any]:
    """State, sentences, advice and big numbers of a run."""
    judged = record.analysis.get("verdict") or {}
    state = judged.get("state", "")
    sign, word = STATES.get(state, STATES["unknown"])
    sentences = [judged.get("sentence"), _in_words(record)]
    return {
        "state": state if state in STATES or not state else "unknown",
        "sign": sign,
        "word": word,
        "sentences": [str(sentence) for sentence in sentences if sentence],
        "advice": [str(line) for line in judged.get("advice") or []],
        **_numbers(record),
    }


def _numbers(record: Record) -> dict[str, Any]:
    """The question that the big numbers answer, and the numbers."""
    scores = [value for _, value in record.curve("knn_top1")]
    if record.demo:
        k = (record.settings.get("evaluate") or {}).get("knn_k", 200)
        question = f"How often do a picture's {k} nearest neighbours vote for its class?"
        numbers = [(f"{accuracy:.1f} %", name) for name, accuracy in record.demo.items()]
        return {"question": question, "numbers": numbers}
    if scores:
        question = "How often do a picture's nearest neighbours vote for its class?"
        numbers = [(f"{scores[0]:.1f} %", "untrained encoder"), (f"{scores[-1]:.1f} %", "after training")]
        return {"question": question, "numbers": numbers if len(scores) > 1 else numbers[:1]}
    ranks = [value for _, value in record.curve("rank")]
    spreads = [value for _, value in record.curve("feature_spread")]
    if ranks:
        numbers = [(f"{ranks[0]:.1f}", "rank, untrained encoder"), (f"{ranks[-1]:.1f}", "rank, after training")]
        if spreads:
            numbers.append((f"{spreads[-1]:.2f}", f"spread, from {spreads[0]:.2f}"))
        return {"question": "Do the features tell pictures apart?", "numbers": numbers}
    return {"question": "", "numbers": []}


def _in_words(record: Record) -> str:
    """What the numbers mean."""
    scores = [value for _, value in record.curve("knn_top1")]
    if len(scores) > 1:
        change = scores[-1] - scores[0]
        if abs(change) < 0.5:
            return f"Nearest neighbours are as often right as before training: {scores[-1]:.1f} %. It learned little."
        way = "up" if change > 0 else "down"
        end = "" if change > 0 else " Training made the features worse."
        return (
            f"Of 100 test pictures, the nearest neighbours now name {scores[-1]:.0f} rightly, "
            f"{way} from {scores[0]:.0f} before training.{end}"
        )
    if record.curve("rank") and not scores:
        return (
            "There are no labels, so no accuracy. Rank is the number of directions that the features really use; "
            "a rank near 1 or a spread near 0 means that the encoder has collapsed. "
            "The neighbours below show what it finds alike."
        )
    return ""
