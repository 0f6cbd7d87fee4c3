"""Encoders side by side on pictures without labels: what can be compared of them without knowing what is right."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from msvq.core.console import Display
from msvq.core.files import write_text
from msvq.core.runtime import resolve_device
from msvq.evaluate.diagnostics.copies import encoding, in_batches, measure_recall, pictures_to_copy
from msvq.evaluate.diagnostics.health import effective_rank
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import nearest_others
from msvq.evaluate.protocols import PRECISION
from msvq.runs.encoder_names import EncoderName, find_run, load_encoder
from msvq.runs.evaluate import load_beside, open_beside, open_for
from msvq.runs.metrics import nan_to_none

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
    out: Path | None = None,
    display: Display,
) -> tuple[dict[str, Any], Path | None]:
    """What was compared, with a row of each encoder in `beside`, the first of all first; and the file that holds it.

    `rank` of its features; `copies`, how often a changed view of a picture finds the picture, in percent; `neighbours`,
    the share of a picture's ten nearest that it has in common with the first encoder, in percent; and `seconds` that
    its features take. The file is `out`, or RUN/eval/beside.json.
    """
    run, target = find_run(name, backbone=backbone), resolve_device(device or "auto")
    first = load_encoder(run or name, checkpoint, backbone=backbone)
    encoders = [first, *(load_beside(other, first) for other in beside)]
    how = None if first.guessed else first.preprocessing
    with ExitStack() as opened:
        datasets = [open_for(run, data, data_root, preprocessing=how, display=display)[0]]
        datasets += [open_beside(other, run, data, data_root, display) for other in encoders[1:]]
        for dataset in datasets:
            opened.enter_context(closing(dataset))
        functions = [feature_function(dataset, target, PRECISION) for dataset in datasets]
        networks = [encoder.network.to(target) for encoder in encoders]
        rows, nearest = [], []
        for encoder, dataset, network, function in zip(encoders, datasets, networks, functions, strict=True):
            with display.busy(f"looking at pictures as {encoder.name} does"):
                begun = time.perf_counter()
                features = function(network, dataset.train.subsample(NUM_PICTURES))
                seconds = round(time.perf_counter() - begun, 2)
            nearest.append(nearest_others(features, NEIGHBOURS)[1])
            common = (nearest[-1][:, :, None] == nearest[0][:, None]).any(2).double().mean()
            row = {"encoder": encoder.name, "num_features": encoder.feature_dim, "rank": effective_rank(features)}
            rows.append(row | {"neighbours": 100 * float(common), "seconds": seconds})
        with display.busy("looking for changed copies"):  # the same ones by all, of the largest pictures that one takes
            largest = max(datasets, key=lambda dataset: min(dataset.train.shape[1:3]))
            each = {str(number): encoding(*pair) for number, pair in enumerate(zip(networks, functions, strict=True))}
            found = measure_recall(in_batches(pictures_to_copy(largest)), each)
    for row, recall in zip(rows, found.values(), strict=True):
        row["copies"] = recall["at_1"]
    about = {"data": datasets[0].name, "pictures": len(nearest[0]), "checkpoint": first.checkpoint, "step": first.step}
    record = {**about, "beside": [nan_to_none(row) for row in rows]}
    path = run.path / "eval" / "beside.json" if out is None and run is not None else out
    if path is not None:
        write_text(path, json.dumps(record, indent=1) + "\n")
    return record, path
