"""One call from pictures to an encoder: it wires data, method, trainer, kNN and report together."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from msvq.config import Settings, resolve
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.sources import check_source, open_dataset
from msvq.data.store import DataSet
from msvq.directory import check_out, environment, start_directory
from msvq.errors import BadInput, unknown
from msvq.evaluate.features import extract_features
from msvq.evaluate.knn import KnnMonitor
from msvq.evaluate.neighbours import save_neighbours
from msvq.methods import METHODS, Method
from msvq.model.backbones import make_backbone, resolve_stem
from msvq.report.page import write_report
from msvq.run import Run, load, save_encoder
from msvq.train.checkpoint import load_checkpoint
from msvq.train.precision import resolve_device, resolve_precision
from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import Trainer, check_fit


def pretrain(
    *,
    out: str | Path,
    data: str | None = None,
    data_root: str | Path | None = None,
    method: str | None = None,
    recipe: str | Path | None = None,
    epochs: int | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
    made_by: str = "msvq.pretrain",
) -> Run:
    """Train an encoder and return its run. The arguments are those of `msvq pretrain`.

    `overrides` are `key.path=value` strings. Nothing on disk changes until all of the input is checked.
    """
    out, console = Path(out), console or Console()
    saved = load_for_resume(out) if resume else None
    settings = resolve(
        recipe=recipe if recipe is not None or saved is None else out / "config.yaml",
        data=data,
        data_root=data_root,
        method=method,
        overrides=overrides,
        **{"epochs": epochs, "seed": seed, "device": device, "precision": precision},
    )
    check_source(settings.data.source)
    target = resolve_device(settings.train.device)
    if saved is None:
        check_out(out, overwrite=overwrite)
    with console.status(f"opening {settings.data.source}"):
        dataset = open_dataset(settings.data)
    settings = complete(settings, dataset, target)
    if saved is not None:
        check_unchanged(saved.config, settings)
    network = build_method(settings, dataset.size)
    check_fit(network, settings.train.batch_size)
    for view in network.views:
        if view not in type(settings.augment).model_fields:
            raise unknown(f"view of {settings.method_name}", view, type(settings.augment).model_fields)
    pictures = dataset.bank if network.needs_labels else dataset.train
    loader = Loader(pictures, batch_size=settings.train.batch_size, seed=settings.train.seed, device=target)
    if saved is None:
        start_directory(out, settings, environment(settings, dataset, target, made_by))
    return train(out, settings, dataset, network, loader, console=console, resume=resume)


def build_method(settings: Settings, size: int) -> Method:
    """The untrained method, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.train.seed)
        backbone = make_backbone(settings.backbone, size)
        return METHODS[settings.method_name](backbone, **settings.method_options)


def train(
    out: Path,
    settings: Settings,
    data: DataSet,
    method: Method,
    loader: Loader,
    *,
    console: Console,
    resume: bool,
) -> Run:
    """Train to the end and write everything that the run leaves behind."""
    precision = settings.train.precision
    features = partial(
        extract_features,
        size=data.test_size,
        mean=data.mean,
        std=data.std,
        device=loader.device,
        precision=precision,
    )
    for note in data.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if settings.train.warmup_epochs >= settings.train.epochs:
        console.print("note: the warm-up is as long as the run; lower train.warmup_epochs to leave it")
    if settings.evaluate.knn_k > len(data.bank):
        console.print(f"note: kNN uses k = {len(data.bank)}, the number of labelled pictures")
    augment = Augment(
        {kind: getattr(settings.augment, kind) for kind in type(settings.augment).model_fields},
        size=data.size,
        mean=data.mean,
        std=data.std,
    )
    display = TrainingDisplay(console, total_steps=settings.train.epochs * len(loader), epochs=settings.train.epochs)
    monitor = KnnMonitor(data, settings.evaluate, epochs=settings.train.epochs, features=features)
    trainer = Trainer(
        method,
        loader,
        augment,
        settings.train,
        directory=out,
        display=display,
        precision=precision,
        monitors=[monitor],
    )
    if resume:
        trainer.load(load_checkpoint(out / "checkpoints"))
    console.print(
        f"{method.title} on {data.name}: {len(loader.images):,} pictures, {settings.train.epochs} epochs of "
        f"{len(loader)} steps, {settings.backbone.name} width {settings.backbone.width}, "
        f"{loader.device} {precision}",
        soft_wrap=True,
    )
    trainer.fit()
    save_encoder(out, method.encoder, settings, data)
    with console.status("comparing the neighbours of test pictures before and after training"):
        untrained = build_method(settings, data.size).to(loader.device).encoder  # the same again, from the seed
        before = features(untrained, data.bank.images), features(untrained, data.test.images)
        # A run that was resumed after its last epoch has measured nothing.
        after = monitor.latest or (
            features(method.encoder, data.bank.images),
            features(method.encoder, data.test.images),
        )
        save_neighbours(out / "eval" / "neighbours.npz", data, before, after)
    write_report(out)
    return Run(out)


def complete(settings: Settings, data: DataSet, device: torch.device) -> Settings:
    """The settings with everything that depended on data and machine written out, so they repeat the run."""
    precision = resolve_precision(settings.train.precision, device)
    stem = resolve_stem(settings.backbone.stem, data.size)
    sizes = {"size": data.size, "test_size": data.test_size}
    method = fill_facts(settings.method, {"num_classes": data.num_classes, "num_pictures": len(data.train)})
    return settings.model_copy(
        update={
            "method": method,
            "data": settings.data.model_copy(update=sizes),
            "backbone": settings.backbone.model_copy(update={"stem": stem}),
            "train": settings.train.model_copy(update={"precision": precision}),
        }
    )


def fill_facts(options: dict[str, Any], facts: dict[str, int]) -> dict[str, Any]:
    """A method's options, also those of a method it wraps, with what only the data can tell."""
    filled = dict(options)
    for key, fact in facts.items():
        if key in filled and filled[key] is None:
            filled[key] = fact or None
        elif key in filled and filled[key] < fact:
            raise BadInput(f"method.{key} {filled[key]} is less than the data's {fact}; null takes the data's")
    if isinstance(filled.get("base_options"), dict):
        filled["base_options"] = fill_facts(filled["base_options"], facts)
    return filled


def load_for_resume(out: Path) -> Run:
    """The run to continue."""
    if not (out / "config.yaml").is_file():
        raise BadInput(f"there is no run to resume in {str(out)!r}; leave out --resume to start one")
    return load(out)


def check_unchanged(saved: Settings, now: Settings) -> None:
    """Raise if a setting differs from the run's, other than the device, which may change."""
    for section in ("data", "augment", "backbone", "method", "train", "evaluate"):
        old, new = saved.model_dump(mode="json")[section], now.model_dump(mode="json")[section]
        for key in old | new:
            if old.get(key) != new.get(key) and (section, key) != ("train", "device"):
                raise BadInput(
                    f"cannot resume with another {section}.{key}: the run has {old.get(key)!r}, "
                    f"not {new.get(key)!r}; leave the flag out, or start a new run in another --out"
                )
