"""Encoders side by side on pictures without labels: what can be compared of them without knowing what is right."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msvq.core.console import Display
from msvq.core.runtime import resolve_device
from msvq.data.store import ImageDataset
from msvq.evaluate.diagnostics.copies import measure_copies
from msvq.evaluate.diagnostics.health import effective_rank
from msvq.evaluate.features import feature_function
from msvq.evaluate.protocols import PRECISION
from msvq.model.losses import l2_normalize
from msvq.runs.encoder import LoadedEncoder
from msvq.runs.encoder_names import EncoderName, find_run, load_encoder
from msvq.runs.evaluate import load_beside, open_beside, open_for

NUM_PICTURES = 2000
NEIGHBOURS = 10


def compare_without_labels(
    name: EncoderName,
    beside: Sequence[str],
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    checkpoint: str = "last",
    backbone: str | None = None,
    device: str | None = None,
    display: Display,
) -> list[dict[str, Any]]:
    """A row of each encoder, the first of all first.

    `rank` of its features; `copies`, how often a changed view of a picture finds the picture, in percent; `neighbours`,
    the share of a picture's ten nearest that it has in common with the first encoder, in percent; and `seconds`.
    """
    run, target = find_run(name, backbone=backbone), resolve_device(device or "auto")
    first = load_encoder(run or name, checkpoint, backbone=backbone)
    others = [load_beside(other, first) for other in beside]
    how = None if first.guessed else first.preprocessing
    rows, seen = [], Tensor()
    for encoder in (first, *others):
        if encoder is first:
            dataset, _ = open_for(run, data, data_root, preprocessing=how, display=display)
        else:
            dataset = open_beside(encoder, first, data, data_root, display)
        with closing(dataset), display.busy(f"looking at pictures as {encoder.name} does"):
            row, near = _look(encoder, dataset, target)
        seen = near if encoder is first else seen
        common = (near[:, :, None] == seen[:, None]).any(2).double().mean()
        rows.append(row | {"neighbours": 100 * float(common)})
    return rows


def _look(encoder: LoadedEncoder, dataset: ImageDataset, device: torch.device) -> tuple[dict[str, Any], Tensor]:
    """Its row, and the places [N, k] of each picture's nearest."""
    begun, network = time.perf_counter(), encoder.network.to(device)
    function = feature_function(dataset, device, PRECISION)
    features = function(network, dataset.train.subsample(NUM_PICTURES))
    copies = measure_copies(dataset, {"found": network}, function)["recall"]["found"]["at_1"]
    unit = l2_normalize(features)
    near = (unit @ unit.T).fill_diagonal_(-2).topk(min(NEIGHBOURS, len(unit) - 1)).indices
    row = {"encoder": encoder.name, "num_features": encoder.feature_dim, "rank": effective_rank(features)}
    return row | {"copies": copies, "seconds": round(time.perf_counter() - begun, 2)}, near
