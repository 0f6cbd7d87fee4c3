"""What a trained method leaves for a person to look at: accuracy, audit, gallery, map, neighbours, verdict."""

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from torch import nn

from msvq.config.adapt import fill_from_data
from msvq.config.build import build_method, make_augment
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import check_places, write_text
from msvq.core.runtime import check_precision, resolve_device, resolve_precision
from msvq.data.loader import Loader
from msvq.data.store import ImageDataset
from msvq.evaluate.baselines import baseline_accuracies
from msvq.evaluate.diagnostics.copies import measure_copies
from msvq.evaluate.diagnostics.embedding_map import save_map
from msvq.evaluate.diagnostics.gallery import audit_soft_labels, save_arrays, save_neighbours
from msvq.evaluate.diagnostics.groups import save_groups
from msvq.evaluate.diagnostics.health import measure_health, queue_health, teacher_distances
from msvq.evaluate.diagnostics.verdict import copies_found, rightly_named, verdict
from msvq.evaluate.features import EvalContext, feature_function, fit_whitening
from msvq.evaluate.knn import KnnSettings, last_bank
from msvq.evaluate.labels import chance
from msvq.evaluate.protocols import PRECISION, run_protocol
from msvq.methods import METHODS, Method
from msvq.model.initial import read_weights
from msvq.runs.encoder import load_method
from msvq.runs.evaluate import open_for
from msvq.runs.metrics import nan_to_none
from msvq.runs.run_dir import INITIAL, RunDir


def analyze(
    run: RunDir,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    checkpoint: str = "last",
    method: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """What `RUN/eval/analysis.json` holds; the arguments are those of `msvq analyze`."""
    check_places(run.path, ["eval"])
    display = display or Display()
    built, name, step = load_method(run, checkpoint, method=method)
    target = resolve_device(device or "auto")
    settings = run.config
    if method is not None:
        settings = settings.model_copy(update={"method": {**settings.method, "name": method}})
    if data is not None:
        settings = settings.model_copy(update={"data": settings.data.model_copy(update={"source": data})})
    dataset, _ = open_for(run, data, data_root, moved=True, display=display)
    with closing(dataset):
        if run.environment().get("data_fingerprint") not in (None, dataset.fingerprint):
            raise BadInput(
                f"the pictures of {dataset.name} are not those of the run; "
                f"give the right ones with --data or --data-root"
            )
        settings = fill_from_data(settings, dataset, target)
        wanted = resolve_precision(check_precision(precision or settings.train.precision), target)
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"precision": wanted})})
        pictures = dataset.labelled if METHODS[settings.method_name].needs_labels else dataset.train
        loader = Loader(pictures, batch_size=settings.train.batch_size, seed=settings.train.seed, device=target)
        return evaluate_finished_run(
            run, settings, dataset, built.to(target), loader, checkpoint=name, step=step, display=display
        )


def evaluate_finished_run(
    run: RunDir,
    settings: Settings,
    data: ImageDataset,
    method: Method,
    loader: Loader,
    *,
    checkpoint: str = "last",
    step: int,
    display: Display,
) -> dict[str, Any]:
    """Look at a trained method and write what is seen to RUN/eval. Returns what `analysis.json` holds."""
    folder, precision = run.path / "eval", settings.train.precision
    if settings.train.accumulate > 1:  # as it was trained: what fitted into memory then, fits now
        part = settings.train.batch_size // settings.train.accumulate
        loader = Loader(loader.pictures, batch_size=part, seed=loader.seed, device=loader.device)
    suffix = "" if checkpoint == "last" else f"-{checkpoint}"
    encoder, accuracy = method.encoder, None
    if data.has_labels:
        voting = replace(data, labelled=last_bank(data.labelled, settings.evaluate.knn_bank))
        subject = EvalContext(encoder, settings.backbone, voting, loader.device, PRECISION, display)
        vote = KnnSettings(k=min(settings.evaluate.knn_k, len(voting.labelled)), temp=settings.evaluate.knn_temp)
        changes = {key: value for key, value in vote if value != getattr(KnnSettings(), key)}
        changes |= {"bank": len(voting.labelled)} if len(voting.labelled) < len(data.labelled) else {}
        try:
            found = run_protocol("knn", subject, vote, changes, checkpoint=checkpoint, step=step)
            found.model_copy(update={"data_fingerprint": data.fingerprint}).save(folder)  # whoever of it has voted
            accuracy = found.top1
        except BadInput as error:  # which stops nothing else: the rest shows what went wrong
            display.note(f"note: no kNN accuracy: {error}")
    audit, gallery = audit_soft_labels(
        method, data, loader, make_augment(settings, data), precision=precision, display=display
    )
    if gallery is not None:
        save_arrays(folder / f"gallery{suffix}.npz", gallery)
    initial = run.path / INITIAL
    start = read_weights(initial) if initial.is_file() else None
    if start is None and settings.backbone.init is not None:
        display.note(f"note: {INITIAL} is gone, so 'before' is the backbone with fresh weights")
    fresh = build_method(settings, data.size, start).to(loader.device).encoder  # as it was before training
    with display.busy("drawing the embedding map"):
        features = feature_function(data, loader.device, precision)
        fit_whitening(fresh, features, data.train)
        encoders = {"before": fresh, "after": encoder}
        if settings.analyze.map:
            save_map(folder / f"map{suffix}.npz", data, encoders, features, num=settings.analyze.map)
        bank, known = save_neighbours(folder / f"neighbours{suffix}.npz", data, encoders, features)
    with display.busy("looking for originals of changed copies"):
        copies = measure_copies(data, {"trained": encoder, "untrained": fresh}, features)
    log = [line for line in run.metrics() if line["step"] <= step]
    logged = [line["knn_top1"] for line in log if line.get("knn_top1") is not None]
    knn = None
    if accuracy is not None and logged:
        fewer_voted = len(data.labelled.subsample(settings.evaluate.knn_bank)) < len(voting.labelled)
        untrained = None if fewer_voted else logged[0]
        knn = compare_accuracies(subject, fresh, vote, trained=accuracy, untrained=untrained)
    tests = [] if knn is None else [rightly_named(knn["accuracy"], knn["pictures"], knn["chance"])]
    tests.append(copies_found({name: found["at_1"] for name, found in copies["recall"].items()}, copies["pictures"]))
    history = [line for line in log if "rank" in line]
    if not history or history[-1]["step"] != step:  # a checkpoint between two looks
        history.append(measure_health(method, pictures=data.train, features=features))
    # What was no number is null in the log.
    numbers = [{key: math.nan if value is None else value for key, value in line.items()} for line in history]
    judged = verdict(numbers, tests, steps=step, seconds_per_step=seconds_per_step(log, settings))
    (folder / f"groups{suffix}.npz").unlink(missing_ok=True)  # of an earlier judgement
    if not data.has_labels and judged.state != "collapsed":
        with display.busy("finding groups and odd ones"):
            save_groups(folder / f"groups{suffix}.npz", bank, known)
    result = {
        "checkpoint": checkpoint,
        "step": step,
        "verdict": {"state": judged.state, "sentence": judged.sentence, "advice": list(judged.advice)},
        "health": {
            key: value for key, value in history[-1].items() if isinstance(value, float) and not key.startswith("knn")
        },
        "copies": copies,
        "knn": knn,
        "false_negatives": None if audit is None else named(audit, data),
        "teachers": teacher_distances(method),
        "queues": queue_health(method, steps=step),
    }
    write_text(folder / f"analysis{suffix}.json", json.dumps(nan_to_none(result), indent=1) + "\n")
    return result


def compare_accuracies(
    subject: EvalContext, fresh: nn.Module, vote: KnnSettings, *, trained: float, untrained: float | None
) -> dict[str, Any]:
    """kNN accuracy after training, before it, and of what one has without an encoder, by one vote.

    `untrained`: as it was logged; None: the log has it by another vote, and it is measured of the `fresh` network.
    """
    if untrained is None:
        before = replace(subject, encoder=fresh, cached=None)
        untrained = run_protocol("knn", before, vote, {}, checkpoint="", step=0).top1
    bank, test = subject.data.labelled, subject.data.test
    baselines = baseline_accuracies(bank, test, k=vote.k, temp=vote.temp)
    accuracy = {"trained": trained, "untrained": untrained, **baselines}
    return {"pictures": len(test), "chance": chance(test.labels), "accuracy": accuracy}


def seconds_per_step(log: Sequence[dict[str, Any]], settings: Settings) -> float | None:
    """The mean over the epochs; None where none is over."""
    speeds = [line["images_per_second"] for line in log if line.get("images_per_second")]
    return mean(settings.train.batch_size / speed for speed in speeds) if speeds else None


def named(audit: dict[str, Any], data: ImageDataset) -> dict[str, Any]:
    """An audit whose classes have their names."""
    names = {str(number): name for number, name in enumerate(data.class_names)}
    rows = {
        names.get(key, key): {"samples": row["samples"], **row["found"], "mass": row["mass"]["all"]}
        for key, row in audit["by_class"].items()
    }
    return {**audit, "by_class": rows}
