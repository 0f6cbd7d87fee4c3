"""One call from pictures to an encoder: it wires data, method, trainer, kNN and report together."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from msvq.api import Run, load
from msvq.config.adapt import fill_from_data, fit_to_data
from msvq.config.resolve import resolve
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.distributed import (
    check_same_on_all_ranks,
    destroy_process_group,
    errors_on_all_ranks,
    own_device,
    process_group,
)
from msvq.core.errors import BadInput, unknown
from msvq.core.files import is_run
from msvq.core.launch import is_main_process
from msvq.core.runtime import resolve_device
from msvq.data.loader import Loader
from msvq.data.sources import check_source, is_path, open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.features import feature_function
from msvq.evaluate.protocols import check_protocols
from msvq.methods import METHODS, Method
from msvq.report.page import write_report
from msvq.runs.checkpoint import remove_leftovers
from msvq.runs.encoder_card import save_encoder
from msvq.runs.finished import evaluate_finished_run, pair_function
from msvq.runs.run_dir import add_skipped, check_choice, check_out, environment, locked, start_directory
from msvq.train.build import build_method, make_augment
from msvq.train.callbacks import Callback, TrainerCallback, wrap_functions
from msvq.train.init_weights import InitialWeights, load_initial_weights
from msvq.train.loggers import make_loggers
from msvq.train.monitors import AnalysisMonitor, KnnMonitor
from msvq.train.progress import TrainingDisplay
from msvq.train.resume import (
    Saved,
    check_and_record_resume,
    has_checkpoint,
    has_nothing_to_lose,
    invalidate_results,
    open_saved,
)
from msvq.train.step import check_fit, room_for_networks
from msvq.train.trainer import Trainer


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
    console = console or Console() if is_main_process() else Console(quiet=True)
    display = Display(console)
    with ExitStack() as held:
        held.enter_context(process_group())
        with errors_on_all_ranks():
            check_protocols(protocols)
            check_choice(resume or auto_resume, overwrite)
            listeners = [*make_loggers(loggers), *wrap_functions(callbacks)]
            if auto_resume:
                resume = has_checkpoint(out)
                overwrite = overwrite or has_nothing_to_lose(out)
            if resume and out.is_dir() and is_main_process():
                held.enter_context(locked(out))
                if is_run(out):
                    remove_leftovers(out / "checkpoints")
        with errors_on_all_ranks():  # when the first process has put the checkpoints in order
            saved = open_saved(out, display) if resume else None
            begun = None if saved is None else saved.settings.model_dump(mode="json")
            asked: dict[str, Any] = {"data": data, "data_root": data_root, "method": method, "backbone": backbone}
            asked |= {"init": init, "overrides": overrides, "epochs": epochs, "seed": seed, "device": device}
            asked |= {"precision": precision, "compile": compile}
            settings = resolve(recipe=recipe, base=begun if recipe is None else None, **asked)
            over = saved if auto_resume and saved is not None and saved.finished else None
            if over is not None and over.same_training_as(settings):
                display.note(f"the run in {out} is finished already")
                return load(out, backbone=backbone)
            check_source(settings.data.source)
            target = own_device(resolve_device(settings.train.device))
            if saved is None:
                check_out(out, overwrite=overwrite)
        dataset = open_in_turn(settings, download=download, display=display)
        if dataset.stream is not None:
            held.callback(dataset.stream.workers.close)
        with errors_on_all_ranks():
            fitting = is_path(settings.data.source) and recipe is None and saved is None
            asked_for = [text.partition("=")[0].strip() for text in overrides] if fitting else None
            start = load_initial_weights(settings, dataset.size) if saved is None else None
            settings, network, loader, notes = prepare(settings, dataset, target, asked_for, start)
        stands = "new" if saved is None else f"{saved.state['step']} of {saved.state['total_steps']}"
        check_same_on_all_ranks(settings.to_yaml() + dataset.fingerprint() + stands + (start.sha256 if start else ""))
        with errors_on_all_ranks():
            if is_main_process() and saved is not None:
                check_and_record_resume(saved, settings, dataset, network)
            elif is_main_process():
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


def open_in_turn(settings: Settings, *, download: bool, display: Display) -> ImageDataset:
    """The data set. Of several processes the first downloads and packs, and the others find it done."""
    opened: ImageDataset | None = None
    with errors_on_all_ranks():
        if is_main_process():
            opened = open_dataset(settings.data, download=download, display=display)
    with errors_on_all_ranks():
        return opened or open_dataset(settings.data, download=download, display=display)


def prepare(
    settings: Settings,
    dataset: ImageDataset,
    target: torch.device,
    asked_for: Sequence[str] | None,
    start: InitialWeights | None = None,
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
    settings = fill_from_data(settings, dataset, target)
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
    settings: Settings, data: ImageDataset, method: Method, loader: Loader, *, directory: Path, **options: Any
) -> Trainer:
    """The loop for complete settings; `options` are the other keywords of `Trainer`."""
    augment, precision = make_augment(settings, data), settings.train.precision
    return Trainer(method, loader, augment, settings.train, directory=directory, precision=precision, **options)


def train(
    out: Path,
    settings: Settings,
    data: ImageDataset,
    method: Method,
    loader: Loader,
    *,
    console: Console,
    saved: Saved | None,
    listeners: Sequence[TrainerCallback] = (),
    protocols: Sequence[str] = (),
) -> Run:
    """Train to the end and write everything that the run leaves behind."""
    precision = settings.train.precision
    features = feature_function(data, loader.device, precision)
    if settings.train.warmup_epochs >= settings.train.epochs:
        console.print("note: the warm-up is as long as the run; lower train.warmup_epochs to leave it")
    if data.has_labels and settings.evaluate.knn_k > len(data.bank):
        console.print(f"note: kNN uses k = {len(data.bank)}, the number of labelled pictures")
    run = Run(out)
    monitors: list[TrainerCallback] = []
    if data.has_labels:
        evaluation = settings.evaluate
        if METHODS[settings.method_name].needs_labels:  # it has learned the labels of what would be held out
            evaluation = evaluation.model_copy(update={"validation": 0.0})
        monitors.append(KnnMonitor(data, evaluation, features=features))
    else:
        console.print("note: no labels, so no accuracy: rank and spread tell of a collapse", highlight=False)
    analysis = AnalysisMonitor(
        data.train,
        settings.analyze,
        every=settings.analyze.every or settings.evaluate.every,
        features=features,
        pairs=pair_function(settings, data, loader.device),
    )
    trainer = make_trainer(
        settings,
        data,
        method,
        loader,
        directory=out,
        callbacks=[*monitors, analysis, *listeners, TrainingDisplay(console)],
        record={"settings": settings.model_dump(mode="json"), "data_fingerprint": data.fingerprint()},
        announce=Display(console).note,
    )
    if saved is not None:
        trainer.load(saved.state)
        if trainer.step < trainer.total_steps:
            invalidate_results(out)
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
    destroy_process_group()  # what is left is not worth sharing
    if not is_main_process():
        return run
    save_encoder(out, method.encoder, settings, data)
    evaluate_finished_run(
        run, settings, data, method, loader, step=trainer.step, protocols=protocols, display=Display(console)
    )
    write_report(out)
    return run
