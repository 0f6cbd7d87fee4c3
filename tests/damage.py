"""Damage done to files on purpose, and what came of it: for the tests, and for whoever wants to try more places."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from msvq.core.errors import BadInput

Outcome = Literal["refused", "same", "mended"]
PLACES = 200
# What may stand where something else belongs: of another type, broken, or out of all bounds.
NUMBERS = (True, -1, 10**100, 1e308, float("nan"), float("inf"))
WRONG: tuple[Any, ...] = ("text", "", None, *NUMBERS, [], ["x"] * 3, {}, {"x": 1})


def damages(content: bytes, num: int = PLACES, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """The content cut at `num` random places, and with a byte changed at as many; each with the words for it."""
    generator = np.random.default_rng(seed)
    for place in generator.integers(len(content), size=num).tolist():
        yield f"cut at {place}", content[:place]
    for place in generator.integers(len(content), size=num).tolist():
        yield flip(content, place, int(generator.integers(1, 256)))


def flip(content: bytes, place: int, bits: int) -> tuple[str, bytes]:
    """The content with some bits of one byte the other way round, and the words for it."""
    changed = bytes([content[place] ^ bits])
    return f"byte {place} xor {bits}", content[:place] + changed + content[place + 1 :]


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Copies of nested dicts and lists, each with one value replaced or one left out; with the words for it."""
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    if path:
        yield from ((f"{_dotted(path)} = {wrong!r}", wrong) for wrong in WRONG)
    for key, inner in list(places):
        here = (*path, key)
        yield f"without {_dotted(here)}", _with(value, key)
        yield from ((words, _with(value, key, changed)) for words, changed in changes(inner, here))


def tampered_checkpoints(state: dict[str, Any], stride: int = 17) -> Iterator[tuple[str, dict[str, Any]]]:
    """A checkpoint with something in it that no run can go on from, one thing at a time; with the words for it."""
    large = {key: state[key] for key in ("record", "method", "optimiser")}
    small = {key: value for key, value in state.items() if key not in large}
    optimiser, first = state["optimiser"], next(iter(state["method"]))
    harmless = (".history.", "audited", "scaler", "AnalysisMonitor.state = ", "encoder = '", "total_steps")
    for words, changed in [*changes(small)][::stride]:
        if not any(word in words for word in harmless):
            yield words, {**large, **changed}
    for name in large:
        yield f"without {name}", {key: value for key, value in state.items() if key != name}
    for wrong in (torch.zeros(7), "text"):
        momentum = {**optimiser["state"], 0: {"momentum_buffer": wrong}}
        yield f"momentum {wrong}", {**state, "optimiser": {**optimiser, "state": momentum}}
    yield "no groups", {**state, "optimiser": {**optimiser, "param_groups": []}}
    yield "a text for a weight", {**state, "method": {**state["method"], first: "text"}}
    yield "no settings", {**state, "record": {}}
    yield "a step beyond the last", {**state, "step": 10**6}


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _with(value: Any, key: Any, *new: Any) -> Any:
    """A copy of a dict or list with something new at a key, or nothing."""
    if isinstance(value, dict):
        pairs = ((name, (old,) if name != key else new) for name, old in value.items())
        return {name: kept[0] for name, kept in pairs if kept}
    return type(value)([*value[:key], *new, *value[key + 1 :]])


def suffer(
    path: Path, read: Callable[[], str], good: str, *, num: int = PLACES, seed: int = 0, restore: bool = True
) -> Counter[Outcome]:
    """Damage a file in many ways, read it after each, and count.

    `read` tells what it found, in a form that can be compared: it refuses with BadInput, or it finds what is `good`
    although the file is damaged ("same") or because it has made it anew ("mended"). Anything else fails here: an
    exception of another kind as itself, a wrong result by an AssertionError that names the damage.
    """
    content, outcomes = path.read_bytes(), Counter[Outcome]()
    try:
        for words, damaged in damages(content, num, seed):
            write_new(path, damaged)
            try:
                found = read()
            except BadInput:
                outcomes["refused"] += 1
                continue
            except Exception as error:
                error.add_note(f"{path.name}: {words}")
                raise
            assert found == good, f"{path.name}, {words}: a wrong result"
            outcomes["same" if path.read_bytes() == damaged else "mended"] += 1
    finally:
        if restore:
            write_new(path, content)
    return outcomes


def write_new(path: Path, content: bytes) -> None:
    """Put another file in its place: whoever has mapped the old one keeps it."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
