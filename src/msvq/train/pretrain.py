"""From pictures to an encoder on disk: the story of `msvq pretrain`, from top to bottom."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from msvq.config.adapt import fill_from_data, fit_to_data, fit_vote
from msvq.config.budget import limit_looks, limit_warmup
from msvq.config.build import build_method, make_augment
from msvq.config.resolve import Flags
from msvq.config.settings import Settings
from msvq.core.console import Display, counted
from msvq.core.distributed import (
    check_same_on_all_ranks,
    destroy_process_group,
    errors_on_all_ranks,
    local_device,
    process_group,
)
from msvq.core.errors import BadInput, unknown
from msvq.core.files import check_places, is_run
from msvq.core.launch import is_main_process, num_processes
from msvq.core.runtime import resolve_device
from msvq.data.loader import Loader
from msvq.data.sources import check_source, open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.diagnostics.health import pair_function
from msvq.evaluate.features import feature_function
from msvq.methods import METHODS, Method
from msvq.runs.analyze import evaluate_finished_run
from msvq.runs.checkpoint import remove_leftovers
from msvq.runs.encoder import save_encoder
from msvq.runs.metrics import RunProgress
from msvq.runs.run_dir import RunDir, add_skipped, check_out, environment, locked, start_directory
from msvq.train.budget import fit_to_budget
from msvq.train.callbacks import Callback, TrainerCallback, wrap_functions
from msvq.train.init_weights import InitialWeights, load_initial_weights
from msvq.train.loggers import make_loggers
from msvq.train.monitors import AnalysisMonitor, KnnMonitor, WhiteningMonitor
from msvq.train.optim import check_optimiser
from msvq.train.progress import LivePage, TrainingDisplay
from msvq.train.resume import (
    Mode,
    Saved,
    check_and_record_resume,
    has_checkpoint,
    invalidate_results,
    mode_for,
    open_saved,
)
from msvq.train.step import check_fit, room_for_networks
from msvq.train.trainer import Trainer


def pretrain(
    flags: Flags,
    out: Path,
    *,
    mode: Mode = "new",
    download: bool = False,
    loggers: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    write_page: Callable[[Path, RunProgress], object],
    console: Console,
    made_by: str,
) -> bool:
    """Train an encoder in `out`. Returns False if a run that `mode` "auto" found there was finished already.

    Nothing on disk changes until all of the input is checked. What one process finds wrong in a section ends all.
    `write_page` writes the page of the run while it trains.
    """
    display, started = Display(console), time.monotonic()
    with ExitStack() as held:
        held.enter_context(process_group())

        # --- claim the directory
        with errors_on_all_ranks():
            listeners = [*make_loggers(loggers), *wrap_functions(callbacks)]
            if is_main_process():
                listeners.append(LivePage(write_page))
            automatic, mode = mode == "auto", mode_for(out, mode)
            if mode == "resume" and out.is_dir() and is_main_process():
                check_places(out)
                held.enter_context(locked(out))
                if is_run(out):
                    remove_leftovers(out / "checkpoints")
            elif mode != "resume":  # a new run is locked when all else is known to be right
                check_out(out, overwrite=mode == "overwrite")

        # --- settle the configuration
        with errors_on_all_ranks():  # when the main process has put the checkpoints in order
            saved = open_saved(out, display) if mode == "resume" else None
            config = flags.settings(base=None if saved is None else saved.settings.model_dump(mode="json"))
            if saved is not None and flags.budget is not None:
                display.note(
                    f"note: --budget is for a new run; this one keeps its {saved.state['total_steps']:,} steps, and "
                    f"--set train.steps=N makes it longer"
                )
            if automatic and saved is not None and saved.finished and saved.same_training_as(config):
                display.note(f"the run in {out} is finished already")
                return False
            if saved is None and flags.seconds is not None and num_processes() > 1:
                raise BadInput("a budget of time is for one process; give torchrun a number of --epochs instead")
            check_source(config.data.source)
            device = local_device(resolve_device(config.train.device))

        # --- open the pictures
        data = open_main_process_first(config, download=download, display=display)
        held.callback(data.close)
        if data.stream is not None:
            data.stream.on_lost = lambda name, reason: add_skipped(out, name, reason, console)

        # --- fetch what it starts from
        with errors_on_all_ranks():
            init = load_initial_weights(config, data.size) if saved is None else None  # else the checkpoint counts

        # --- fit the run to the time there is
        if saved is None and flags.seconds is not None:
            trial = partial(open_trial, data, device, flags.kept(config))
            with display.busy("taking the pace of this machine"):
                fitted = fit_to_budget(
                    config, data, flags.seconds, lambda: time.monotonic() - started, keep=flags.named, trial=trial
                )
            config = fitted.settings
            for line in [*flags.length_note(), *fitted.describe()]:
                display.note(line)

        # --- build the method
        with errors_on_all_ranks():
            keep = flags.kept(config) if saved is None else None
            config, method, loader, notes = prepare(config, data, device, keep, init)
            if saved is None and "train.steps" in flags.named and "train.warmup_epochs" not in flags.named:
                config = limit_warmup(config, len(loader))
        begun = "new" if saved is None else f"{saved.state['step']} of {saved.state['total_steps']}"
        check_same_on_all_ranks(config.to_yaml() + data.fingerprint + begun + (init.sha256 if init else ""))

        # --- write down what is done here
        with errors_on_all_ranks():
            if is_main_process() and saved is not None:
                check_and_record_resume(saved, config, data, method)
            elif is_main_process():
                held.enter_context(locked(out))
                check_out(out, overwrite=mode == "overwrite" and not (automatic and has_checkpoint(out)))
                known = environment(config, data, device, made_by) | ({"init": init.record()} if init else {})
                start_directory(out, config, known, data.skipped)
                if init is not None:
                    init.keep(out)
        for note in notes:
            display.note(f"note: {note}")

        # --- train
        trainer = make_trainer(config, data, method, loader, out, listeners, console)
        if saved is not None:
            resume_trainer(trainer, saved)
        del saved, init  # what is loaded need not stay in memory twice
        length = f"{counted(config.train.epochs, 'epoch')} of {counted(len(loader), 'step')}"
        if config.train.steps is not None:
            length = f"{counted(config.train.steps, 'step')} ({config.train.steps / len(loader):.1f} epochs)"
        display.note(
            f"{method.title} on {data.name}: {len(loader.pictures):,} pictures, {length}, {config.backbone.title}, "
            f"{device} {config.train.precision}"
        )
        trainer.fit()
        destroy_process_group()  # what is left is not worth sharing
        if not is_main_process():
            return True

        # --- save the encoder, and judge it
        save_encoder(out, method.encoder, config, data)
        found = evaluate_finished_run(RunDir(out), config, data, method, loader, step=trainer.step, display=display)
        judged = found["verdict"]
        display.note(" ".join([f"{judged['state']}: {judged['sentence']}", *judged["advice"]]))
    return True


def open_main_process_first(config: Settings, *, download: bool, display: Display) -> ImageDataset:
    """The pictures. Of several processes the main one downloads and packs, and the others find it done."""
    opened: ImageDataset | None = None
    with errors_on_all_ranks():
        if is_main_process():
            opened = open_dataset(config.data, download=download, display=display)
    with errors_on_all_ranks():
        return opened or open_dataset(config.data, download=download, display=display)


def prepare(
    config: Settings,
    data: ImageDataset,
    device: torch.device,
    keep: Sequence[str] | None,
    init: InitialWeights | None = None,
) -> tuple[Settings, Method, Loader, list[str]]:
    """Complete settings, the untrained method and the loader, all checked; and sentences about what was changed.

    `keep`: settings that were named, where the others are fitted to the number of pictures; None: none are fitted.
    `init`: weights that the backbone starts from.
    """
    notes = [*data.notes, *([] if init is None else [init.note()])]
    pictures = data.labelled if METHODS[config.method_name].needs_labels else data.train
    if keep is not None:
        config, changes = fit_to_data(config, len(pictures), keep=keep)
        bank = data.labelled.subsample(config.evaluate.knn_bank)
        config, fewer = fit_vote(config, bank.labels, keep=keep)
        notes += [*changes, *fewer]
    config = fill_from_data(config, data, device)
    with room_for_networks(torch.device("cpu")):
        method = build_method(config, data.size, None if init is None else init.weights)
    check_fit(method, config.train.batch_size, config.train.accumulate)
    check_optimiser(method, config.train.optimiser)
    for view in method.views:
        if view not in type(config.augment).model_fields:
            raise unknown(f"view of {config.method_name}", view, type(config.augment).model_fields)
    if not len(pictures):
        raise BadInput(f"{config.method_name} learns from labels, and {data.name} has none; choose another --method")
    loader = Loader(pictures, batch_size=config.train.batch_size, seed=config.train.seed, device=device)
    if config.train.steps is not None:
        epochs = -(-config.train.steps // len(loader))
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    if keep is not None and "evaluate.every" not in keep:
        config = limit_looks(config)
    return config, method, loader, notes


def make_trainer(
    config: Settings,
    data: ImageDataset,
    method: Method,
    loader: Loader,
    out: Path,
    listeners: Sequence[TrainerCallback],
    console: Console,
) -> Trainer:
    """The loop, watched by kNN and diagnostics."""
    precision, display = config.train.precision, Display(console)
    augment, features = make_augment(config, data), feature_function(data, loader.device, precision)
    if config.train.warmup_epochs >= config.train.epochs:
        display.note("note: the warm-up is as long as the run; lower train.warmup_epochs to leave it")
    monitors: list[TrainerCallback] = [WhiteningMonitor(data.train, every=config.evaluate.every, features=features)]
    if data.has_labels:
        if config.evaluate.knn_k > len(data.labelled):
            display.note(f"note: kNN uses k = {len(data.labelled)}, the number of labelled pictures")
        evaluation = config.evaluate
        if METHODS[config.method_name].needs_labels:  # it has learned the labels of what would be held out
            evaluation = evaluation.model_copy(update={"validation": 0.0})
        monitors.append(KnnMonitor(data, evaluation, features=features))
    else:
        display.note("note: no labels, so no accuracy: in the end the run tests itself on changed copies of pictures")
    every = config.analyze.every or config.evaluate.every
    pairs = pair_function(data.train, augment, loader.device, precision)
    monitors.append(AnalysisMonitor(data.train, config.analyze, every=every, features=features, pairs=pairs))
    return Trainer(
        method,
        loader,
        augment,
        config.train,
        directory=out,
        precision=precision,
        callbacks=[*monitors, *listeners, TrainingDisplay(console)],
        record={"settings": config.model_dump(mode="json"), "data_fingerprint": data.fingerprint},
        announce=display.note,
    )


@contextmanager
def open_trial(
    data: ImageDataset, device: torch.device, keep: Sequence[str] | None, config: Settings
) -> Iterator[Trainer]:
    """A trainer as the run will have it, whose steps count for nothing, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="msvq-") as folder:
        config, method, loader, _ = prepare(config, data, device, keep)
        yield make_trainer(config, data, method, loader, Path(folder), (), Console(quiet=True))


def resume_trainer(trainer: Trainer, saved: Saved) -> None:
    """Put the trainer where the run stands."""
    with errors_on_all_ranks():
        trainer.load(saved.state)
    if trainer.step < trainer.total_steps:
        invalidate_results(saved.path)
    if saved.state["record"] != trainer.record:  # what was changed lasts from here on, whatever happens next
        trainer.save()
