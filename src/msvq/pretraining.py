"""One call from pictures to an encoder: it wires data, method, trainer, kNN and report together."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from msvq.analyze.collapse import Verdict
from msvq.analyze.health import HealthMonitor
from msvq.analyze.monitor import AnalysisMonitor
from msvq.building import build_method, make_augment
from msvq.card import save_encoder
from msvq.completion import complete, fit_to_data
from msvq.config import Settings, resolve
from msvq.data.loader import Loader
from msvq.data.sources import check_source, is_path, open_dataset
from msvq.data.store import DataSet
from msvq.directory import add_skipped, check_choice, check_out, environment, locked, start_directory
from msvq.display import Display
from msvq.errors import BadInput, unknown
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import KnnMonitor
from msvq.launch import is_first
from msvq.methods import METHODS, Method
from msvq.protocols import check_protocols
from msvq.report.page import write_report
from msvq.resuming import Saved, barely_begun, go_on, has_checkpoint, open_saved, withdraw
from msvq.run import Run, load
from msvq.run_files import is_run
from msvq.starting import Start, find_start
from msvq.study import pair_function, study
from msvq.train.checkpoint import sweep
from msvq.train.distributed import agreeing, check_alike, joined, leave, own_device
from msvq.train.limits import check_fit, room_for_networks
from msvq.train.listeners import Callback, Listeners
from msvq.train.loggers import make_loggers
from msvq.train.precision import resolve_device
from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import Monitor, Observer, Trainer


def pretrain(
    *,
    out: str | Path,
    data: str | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    method: str | None = None,
    backbone: str | None = None,
    init: str | Path | None = None,
    recipe: str | Path | None = None,
    epochs: int | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    resume: bool = False,
    auto_resume: bool = False,
    overwrite: bool = False,
    loggers: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    protocols: Sequence[str] = (),
    console: Console | None = None,
    made_by: str = "msvq.pretrain",
) -> Run:
    """Train an encoder and return its run. The arguments are those of `msvq pretrain`.

    `overrides` are `key.path=value` strings. `loggers` are "tensorboard" and "wandb". Each of `callbacks` is called
    with every line of metrics.jsonl; an error that it raises ends the run once it is saved. `protocols` of
    `msvq evaluate` are measured when the run is trained, on the features that its kNN has taken. Nothing on disk
    changes until all of the input is checked. Of several processes under torchrun, the first returns when the run is
    complete, the others when it is trained.
    """
    out = Path(out)
    console = console or Console() if is_first() else Console(quiet=True)
    display = Display(console)
    with ExitStack() as held:
        held.enter_context(joined())
        with agreeing():
            check_protocols(protocols)
            check_choice(resume or auto_resume, overwrite)
            listeners = Listeners(make_loggers(loggers), callbacks)
            if auto_resume:
                resume = has_checkpoint(out)
                overwrite = overwrite or barely_begun(out)
            if resume and out.is_dir() and is_first():
                held.enter_context(locked(out))
                if is_run(out):
                    sweep(out / "checkpoints")
        with agreeing():  # when the first process has put the checkpoints in order
            saved = open_saved(out, display) if resume else None
            begun = None if saved is None else saved.settings.model_dump(mode="json")
            asked: dict[str, Any] = {"data": data, "data_root": data_root, "method": method, "backbone": backbone}
            asked |= {"init": init, "overrides": overrides, "epochs": epochs, "seed": seed, "device": device}
            asked |= {"precision": precision, "compile": compile}
            settings = resolve(recipe=recipe, base=begun if recipe is None else None, **asked)
            over = saved if auto_resume and saved is not None and saved.finished else None
            if over is not None and over.learns_the_same(settings):
                display.note(f"the run in {out} is finished already")
                return load(out, backbone=backbone)
            check_source(settings.data.source)
            target = own_device(resolve_device(settings.train.device))
            if saved is None:
                check_out(out, overwrite=overwrite)
        dataset = open_in_turn(settings, download=download, display=display)
        if dataset.stream is not None:
            held.callback(dataset.stream.workers.close)
        with agreeing():
            fitting = is_path(settings.data.source) and recipe is None and saved is None
            asked_for = [text.partition("=")[0].strip() for text in overrides] if fitting else None
            start = find_start(settings, dataset.size) if saved is None else None  # else the checkpoint counts
            settings, network, loader, notes = prepare(settings, dataset, target, asked_for, start)
        stands = "new" if saved is None else f"{saved.state['step']} of {saved.state['total_steps']}"
        check_alike(settings.to_yaml() + dataset.fingerprint() + stands + (start.sha256 if start else ""))
        with agreeing():
            if is_first() and saved is not None:
                go_on(saved, settings, dataset, network)
            elif is_first():
                held.enter_context(locked(out))
                check_out(out, overwrite=overwrite and not (auto_resume and has_checkpoint(out)))
                known = environment(settings, dataset, target, made_by) | ({"init": start.record()} if start else {})
                start_directory(out, settings, known, dataset.skipped)
                if start is not None:
                    start.keep(out)
        if dataset.stream is not None:
            dataset.stream.on_lost = lambda name, reason: add_skipped(out, name, reason, console)
        for note in notes:
            display.note(f"note: {note}")
        return train(
            out,
            settings,
            dataset,
            network,
            loader,
            console=console,
            saved=saved,
            listeners=listeners,
            protocols=protocols,
        )


def open_in_turn(settings: Settings, *, download: bool, display: Display) -> DataSet:
    """The data set. Of several processes the first downloads and packs, and the others find it done."""
    opened: DataSet | None = None
    with agreeing():
        if is_first():
            opened = open_dataset(settings.data, download=download, display=display)
    with agreeing():
        return opened or open_dataset(settings.data, download=download, display=display)


def prepare(
    settings: Settings,
    dataset: DataSet,
    target: torch.device,
    asked_for: Sequence[str] | None,
    start: Start | None = None,
) -> tuple[Settings, Method, Loader, list[str]]:
    """Complete settings, the untrained method and the loader, all checked; and sentences about what was changed.

    `asked_for`: settings that were named, where the others are fitted to the number of pictures; None: none are.
    `start`: weights that the backbone starts from.
    """
    notes = [*dataset.notes, *([] if start is None else [start.note()])]
    pictures = dataset.bank if METHODS[settings.method_name].needs_labels else dataset.train
    if asked_for is not None:
        settings, changes = fit_to_data(settings, len(pictures), keep=asked_for)
        notes += changes
    settings = complete(settings, dataset, target)
    with room_for_networks(torch.device("cpu")):
        network = build_method(settings, dataset.size, None if start is None else start.weights)
    check_fit(network, settings.train.batch_size, settings.train.accumulate)
    for view in network.views:
        if view not in type(settings.augment).model_fields:
            raise unknown(f"view of {settings.method_name}", view, type(settings.augment).model_fields)
    if not len(pictures):
        raise BadInput(
            f"{settings.method_name} learns from labels, and {dataset.name} has none; choose another --method"
        )
    loader = Loader(pictures, batch_size=settings.train.batch_size, seed=settings.train.seed, device=target)
    return settings, network, loader, notes


def make_trainer(
    settings: Settings,
    data: DataSet,
    method: Method,
    loader: Loader,
    *,
    directory: Path,
    display: TrainingDisplay,
    monitors: Sequence[Monitor] = (),
    observers: Sequence[Observer] = (),
    record: Mapping[str, Any] | None = None,
    listeners: Listeners | None = None,
) -> Trainer:
    """The loop for complete settings."""
    return Trainer(
        method,
        loader,
        make_augment(settings, data),
        settings.train,
        directory=directory,
        display=display,
        precision=settings.train.precision,
        monitors=monitors,
        observers=observers,
        record=record,
        listeners=listeners,
    )


def train(
    out: Path,
    settings: Settings,
    data: DataSet,
    method: Method,
    loader: Loader,
    *,
    console: Console,
    saved: Saved | None,
    listeners: Listeners | None = None,
    protocols: Sequence[str] = (),
) -> Run:
    """Train to the end and write everything that the run leaves behind."""
    precision = settings.train.precision
    features = feature_function(data, loader.device, precision)
    if settings.train.warmup_epochs >= settings.train.epochs:
        console.print("note: the warm-up is as long as the run; lower train.warmup_epochs to leave it")
    if data.has_labels and settings.evaluate.knn_k > len(data.bank):
        console.print(f"note: kNN uses k = {len(data.bank)}, the number of labelled pictures")
    epochs, run = settings.train.epochs, Run(out)
    watch = AnalysisMonitor(
        HealthMonitor(
            data.train,
            every=settings.analyze.every or settings.evaluate.every,
            epochs=epochs,
            features=features,
            pairs=pair_function(settings, data, loader.device),
        ),
        settings.analyze,
        steps_per_epoch=len(loader),
        warn=lambda verdict: warn(verdict, console),
    )
    monitors: list[Monitor] = [watch]
    knn: KnnMonitor | None = None
    if data.has_labels:
        evaluation = settings.evaluate
        if METHODS[settings.method_name].needs_labels:  # it has learned the labels of what would be held out
            evaluation = evaluation.model_copy(update={"validation": 0.0})
        knn = KnnMonitor(data, evaluation, epochs=epochs, features=features)
        monitors.insert(0, knn)
    else:
        console.print("note: no labels, so no accuracy: rank and spread tell of a collapse", highlight=False)
    display = TrainingDisplay(console, total_steps=epochs * len(loader), epochs=epochs)
    trainer = make_trainer(
        settings,
        data,
        method,
        loader,
        directory=out,
        display=display,
        monitors=monitors,
        observers=[watch],
        record={"settings": settings.model_dump(mode="json"), "data_fingerprint": data.fingerprint()},
        listeners=listeners,
    )
    if knn is not None:
        knn.on_best = trainer.save_best
    if saved is not None:
        with agreeing():
            trainer.load(saved.state)
        if trainer.step < trainer.total_steps:
            withdraw(out)
        if saved.state["record"] != trainer.record:  # what was changed lasts from here on, whatever happens next
            trainer.save()
    console.print(
        f"{method.title} on {data.name}: {len(loader.pictures):,} pictures, {settings.train.epochs} epochs of "
        f"{len(loader)} steps, {settings.backbone.title}, "
        f"{loader.device} {precision}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    trainer.fit()
    leave()  # what is left is not worth sharing
    if not is_first():
        return run
    save_encoder(out, method.encoder, settings, data)
    study(run, settings, data, method, loader, step=trainer.step, protocols=protocols, display=Display(console))
    write_report(out)
    return run


def warn(verdict: Verdict, console: Console) -> None:
    """Say that a run is collapsing, and what to try."""
    Display(console).note(" ".join([f"warning: {verdict.sentence}", *verdict.advice]))
