"""A run directory: may a run go there, what of it is replaced, and what its files say."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
import torchvision
from rich.console import Console

from msvq.config.resolve import read_config
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import (
    LOCK,
    RUN_FILES,
    check_no_link,
    check_places,
    holds_already,
    is_run,
    lock,
    to_csv,
    write_text,
    written_files,
)
from msvq.core.launch import num_processes
from msvq.core.ordinary_files import read_ordinary
from msvq.core.user_code import is_user_code
from msvq.core.version import __version__
from msvq.data.store import ImageDataset
from msvq.model.backbones import register_backbone
from msvq.runs.metrics import read_metrics

WEIGHTS, METADATA = "encoder.safetensors", "encoder.json"
INITIAL = "initial.safetensors"  # what the encoder was before training, where it did not start afresh


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep other processes out of a run directory. A process that dies leaves no lock behind: the system holds it."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / LOCK
    check_no_link(path)

    def busy() -> BadInput:
        who = path.read_text(encoding="utf-8", errors="replace").strip()
        return BadInput(
            f"another process{f' ({who})' if who else ''} is writing to {str(out)!r}; "
            f"wait for it, or choose another --out"
        )

    with lock(path, on_busy=busy):
        try:
            path.write_text(f"{os.getpid()} on {platform.node()}\n", encoding="utf-8")
            yield
        finally:
            path.write_text("", encoding="utf-8")


def check_out(out: Path, *, overwrite: bool) -> None:
    """Raise if a new run in `out` would mix with something else."""
    if holds_already(out, "a run", is_run(out), leftovers=(LOCK,)) and not overwrite:
        raise BadInput(
            f"--out {str(out)!r} holds a run already; continue it with --resume, replace it with --overwrite, "
            f"or choose another directory"
        )
    check_places(out)


def start_directory(
    out: Path, settings: Settings, environment: dict[str, Any], skipped: Sequence[tuple[str, str]] = ()
) -> None:
    """Make the run directory, without what an earlier run left in it; what others have put there stays.

    `config.yaml` is never absent from it, so that a kill in between leaves what can be started again.
    """
    for path in written_files(out):
        if path.name != "config.yaml":
            path.unlink()
    for name, wanted in RUN_FILES.items():
        if wanted is not None:
            with suppress(OSError):  # it is not there, or holds something of somebody else
                (out / name).rmdir()
    write_text(out / "config.yaml", settings.to_yaml())
    write_text(out / "environment.json", json.dumps(environment, indent=2) + "\n")
    if skipped:
        write_text(out / "skipped.csv", to_csv([("file", "reason"), *skipped]))


def add_skipped(out: Path, name: str, reason: str, console: Console) -> None:
    """Note a picture that could not be read any more while the run was going on."""
    path = out / "skipped.csv"
    rows = [(name, reason)] if path.is_file() else [("file", "reason"), (name, reason)]
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(to_csv(rows))
    Display(console).note(f"note: {name} {reason}; another picture takes its place")


def environment(settings: Settings, data: ImageDataset, device: torch.device, made_by: str) -> dict[str, Any]:
    """What a run was made with."""
    return {
        "msvq": __version__,
        "made_by": made_by,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
        **({"timm": version("timm")} if settings.backbone.name.startswith("timm:") else {}),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": num_processes(),
        "device": str(device),
        "device_name": device_name(device),
        "precision": settings.train.precision,
        "seed": settings.train.seed,
        "data": data.name,
        "data_fingerprint": data.fingerprint,
        "mean": data.mean,
        "std": data.std,
    }


def device_name(device: torch.device) -> str:
    """The card's model, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def processor_name() -> str:
    """The processor's model, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class RunDir:
    """The directory of a finished or running pre-training, as its files tell it."""

    def __init__(self, path: Path, *, backbone: str | None = None) -> None:
        self.path = path
        self.backbone = backbone  # the run's own code, where a person has named it

    def __getstate__(self) -> dict[str, Any]:
        """Without what was read from the directory: it is read again, so a pickle or a copy is small."""
        kept = vars(self).items()
        return {name: value for name, value in kept if not hasattr(type(self), name)}  # a class has what is cached

    @cached_property
    def config(self) -> Settings:
        """The complete settings."""
        settings = read_config(self.path / "config.yaml")
        if self.backbone is None:
            return settings
        named = settings.backbone.model_copy(update={"name": self.backbone})
        return settings.model_copy(update={"backbone": named})

    def environment(self) -> dict[str, Any]:
        """What the run was made with: versions, hardware, and a fingerprint of its data."""
        path = self.path / "environment.json"
        try:
            return dict(json.loads(read_ordinary(path))) if path.is_file() else {}
        except (ValueError, TypeError, RecursionError):
            way_out = "restore it, or delete it if the pictures are still those that the run began with"
            raise BadInput(f"{path} is damaged; {way_out}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_metrics(self.path / "metrics.jsonl")


def open_run(path: str | Path, *, backbone: str | None = None) -> RunDir:
    """A run directory that is there. `backbone`: code of your own, which is run only because it is named here."""
    path = Path(path)
    if not (path / "config.yaml").is_file():
        raise BadInput(f"{str(path)!r} is not a run: there is no config.yaml in it")
    if backbone is not None:
        trained = RunDir(path).config.backbone.name
        if backbone != trained and not (is_user_code(trained) and is_user_code(backbone)):
            raise BadInput(f"the run is of backbone {trained}, not {backbone}; leave out --backbone")
        if is_user_code(backbone):
            register_backbone(backbone)
    return RunDir(path, backbone=backbone)
