"""Time as the input: what to train in the minutes there are. The choices were measured: docs/what-to-expect.md."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from msvq.config.settings import OTHER_OPTIMISERS, Settings, parse_time
from msvq.core.errors import BadInput

RECIPE = "fast"  # what a budget trains by, unless another recipe is named
METHOD = "simclr"  # of that recipe
DEFAULT = "20m"  # for a folder, where nothing is said of time
OF_MACHINE = {f"train.{key}" for key in ("seed", "device", "precision", "compile", "checkpoint_every", "log_every")}
OF_NETWORK = {"backbone.name", "backbone.width", "backbone.init"}
BY_RECIPE = {*OF_NETWORK, "train.resolution", "train.optimiser"}  # what a recipe that is named decides
# (share of the run, side of a crop as a share of the side at which pictures are tested). Small crops are cheap; in
# those of three quarters, which show parts of a picture enlarged, things are as large as in a whole one.
CROPS = ((0.0, 0.5), (0.5, 0.75))
SMALLEST = 8  # pixels of a crop
WARMUP = 0.1  # share of the run in which the rate rises
CAREFUL = 0.1  # of the rate, where a run goes on from trained weights, so that it keeps them (docs/research-log.md)
MOST_LOOKS, LOOKING = 20, 0.04  # at the run on its way, and the share of its time that they may take
SHORT = 300.0  # seconds: a shorter run is looked at less closely
SHORT_LOOK = {"knn_bank": 5_000, "map": 500}


class Rung(NamedTuple):
    """A network of the ladder, and the steps from which on it learns more in the same time than the one below."""

    name: str
    width: int
    least_steps: int


# Where resnet14 overtakes was measured (plain features, 550 to 1,100 s of one core); where a wider one does is not.
LADDER = (Rung("resnet8", 32, 0), Rung("resnet14", 32, 1_500), Rung("resnet14", 64, 20_000))


# (steps, kNN in percent) of what a budget trained on CIFAR-10: benchmarks/what-to-expect.json, means of the seeds.
EXPECTED = ((341, 65), (1_921, 75), (11_531, 79))


def is_usual(settings: Settings, keep: Collection[str]) -> bool:
    """Whether it is what the expectations were measured of: nothing that was named changes what is learned."""
    learning = {path for path in keep if path.partition(".")[0] in ("method", "backbone", "augment", "train")}
    return settings.method_name == METHOD and learning <= OF_MACHINE


def expectation(steps: int) -> str:
    """What so many steps have given on pictures that others know, for a sentence."""
    reached = [known for known in EXPECTED if known[0] <= steps]
    least, percent = reached[-1] if reached else EXPECTED[0]
    return f"{least:,} steps gave {percent} % kNN on CIFAR-10{'' if reached else ', so little'}; other pictures differ"


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


def choices(settings: Settings, seconds: float, sizes: tuple[int, int], *, keep: Collection[str]) -> list[Choice]:
    """What so many seconds choose from for pictures of these sizes (trained, tested), the smallest network first.

    What was named (in `keep`) stays; a backbone or a width that was, is the only one.
    """
    changes: dict[str, Any] = {}
    if settings.backbone.is_resnet:
        size, test_size = sizes
        changes["train.resolution"] = [
            (share, min(size, max(SMALLEST, 4 * round(part * test_size / 4)))) for share, part in CROPS
        ]
    elif "train.optimiser" not in keep:  # Muon was tried on ResNets alone
        changes |= {"train.optimiser": "adamw"}
        changes |= {f"train.{key}": value for key, value in OTHER_OPTIMISERS["adamw"].items()}
    if settings.backbone.starts_trained:
        changes["train.base_lr"] = CAREFUL * changes.get("train.base_lr", settings.train.base_lr)
    if seconds < SHORT:
        changes |= {"evaluate.knn_bank": SHORT_LOOK["knn_bank"], "analyze.map": SHORT_LOOK["map"]}
    settings = changed(settings, changes, keep=keep)
    if not settings.backbone.is_resnet or not OF_NETWORK.isdisjoint(keep):
        return [Choice(settings, 0)]
    return [
        Choice(changed(settings, {"backbone.name": name, "backbone.width": width}), least)
        for name, width, least in LADDER
    ]


def fix_length(settings: Settings, steps: int, steps_per_epoch: int, *, looks: int, keep: Collection[str]) -> Settings:
    """Settings of a run of so many steps that is looked at so many times on its way."""
    epochs = steps / steps_per_epoch
    changes = {
        "train.steps": steps,
        "train.warmup_epochs": round(WARMUP * epochs, 4),
        "evaluate.every": math.ceil(epochs / max(1, looks)),
    }
    return changed(settings, changes, keep=keep)


def limit_warmup(settings: Settings, steps_per_epoch: int) -> Settings:
    """Settings of a run in which the rate rises for a tenth of it at most."""
    steps = settings.train.steps or settings.train.epochs * steps_per_epoch
    most = round(WARMUP * steps / steps_per_epoch, 4)
    return changed(settings, {"train.warmup_epochs": min(settings.train.warmup_epochs, most)})


def limit_looks(settings: Settings) -> Settings:
    """Settings of a run that is looked at so often at most: an epoch of few pictures is over soon."""
    every = max(settings.evaluate.every, math.ceil(settings.train.epochs / MOST_LOOKS))
    return settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update={"every": every})})


def changed(settings: Settings, changes: Mapping[str, Any], *, keep: Collection[str] = ()) -> Settings:
    """The settings with other values by section.key, but for what is to be kept."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        if path not in keep:
            section, _, key = path.partition(".")
            sections.setdefault(section, {})[key] = value
    values = settings.model_dump()
    return Settings.parse(values | {name: {**values[name], **keys} for name, keys in sections.items()})
