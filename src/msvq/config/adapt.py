"""What only the data and the machine can decide, written into the settings, so that they repeat the run."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.runtime import resolve_precision
from msvq.data.sources import absolute
from msvq.data.store import ImageDataset
from msvq.evaluate.knn import suitable_k
from msvq.methods import METHODS
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
    told = _method_options(settings)
    facts = dict(zip(DATA_DEPENDENT, (data.num_classes, len(data.train)), strict=True))
    for key, fact in facts.items():
        if told.get(key) is not None and told[key] < fact:
            raise BadInput(f"method.{key} {told[key]} is less than the data's {fact}; null takes the data's")
    root = settings.data.root
    place = {"source": absolute(settings.data.source), "root": None if root is None else expanduser(root).absolute()}
    backbone = settings.backbone.for_size(data.size)
    return _update(
        settings,
        data={**place, "size": data.size, "test_size": data.test_size},
        backbone={"stem": backbone.stem, "init": _written_down(backbone.init)},
        train={"precision": precision},
        method={key: fact or None for key, fact in facts.items() if told.get(key) is None},
    )


def fill_from_method(settings: Settings) -> Settings:
    """The settings with every option of the method; one that is younger than a run did by its default what it did."""
    method = METHODS.get(settings.method_name)
    if method is None:  # code of one's own that is not loaded yet
        return settings
    options = method.check_options(settings.method_options)
    return settings.model_copy(update={"method": {"name": settings.method_name, **options}})


def fill_from_run(settings: Settings, run: Settings) -> Settings:
    """The settings with what they leave to data and machine as a run has found it; paths as they are written down."""
    found, told = METHODS[settings.method_name].all_options(run.method), _method_options(settings)
    data = {key: getattr(run.data, key) for key in ("size", "test_size") if getattr(settings.data, key) is None}
    stem = run.backbone.stem if settings.backbone.stem == "auto" else settings.backbone.stem
    train: dict[str, Any] = {"precision": run.train.precision} if settings.train.precision == "auto" else {}
    if settings.train.steps is not None:  # they decide how many epochs are begun
        train["epochs"] = run.train.epochs
    return _update(
        settings,
        data={"source": absolute(settings.data.source), **data},
        backbone={"stem": stem, "init": _written_down(settings.backbone.init)},
        train=train,
        method={key: found.get(key) for key in DATA_DEPENDENT if told.get(key) is None},
    )


def _method_options(settings: Settings) -> dict[str, Any]:
    """Of the method and of one that it wraps."""
    return METHODS[settings.method_name].all_options(settings.method)


def _update(settings: Settings, *, method: Mapping[str, Any], **sections: Mapping[str, Any]) -> Settings:
    """The settings with other values in their sections."""
    changed: dict[str, Any] = {
        name: getattr(settings, name).model_copy(update=values) for name, values in sections.items()
    }
    changed["method"] = METHODS[settings.method_name].replace_options(settings.method, method)
    return settings.model_copy(update=changed)


def _written_down(init: str | None) -> str | None:
    """A path no longer depends on where the command ran; what is none is a name."""
    place = None if init in (None, LIBRARY) else expanduser(str(init))
    return str(place.absolute()) if place is not None and place.exists() else init


def fit_to_data(settings: Settings, num_pictures: int, *, keep: Iterable[str]) -> tuple[Settings, list[str]]:
    """Settings whose batch and queue suit so many pictures, and sentences that say what was changed.

    `keep` are the settings that were asked for by name (`train.batch_size`): they stay as they are.
    """
    keep, told, notes, changes = set(keep), _method_options(settings), [], {}
    old_batch, old_queue, splits = settings.train.batch_size, told.get("queue_size") or 0, told.get("bn_splits") or 1
    asked = {key.rpartition(".")[2] for key in keep if key.startswith("method.")}
    batch, queue = fit_to_count(num_pictures, old_batch, old_queue, splits, keep_batch="train.batch_size" in keep)
    if batch != old_batch:
        notes.append(f"{num_pictures:,} pictures: train.batch_size is {batch} instead of {old_batch}")
    groups = next(n for n in range(splits, 0, -1) if n == 1 or (batch % n == 0 and batch // n >= 4))
    if groups != splits and "bn_splits" not in asked:
        notes.append(f"a batch of {batch} is normalised in {groups} groups instead of {splits}")
        changes["bn_splits"] = groups
    if queue != old_queue and "queue_size" not in asked:
        notes.append(f"{num_pictures:,} pictures: the queue holds {queue:,} instead of {old_queue:,}")
        changes["queue_size"] = queue
    return _update(settings, train={"batch_size": batch}, method=changes), notes


def fit_vote(settings: Settings, labels: NDArray[np.int64], *, keep: Iterable[str]) -> tuple[Settings, list[str]]:
    """Settings by which as many neighbours vote as suit these labelled pictures, and a sentence if they are fewer."""
    k = min(settings.evaluate.knn_k, suitable_k(labels))
    if k == settings.evaluate.knn_k or not len(labels) or "evaluate.knn_k" in keep:
        return settings, []
    note = f"{len(labels):,} labelled pictures: {k} nearest neighbours vote instead of {settings.evaluate.knn_k}"
    evaluate = settings.evaluate.model_copy(update={"knn_k": k})
    return settings.model_copy(update={"evaluate": evaluate}), [note]


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
