"""What the page says: did it work, in numbers and plain words; then tables of protocols, runs, confusion, classes."""

import heapq
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msvq.core.console import duration
from msvq.core.user_code import is_user_code
from msvq.evaluate.results import percent, percent_error
from msvq.report.records import Record, is_number
from msvq.runs.metrics import RunProgress

# A sign and a word for each state, so that colour is never alone.
STATES = {
    "good": ("✓", "Good"),
    "better": ("~", "Better than untrained"),
    "weak": ("!", "Weak"),
    "too-short": ("…", "Too short"),
    "collapsing": ("!", "Collapsing"),
    "collapsed": ("✕", "Collapsed"),
    "unknown": ("?", "Not known"),
}
# Whose features were tested, the run's own last.
BASELINES = {"colour_histogram": "colour histogram", "pixels_8x8": "8 x 8 pixels"}
TESTED = {"chance": "chance", **BASELINES, "untrained": "untrained encoder", "trained": "after training"}
AGAINST = {"untrained": "untrained", "chance": "by chance"}
# What tells of a collapse, by the names of the log, of the backbone and of the projector.
HEALTH = {
    "rank": ("rank", "embedding_rank"),
    "uniformity": ("uniformity", "embedding_uniformity"),
    "alignment": ("alignment", "embedding_alignment"),
}
MAX_MATRIX = 20  # classes; a larger matrix is not readable
NUM_PAIRS = 15
MAX_MISTAKES = 200  # files that are listed; all are in RUN/eval
# What runs are compared by, and how it is told.
COLUMNS = {
    "chance": "{:.1f}%",
    "kNN, untrained": "{:.1f}%",
    "kNN, trained": "{:.1f}%",
    "linear": "{:.1f}%",
    "logistic": "{:.1f}%",
    "fine-tuned": "{:.1f}%",
    "false negatives found": "{:.2f}",
    "copies found": "{:.1f}%",
    "rank": "{:.1f}",
    "rank, projector": "{:.1f}",
    "pictures / s": "{:.0f}",
}
NOT_JUDGED = ("chance", "kNN, untrained", "rank", "rank, projector", "pictures / s")


def progress(record: Record, standing: RunProgress | None) -> dict[str, Any]:
    """How far a run is that is not over, when it will be, or how to go on with it; empty for one that is."""
    if standing is None and record.is_finished:
        return {}
    step, total = (record.last_step, record.total_steps) if standing is None else (standing.step, standing.total_steps)
    done = f"{step:,} of {total:,} steps ({step / total:.0%})".replace("%", " %") if total else f"{step:,} steps"
    told = {"done": step, "total": total, "command": _resume(record)}
    if standing is None:
        return {**told, "state": f"Not finished: {done}.", "if_stopped": "If it does not train any more, go on with:"}
    if not standing.running:
        return {**told, "state": f"Stopped after {done}.", "if_stopped": "Go on with:"}
    now = time.time()
    told |= {
        "late": round(now + _until_late(record, standing)),
        "if_stopped": "If it was stopped or killed, go on with:",
    }
    as_of = f"as of {_clock(now)}"
    if step == total:
        return {**told, "state": f"Trained: {done}.", "when": f"The encoder is being judged, {as_of}."}
    if standing.seconds_left is None:
        return {**told, "state": f"Training: {done}.", "when": f"It has just begun, {as_of}."}
    left, end = duration(standing.seconds_left), _clock(now + standing.seconds_left)
    when = f"{left} left: trained about {end}, {as_of}; then it is judged."
    return {**told, "state": f"Training: {done}.", "when": when}


def _clock(seconds: float) -> str:
    """A time of day, with the day where it is not today."""
    then, today = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%a %d %b, %H:%M", then)


def _until_late(record: Record, standing: RunProgress) -> float:
    """Seconds after which there ought to have been news of a run that trains: three looks, and some patience."""
    looks = [float(line["step"]) for line in record.metrics if line.get("kind") == "eval"]
    if standing.seconds_left is None or len(looks) < 2:
        return 600 + (standing.seconds_left or 0)
    per_step = standing.seconds_left / max(1, standing.total_steps - standing.step)
    return 120 + 3 * (looks[-1] - looks[-2]) * per_step


def _resume(record: Record) -> str:
    """The command that goes on with a run; code of a person's own is named again."""
    flags = {"method": record.method, "backbone": str(record.section("backbone").get("name", ""))}
    named = "".join(f" --{flag} {shlex.quote(name)}" for flag, name in flags.items() if is_user_code(name))
    return f"msvq pretrain --out {shlex.quote(str(record.path))} --resume{named}"


def verdict(record: Record) -> dict[str, Any]:
    """State, sentences, advice and big numbers of a run."""
    judged, state = record.verdict, record.verdict.get("state", "")
    sign, word = STATES.get(state, STATES["unknown"])
    return {
        "state": state if state in STATES or not state else "unknown",
        "sign": sign,
        "word": word,
        "sentence": judged.get("sentence"),
        "advice": judged.get("advice") or [],
        "now": _now(record),
        **_numbers(record),
        "copies": _copies(record),
        "health": _health(record),
    }


def tell_knn(record: Record) -> str:
    """kNN accuracy beside what it is held against, in a line; empty where it is not known."""
    known = record.accuracies
    beside = [f"{percent(known[name])} {title}" for name, title in AGAINST.items() if name in known]
    error = percent_error(known["trained"], record.knn.get("pictures")) if "trained" in known else None
    return f"kNN {percent(known['trained'], error)} ({', '.join(beside)})" if "trained" in known and beside else ""


def _now(record: Record) -> str:
    """What the last numbers of the log are of."""
    return "after training" if record.is_finished else "so far"


def _numbers(record: Record) -> dict[str, Any]:
    """The question that the big numbers answer, and the numbers."""
    accuracies, now = record.accuracies, _now(record)
    if record.demo:
        k = record.section("evaluate").get("knn_k", 200)
        question = f"How often do a picture's {k} nearest neighbours vote for its class?"
        numbers = [_told(name, accuracy, record.knn.get("pictures")) for name, accuracy in record.demo.items()]
        return {"question": question, "numbers": numbers}
    if "untrained" in accuracies:
        question = "How often do a picture's nearest neighbours vote for its class?"
        return {"question": question, "numbers": _all_told(accuracies, record.knn.get("pictures"), now)}
    if found := {name: values.get("at_1") for name, values in (record.copies.get("recall") or {}).items()}:
        question = "How often do changed copies of pictures find their originals?"
        return {"question": question, "numbers": _all_told(found, record.copies.get("pictures"), now)}
    ranks, spreads = record.values("rank"), record.values("feature_spread")
    if ranks:
        values = {f"spread, from {spreads[0]:.2f}": f"{spreads[-1]:.2f}"} if spreads else {}
        values |= {"rank, untrained encoder": f"{ranks[0]:.1f}", f"rank, {now}": f"{ranks[-1]:.1f}"}
        numbers = [{"name": name, "value": value} for name, value in values.items()]
        return {"question": "Do the features tell pictures apart?", "numbers": numbers}
    return {"question": "", "numbers": []}


def _told(name: str, share: float, num: int | None) -> dict[str, str]:
    """A percentage of so many pictures with its error, and whose it is."""
    error = None if name == "chance" else percent_error(share, num)
    value = percent(share).removesuffix(" %")
    return {"name": name, "value": value, "error": "" if error is None else f"{error:.1f}", "unit": " %"}


def _all_told(values: Mapping[str, Any], num: int | None, now: str) -> list[dict[str, str]]:
    """Those of what was tested, the run's own last."""
    known = {title: values.get(name) for name, title in {**TESTED, "trained": now}.items()}
    return [_told(title, value, num) for title, value in known.items() if is_number(value)]


def _copies(record: Record) -> list[dict[str, Any]]:
    """Whose features find the originals of changed copies, and how often; the run's own first."""
    recall = record.copies.get("recall") or {}
    return [{"title": TESTED[name], **recall[name]} for name in reversed(TESTED) if name in recall]


def _health(record: Record) -> list[dict[str, Any]]:
    """First and last of each number, of the backbone and of the projector."""
    rows = []
    for name, keys in HEALTH.items():
        own, projector = (record.values(key) for key in keys)
        if own:
            ends = {"first": own[0], "last": own[-1]}
            ends |= {"projector_first": projector[0], "projector_last": projector[-1]} if projector else {}
            rows.append({"title": name, **ends})
    return rows


def comparison(records: Sequence[Record]) -> dict[str, Any]:
    """Values of each run, the columns that at least one run has, and the best of each column of accuracies."""
    measured = [_measured(record) for record in records]
    kept = [name for name in COLUMNS if any(is_number(values[name]) for values in measured)]
    numbers = {name: [values[name] for values in measured if is_number(values[name])] for name in kept}
    best = {name: max(known) for name, known in numbers.items() if name not in NOT_JUDGED and len(known) > 1}
    return {"columns": {name: COLUMNS[name] for name in kept}, "measured": measured, "best": best}


def _measured(record: Record) -> dict[str, Any]:
    """A run's values of COLUMNS; None where nothing was measured."""
    knn, found = record.accuracies, record.false_negatives.get("all") or {}
    linear, logistic, tuned = (record.result(kind) for kind in ("linear", "probe", "finetune"))
    values = (
        *map(knn.get, ("chance", "untrained", "trained")),
        linear and linear.top1,
        logistic and logistic.top1,
        tuned and tuned.top1,
        found["found"] if "found" in found else _last(record.values("false_negatives.all")),
        ((record.copies.get("recall") or {}).get("trained") or {}).get("at_1"),
        _last(record.values("rank")),
        _last(record.values("embedding_rank")),
        _last(record.values("images_per_second", "epoch")),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def confusion(record: Record) -> dict[str, Any]:
    """The kNN confusion matrix: in full if it can be read, and always the pairs that are confused most."""
    result = record.result("knn")
    if result is None or not result.confusion:
        return {}
    matrix = result.confusion
    names = [*result.class_names, *(f"class {index}" for index in range(len(result.class_names), len(matrix)))]
    rows = matrix if len(matrix) <= MAX_MATRIX else []
    found = {"names": names, "rows": rows, "pairs": confused_pairs(matrix, names), "num_classes": len(matrix)}
    return found | {"mistakes": result.mistakes[:MAX_MISTAKES], "num_mistakes": len(result.mistakes)}


def confused_pairs(matrix: Sequence[Sequence[int]], names: Sequence[str], num: int = NUM_PAIRS) -> list[dict[str, Any]]:
    """The pairs of classes (truth, guess) that are mistaken most often."""
    mistakes = (
        (count, truth, guess)
        for truth, counts in enumerate(matrix)
        for guess, count in enumerate(counts)
        if guess != truth and count > 0
    )
    most = heapq.nsmallest(num, mistakes, key=lambda mistake: -mistake[0])
    return [
        {"truth": names[truth], "guess": names[guess], "count": count, "share": count / sum(matrix[truth])}
        for count, truth, guess in most
    ]


def soft_label_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each soft label finds, weighs and how sharp it is; then all of them, and a label that knows nothing."""
    views = sorted(key for key in found if key.startswith("view"))
    titles = {view: f"soft label of {view}" for view in views}
    titles |= {"all": "all of them together", "one_hot": "a one-hot label, as in MoCo"}
    return [{"title": title, **found[key]} for key, title in titles.items() if isinstance(found.get(key), Mapping)]


def class_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """False negatives by class, those with most first."""
    by_class: Mapping[str, Mapping[str, float]] = found.get("by_class") or {}
    views = sorted({key for values in by_class.values() for key in values if key.startswith("view")})
    rows: list[dict[str, Any]] = [{"name": name, **values} for name, values in by_class.items()]
    rows.sort(key=lambda row: -float(row.get("all") or 0))
    return {"views": views, "rows": rows} if rows else {}
