"""What a run directory is, by its files alone: nothing else is written over them, or takes their pictures for data."""

import re
from collections.abc import Iterable
from pathlib import Path

from msvq.errors import BadInput
from msvq.files import check_no_link, is_temporary

SECTIONS = ("data", "augment", "backbone", "method", "train", "evaluate", "analyze")  # of a run's config.yaml
LOCK = ".lock"
# What a run writes: a file (None), or a folder and which files in it.
RUN_FILES = {
    "config.yaml": None,
    "environment.json": None,
    "metrics.jsonl": None,
    "checkpoints": r"(last|previous|best)\.ckpt|\.last\.ckpt\.new",
    "initial.safetensors": None,
    "encoder.safetensors": None,
    "encoder.json": None,
    "eval": r"(knn|probe|linear|finetune|analysis)(-.+)?\.json|demo\.json|(gallery|map|neighbours)(-.+)?\.npz",
    "figures": r"(knn|false_negatives|map)\.(png|svg)",
    "report.html": None,
    "skipped.csv": None,
    "tensorboard": r"events\.out\.tfevents\..+|msvq\.json",
    "wandb": r"msvq\.json",  # the rest is wandb's own, and may be of runs that were not sent yet
}
WRITTEN_IN_PLACE = (LOCK, "skipped.csv")  # any other file is replaced as a whole, and so is a link in its place


def is_run(out: Path) -> bool:
    """Whether a directory is a run's: other programs have a config.yaml too, but not with all of our sections.

    That is read from the lines alone, so that a run whose file is damaged somewhere is still one.
    """
    try:
        text = (out / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return all(re.search(rf"^{name}:", text, re.MULTILINE) for name in SECTIONS)


def check_places(run: Path, names: Iterable[str] = (LOCK, *RUN_FILES)) -> None:
    """Raise if something else is where a run would write these: a link that leads elsewhere, a folder for a file."""
    for name in names:
        path, wanted = run / name, RUN_FILES.get(name)
        if wanted is not None or name in WRITTEN_IN_PLACE:
            check_no_link(path)
        if path.exists() and not path.is_symlink() and path.is_dir() != (wanted is not None):
            kinds = ("folder", "file") if wanted is None else ("file", "folder")
            raise BadInput(f"{str(path)!r} is a {kinds[0]}, and a run keeps a {kinds[1]} there; move it away")


def written_files(run: Path) -> list[Path]:
    """The files that a run has left in its directory, and nothing that somebody else has put there."""
    found = []
    for name, wanted in RUN_FILES.items():
        path = run / name
        if wanted is None:
            found.append(path)
        elif path.is_dir() and not path.is_symlink():
            found += [file for file in path.iterdir() if re.fullmatch(wanted, file.name) or is_temporary(file)]
    found += filter(is_temporary, run.iterdir())
    return [path for path in found if path.is_symlink() or path.is_file()]


def real_place(path: Path) -> Path:
    """Where a file is written: links of its folders are followed; a link in its own place would be replaced."""
    return path.parent.resolve() / path.name


def check_not_of_a_run(option: str, path: Path) -> None:
    """Raise if a file to write would take the place of one that a run needs."""
    place = real_place(path)
    for folder in place.parents:
        if place.relative_to(folder).parts[0] in RUN_FILES and is_run(folder):
            raise BadInput(f"{option} {str(path)!r} would write over the run in {str(folder)!r}; choose another place")
