"""What only the data and the machine can decide, written into the settings, so that they repeat the run."""

from collections.abc import Iterable
from typing import Any

import torch

from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.runtime import resolve_precision
from msvq.data.sources import absolute
from msvq.data.store import ImageDataset
from msvq.model.backbones import LIBRARY

DATA_DEPENDENT = ("num_classes", "num_pictures")  # of the data, that a method may leave open


def fill_from_data(settings: Settings, data: ImageDataset, device: torch.device) -> Settings:
    """The settings with everything that depended on data and machine written out."""
    precision = resolve_precision(settings.train.precision, device)
    largest = max((side for _, side in settings.train.resolution or []), default=0)
    if largest > data.size:
        raise BadInput(
            f"train.resolution goes up to {largest} pixels, but data.size is {data.size}; change one of them"
        )
    backbone = settings.backbone.for_size(data.size)
    backbone = backbone.model_copy(update={"init": _written_down(backbone.init)})
    root = settings.data.root
    place = {"source": absolute(settings.data.source), "root": None if root is None else expanduser(root).absolute()}
    sizes = {"size": data.size, "test_size": data.test_size}
    facts = dict(zip(DATA_DEPENDENT, (data.num_classes, len(data.train)), strict=True))
    method = fill_data_dependent(settings.method, facts)
    return settings.model_copy(
        update={
            "method": method,
            "data": settings.data.model_copy(update={**place, **sizes}),
            "backbone": backbone,
            "train": settings.train.model_copy(update={"precision": precision}),
        }
    )


def fill_from_run(settings: Settings, run: Settings) -> Settings:
    """The settings with what they leave to data and machine as a run has found it; paths as they are written down."""
    data = {"source": absolute(settings.data.source)}
    data |= {key: getattr(run.data, key) for key in ("size", "test_size") if getattr(settings.data, key) is None}
    backbone = {"init": _written_down(settings.backbone.init)}
    backbone |= {"stem": run.backbone.stem} if settings.backbone.stem == "auto" else {}
    train = {"precision": run.train.precision} if settings.train.precision == "auto" else {}
    return settings.model_copy(
        update={
            "data": settings.data.model_copy(update=data),
            "backbone": settings.backbone.model_copy(update=backbone),
            "train": settings.train.model_copy(update=train),
            "method": _facts_of(settings.method, run.method),
        }
    )


def _facts_of(options: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    found = {key: run.get(key) for key in DATA_DEPENDENT if key in options and options[key] is None}
    if isinstance(options.get("base_options"), dict) and isinstance(run.get("base_options"), dict):
        found["base_options"] = _facts_of(options["base_options"], run["base_options"])
    return {**options, **found}


def _written_down(init: str | None) -> str | None:
    return init if init in (None, LIBRARY) else str(expanduser(str(init)).absolute())


def fit_to_data(settings: Settings, num_pictures: int, *, keep: Iterable[str]) -> tuple[Settings, list[str]]:
    """Settings whose batch and queue suit so many pictures, and sentences that say what was changed.

    `keep` are the settings that were asked for by name (`train.batch_size`): they stay as they are.
    """
    keep, notes, method = set(keep), [], dict(settings.method)
    wrapped = "base_options" in method  # a method around another: batch norm and queue are the other's
    options = dict(method.get("base_options") or {}) if wrapped else method
    batch, queue, splits = (settings.train.batch_size, options.get("queue_size") or 0, options.get("bn_splits") or 1)
    kept = "train.batch_size" in keep
    fitting_batch, fitting_queue = fit_to_count(num_pictures, batch, queue, splits, keep_batch=kept)
    if fitting_batch != batch:
        notes.append(f"{num_pictures:,} pictures: train.batch_size is {fitting_batch} instead of {batch}")
        train = settings.train.model_copy(update={"batch_size": fitting_batch})
        settings = settings.model_copy(update={"train": train})
    asked = {key.rpartition(".")[2] for key in keep if key.startswith("method.")}
    groups = next(n for n in range(splits, 0, -1) if n == 1 or (fitting_batch % n == 0 and fitting_batch // n >= 4))
    if groups != splits and "bn_splits" not in asked:
        notes.append(f"a batch of {fitting_batch} is normalised in {groups} groups instead of {splits}")
        options["bn_splits"] = groups
    if queue and fitting_queue != queue and "queue_size" not in asked:
        notes.append(f"{num_pictures:,} pictures: the queue holds {fitting_queue:,} instead of {queue:,}")
        options["queue_size"] = fitting_queue
    method = {**method, "base_options": options} if wrapped else options
    return settings.model_copy(update={"method": method}), notes


def fit_to_count(
    num_pictures: int, batch_size: int, queue_size: int, bn_splits: int, *, keep_batch: bool = False
) -> tuple[int, int]:
    """A batch and a queue for so many pictures: as given where they fit, else smaller.

    An epoch should have four batches, and a queue should not hold more than half of the pictures, but a whole batch.
    """
    batch = batch_size
    if batch > num_pictures // 4 and not keep_batch:
        most = num_pictures if num_pictures < 32 else max(8, num_pictures // 4)
        batch = 1 << (max(2, min(batch_size, most)).bit_length() - 1)
        batch -= batch % bn_splits if batch > bn_splits else 0
    most = max(batch, num_pictures // 2)
    queue = queue_size if queue_size <= most else most // batch * batch
    return batch, queue


def fill_data_dependent(options: dict[str, Any], facts: dict[str, int]) -> dict[str, Any]:
    """A method's options, also those of a method it wraps, with what only the data can tell."""
    filled = dict(options)
    for key, fact in facts.items():
        if key in filled and filled[key] is None:
            filled[key] = fact or None
        elif key in filled and filled[key] < fact:
            raise BadInput(f"method.{key} {filled[key]} is less than the data's {fact}; null takes the data's")
    if isinstance(filled.get("base_options"), dict):
        filled["base_options"] = fill_data_dependent(filled["base_options"], facts)
    return filled
