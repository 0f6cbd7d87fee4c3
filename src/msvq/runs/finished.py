"""What a trained method leaves for a person to look at: accuracy, audit, gallery, map, neighbours, report."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.api import Run
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.distributed import map_sharded
from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.core.runtime import autocast
from msvq.data.loader import Loader
from msvq.data.store import ImageDataset
from msvq.evaluate.diagnostics.collapse import verdict
from msvq.evaluate.diagnostics.embedding_map import save_map
from msvq.evaluate.diagnostics.gallery import audit_soft_labels, save_gallery
from msvq.evaluate.diagnostics.health import Pairs, measure_health, queue_health, teacher_distances
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import KnnSettings, last_bank
from msvq.evaluate.neighbours import save_neighbours
from msvq.evaluate.protocols import PROTOCOLS, EvalContext
from msvq.methods import Method
from msvq.runs.evaluate import PRECISION, measure, protocol_id, save_result
from msvq.runs.metrics import nan_to_none
from msvq.train.build import build_method, make_augment
from msvq.train.init_weights import KEPT, read_initial_weights

ALIGNED = 2000  # pictures of which two views are compared


@contextmanager
def _noted(protocol: str, display: Display) -> Iterator[None]:
    """What cannot be measured is told, and stops nothing else: the rest shows what went wrong."""
    try:
        yield
    except BadInput as error:
        display.note(f"note: no {protocol} accuracy: {error}")


def evaluate_finished_run(
    run: Run,
    settings: Settings,
    data: ImageDataset,
    method: Method,
    loader: Loader,
    *,
    checkpoint: str = "last",
    step: int,
    protocols: Iterable[str] = (),
    display: Display,
) -> dict[str, Any]:
    """Look at a trained method and write what is seen to RUN/eval. Returns what `analysis.json` holds.

    `protocols`: what it is judged by besides kNN, where it has labels.
    """
    folder, precision = run.path / "eval", settings.train.precision
    if settings.train.accumulate > 1:  # as it was trained: what fitted into memory then, fits now
        part = settings.train.batch_size // settings.train.accumulate
        loader = Loader(loader.pictures, batch_size=part, seed=loader.seed, device=loader.device)
    suffix = "" if checkpoint == "last" else f"-{checkpoint}"
    encoder = method.encoder
    if data.has_labels:
        voting = replace(data, bank=last_bank(data.bank, settings.evaluate.knn_bank))
        subject = EvalContext(encoder, settings.backbone, voting, loader.device, PRECISION, display)
        vote = KnnSettings(k=min(settings.evaluate.knn_k, len(voting.bank)), temp=settings.evaluate.knn_temp)
        changes = {key: value for key, value in vote if value != getattr(KnnSettings(), key)}
        changes |= {"bank": len(voting.bank)} if len(voting.bank) < len(data.bank) else {}
        place = {"data": data.name, "data_fingerprint": data.fingerprint(), "transfer": False, "changes": changes}
        weighed = {"checkpoint": checkpoint, "step": step}
        with _noted("kNN", display):
            found = measure("knn", subject, vote)
            save_result(run.path, {"protocol": protocol_id("knn", vote, changes), **found, **place, **weighed})
        whole = subject if voting.bank is data.bank else replace(subject, data=data, cached=None)
        for protocol in protocols:
            with _noted(protocol, display):
                plain = PROTOCOLS[protocol].settings()
                found = measure(protocol, whole, plain) | place | weighed | {"changes": {}}
                save_result(run.path, {"protocol": protocol_id(protocol, plain, {}), **found})
    audit, gallery = audit_soft_labels(
        method, data, loader, make_augment(settings, data), precision=precision, display=display
    )
    if gallery is not None:
        save_gallery(folder / f"gallery{suffix}.npz", gallery)
    start = read_initial_weights(run.path)
    if start is None and settings.backbone.init is not None:
        display.note(f"note: {KEPT} is gone, so 'before' is the backbone with fresh weights")
    fresh = build_method(settings, data.size, start).to(loader.device).encoder  # as it was before training
    with display.busy("drawing the embedding map"):
        features = feature_function(data, loader.device, precision)
        encoders = {"before": fresh, "after": encoder}
        if settings.analyze.map:
            save_map(folder / f"map{suffix}.npz", data, encoders, features, num=settings.analyze.map)
        save_neighbours(folder / f"neighbours{suffix}.npz", data, encoders, features)
    history = [line for line in run.metrics() if "rank" in line and line["step"] <= step]
    if not history or history[-1]["step"] != step:  # a checkpoint between two looks
        history.append(measure_health(method, pictures=data.train, features=features))
    # What was no number is null in the log.
    judged = verdict([{key: math.nan if value is None else value for key, value in line.items()} for line in history])
    result = {
        "checkpoint": checkpoint,
        "step": step,
        "verdict": {"state": judged.state, "sentence": judged.sentence, "advice": list(judged.advice)},
        "health": {
            key: value for key, value in history[-1].items() if isinstance(value, float) and not key.startswith("knn")
        },
        "false_negatives": None if audit is None else named(audit, data),
        "teachers": teacher_distances(method),
        "queues": queue_health(method, steps=step),
    }
    write_text(folder / f"analysis{suffix}.json", json.dumps(nan_to_none(result), indent=1) + "\n")
    return result


def named(audit: dict[str, Any], data: ImageDataset) -> dict[str, Any]:
    """An audit whose classes have their names."""
    names = {str(number): name for number, name in enumerate(data.class_names)}
    rows = {
        names.get(key, key): {"samples": row["samples"], **row["found"], "mass": row["mass"]["all"]}
        for key, row in audit["by_class"].items()
    }
    return {**audit, "by_class": rows}


def pair_function(settings: Settings, data: ImageDataset, device: torch.device) -> Pairs:
    """An encoder's features of two weak views of the same pictures, always the same ones."""
    augment, kept = make_augment(settings, data), data.train.subsample(ALIGNED)

    def pairs(encoder: nn.Module) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        was_training = encoder.training
        encoder.eval()
        found: list[Tensor] = []  # [n, 2, d] each

        def of_share(images: NDArray[np.uint8], rows: slice) -> Tensor:
            part = torch.from_numpy(images[rows]).to(device)
            views = augment(part, ("weak", "weak"), generator, rows=rows, of=len(images))
            with torch.no_grad(), autocast(device, settings.train.precision):
                return torch.stack([encoder(view).float().cpu() for view in views], dim=1)

        try:
            for images in kept.batches_in_order(500):
                found.append(map_sharded(len(images), partial(of_share, images)))
        finally:
            encoder.train(was_training)
        first, second = torch.cat(found).unbind(1)
        return first, second

    return pairs
