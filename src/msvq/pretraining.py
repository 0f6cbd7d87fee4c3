"""One call from pictures to an encoder: it wires data, method, trainer, kNN and report together."""

import json
import os
import platform
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
import torchvision
from rich.console import Console

from msvq.config import Settings, resolve
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.sources import check_source, open_dataset
from msvq.data.store import DataSet
from msvq.errors import BadInput
from msvq.evaluate.features import extract_features
from msvq.evaluate.knn import KnnMonitor
from msvq.evaluate.neighbours import save_neighbours
from msvq.files import write_text
from msvq.methods import METHODS, Method
from msvq.model.backbones import make_backbone, resolve_stem
from msvq.report.page import write_report
from msvq.run import Run, load, save_encoder
from msvq.train.checkpoint import load_checkpoint
from msvq.train.precision import resolve_device, resolve_precision
from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import Trainer, check_fit
from msvq.version import __version__

RUN_FILES = [
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "checkpoints",
    "encoder.safetensors",
    "encoder.json",
    "eval",
    "figures",
    "report.html",
]


def pretrain(
    *,
    out: str | Path,
    data: str | None = None,
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
    if settings.evaluate.knn_k > len(data.bank):
        console.print(f"note: kNN uses k = {len(data.bank)}, the number of labelled pictures")
    augment = Augment(
        {kind: getattr(settings.augment, kind) for kind in type(settings.augment).model_fields},
        size=data.size,
        mean=data.mean,
        std=data.std,
    )
    display = TrainingDisplay(
        console,
        total_steps=settings.train.epochs * len(loader),
        epochs=settings.train.epochs,
        batch_size=settings.train.batch_size,
    )
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
        f"{method.title} on {data.name}: {len(data.train):,} pictures, {settings.train.epochs} epochs of "
        f"{len(loader)} steps, {settings.backbone.name} width {settings.backbone.width}, "
        f"{loader.device} {precision}"
    )
    trainer.fit()
    save_encoder(out, method.encoder, settings, data)
    untrained = build_method(settings, data.size).to(loader.device).encoder
    before, after = (
        (features(encoder, data.bank.images), features(encoder, data.test.images))
        for encoder in (untrained, method.encoder)
    )
    (out / "eval").mkdir(exist_ok=True)
    save_neighbours(out / "eval" / "neighbours.npz", data, before, after)
    write_report(out)
    return Run(out)


def complete(settings: Settings, data: DataSet, device: torch.device) -> Settings:
    """The settings with everything that depended on data and machine written out, so they repeat the run."""
    precision = resolve_precision(settings.train.precision, device)
    stem = resolve_stem(settings.backbone.stem, data.size)
    sizes = {"size": data.size, "test_size": data.test_size}
    method = dict(settings.method)
    if "num_classes" in method and method["num_classes"] is None:
        method["num_classes"] = data.num_classes or None
    return settings.model_copy(
        update={
            "method": method,
            "data": settings.data.model_copy(update=sizes),
            "backbone": settings.backbone.model_copy(update={"stem": stem}),
            "train": settings.train.model_copy(update={"precision": precision}),
        }
    )


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


def check_out(out: Path, *, overwrite: bool) -> None:
    """Raise if a new run in `out` would mix with something else."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a file; name a directory")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "config.yaml").is_file():
        raise BadInput(f"--out {str(out)!r} holds files that are not a run; choose another directory")
    if not overwrite:
        raise BadInput(
            f"--out {str(out)!r} holds a run already; continue it with --resume, replace it with --overwrite, "
            f"or choose another directory"
        )


def start_directory(out: Path, settings: Settings, environment: dict[str, Any]) -> None:
    """Make the run directory, without what an earlier run left in it."""
    for name in RUN_FILES:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_text(out / "config.yaml", settings.to_yaml())
    write_text(out / "environment.json", json.dumps(environment, indent=2) + "\n")


def environment(settings: Settings, data: DataSet, device: torch.device, made_by: str) -> dict[str, Any]:
    """What a run was made with."""
    return {
        "msvq": __version__,
        "made_by": made_by,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "precision": settings.train.precision,
        "seed": settings.train.seed,
        "data": data.name,
        "data_fingerprint": data.fingerprint(),
    }


def processor_name() -> str:
    """The processor's model, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
