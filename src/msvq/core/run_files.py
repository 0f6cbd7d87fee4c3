"""What a run directory is, by its files alone: nothing else is written over them, or takes their pictures for data."""

import re
from pathlib import Path

from msvq.core.errors import BadInput

SECTIONS = ("data", "augment", "backbone", "method", "train", "evaluate", "analyze")  # of a run's config.yaml
RUN_FILES = [
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "checkpoints",
    "initial.safetensors",
    "encoder.safetensors",
    "encoder.json",
    "eval",
    "figures",
    "report.html",
    "skipped.csv",
    "tensorboard",
    "wandb",
]


def is_run(out: Path) -> bool:
    """Whether a directory is a run's: other programs have a config.yaml too, but not with all of our sections.

    That is read from the lines alone, so that a run whose file is damaged somewhere is still one.
    """
    try:
        text = (out / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return all(re.search(rf"^{name}:", text, re.MULTILINE) for name in SECTIONS)


def resolve_parent(path: Path) -> Path:
    """Where a file is written: links of its folders are followed; a link in its own place would be replaced."""
    return path.parent.resolve() / path.name


def check_not_of_a_run(option: str, path: Path) -> None:
    """Raise if a file to write would take the place of one that a run needs."""
    place = resolve_parent(path)
    for folder in place.parents:
        if place.relative_to(folder).parts[0] in RUN_FILES and is_run(folder):
            raise BadInput(f"{option} {str(path)!r} would write over the run in {str(folder)!r}; choose another place")
