"""Time as the input: what to train in the minutes there are. The choices were measured: docs/what-to-expect.md."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from msvq.config.settings import Settings, parse_time
from msvq.core.errors import BadInput

RECIPE = "fast"  # what a budget trains by, unless another recipe is named
DEFAULT = "20m"  # for a folder, where nothing is said of time
BY_RECIPE = {"backbone.name", "backbone.width", "train.resolution"}  # what a recipe that is named decides
CROPS = ((0.0, 0.5), (0.6, 0.75), (0.85, 1.0))  # (share of the run, side as a share of the data's): they grow
WARMUP = 0.1  # share of the run in which the rate rises
MOST_LOOKS, LOOKING = 20, 0.04  # at the run on its way, and the share of its time that they may take
SHORT = 300.0  # seconds: a shorter run is looked at less closely
SHORT_LOOK = {"knn_bank": 5_000, "map": 500}


class Rung(NamedTuple):
    """A network of the ladder, and the steps from which on it learns more in the same time than the one below."""

    width: int
    least_steps: int


LADDER = (Rung(16, 0), Rung(24, 6_000), Rung(32, 12_000), Rung(48, 24_000), Rung(64, 48_000))


class Choice(NamedTuple):
    """Settings that a budget may take, if they make so many steps in it."""

    settings: Settings
    least_steps: int


def parse_budget(text: str) -> float:
    """Seconds of a time such as 90s, 10m or 2h."""
    seconds = parse_time(str(text))
    if seconds == 0:
        raise BadInput(f"--budget {text!r} is not a time; give one such as 90s, 10m or 2h")
    return seconds


def choices(settings: Settings, seconds: float, size: int, *, keep: Collection[str]) -> list[Choice]:
    """What so many seconds choose from for pictures of `size` pixels, the smallest network first.

    What was named (in `keep`) stays: a width, or a backbone that is no ResNet of ours, is the only one.
    """
    backbone = settings.backbone
    changes: dict[str, Any] = {}
    if backbone.is_resnet:
        changes["train.resolution"] = [(share, 4 * round(part * size / 4)) for share, part in CROPS]
    if seconds < SHORT:
        changes |= {"evaluate.knn_bank": SHORT_LOOK["knn_bank"], "analyze.map": SHORT_LOOK["map"]}
    settings = changed(settings, changes, keep=keep)
    if not backbone.is_resnet or "backbone.width" in keep:
        return [Choice(settings, 0)]
    return [Choice(changed(settings, {"backbone.width": rung.width}), rung.least_steps) for rung in LADDER]


def fix_length(settings: Settings, steps: int, steps_per_epoch: int, *, looks: int, keep: Collection[str]) -> Settings:
    """Settings of a run of so many steps that is looked at so many times on its way."""
    epochs = steps / steps_per_epoch
    changes = {
        "train.steps": steps,
        "train.warmup_epochs": round(WARMUP * epochs, 4),
        "evaluate.every": math.ceil(epochs / max(1, looks)),
    }
    return changed(settings, changes, keep=keep)


def changed(settings: Settings, changes: Mapping[str, Any], *, keep: Collection[str] = ()) -> Settings:
    """The settings with other values by section.key, but for what is to be kept."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        if path not in keep:
            section, _, key = path.partition(".")
            sections.setdefault(section, {})[key] = value
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=values) for name, values in sections.items()}
    )
