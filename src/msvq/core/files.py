"""Files: written whole or not at all, where one may write, and where caches are."""

import csv
import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.core.ordinary_files import read_ordinary

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either the old content or the whole new one, on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # it may be a link, which would be followed
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file was being written when its process was killed."""
    return re.fullmatch(r"\..+\.\d+\.tmp", path.name) is not None


def check_no_link(path: Path) -> None:
    """Raise if what is written to a path would go elsewhere, through a link: that may be somebody else's."""
    if path.is_symlink():
        raise BadInput(
            f"{str(path)!r} is a link to {str(path.readlink())!r}, and nothing is written through it; "
            f"remove it, or move what is there into its place"
        )
    if path.is_file() and path.stat().st_nlink > 1:
        raise BadInput(
            f"{str(path)!r} is a file that has another name too (a hard link) and would change there as well; "
            f"put a copy of it in its place"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; what cannot be encoded (a file name's odd bytes) is written as an escape."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Rows as the text of a CSV file, in letters that any file takes; what a spreadsheet would compute stays text."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def csv_cell(value: object) -> str:
    """A value as text; what a spreadsheet would compute gets a mark before it."""
    shown = "" if value is None else printable(str(value))
    return f"'{shown}" if isinstance(value, str) and shown.startswith(FORMULA) else shown


@contextmanager
def lock(path: Path, on_busy: Callable[[], Exception | None] | None = None, *, timeout: float = 0) -> Iterator[None]:
    """Hold a lock file, which the system frees if this process dies.

    If another process still holds it after `timeout` seconds, `on_busy` gives the error to raise, or None to wait on;
    without it, that is a TimeoutError.
    """
    file_lock = FileLock(path, thread_local=False)
    try:
        file_lock.acquire(timeout=timeout)
    except Timeout as busy:
        if (error := busy if on_busy is None else on_busy()) is not None:
            raise error from None
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process that is alive holds a lock file; none is made."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with lock(path):
            return False
    except TimeoutError:
        return True
    except OSError:  # somebody else's, that may not be opened
        return False


def expanduser(path: str | Path) -> Path:
    """With the home directory in place of `~`; `~name` of a user who is not there stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_disk_full(error: OSError) -> bool:
    """Whether a disk, or somebody's share of it, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full_error(place: Path, needed: int, what: str, ways: str) -> BadInput:
    """The error for a disk with too little space; `what`: what takes it, and `ways` out besides freeing some."""
    free = shutil.disk_usage(place).free
    return BadInput(
        f"the disk of {str(place)!r} has {free / 1e9:.1f} GB left and {what} {needed / 1e9:.1f} GB; free some, {ways}"
    )


def reserve(file: BinaryIO, size: int) -> None:
    """Give a file its space on the disk now: to write to a map of it on a full one may end the process without."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except AttributeError:  # not on every system
        file.truncate(size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # nor on every disk
            raise
        file.truncate(size)


# --- what a run directory is, by its files alone

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
    "eval": r"(knn|probe|linear|finetune|analysis)(-.+)?\.json|(beside|demo)\.json|"
    r"(gallery|groups|map|neighbours)(-.+)?\.npz",
    "figures": r"(knn|false_negatives|map)\.(png|svg)",
    "report.html": None,
    "skipped.csv": None,
    "tensorboard": r"events\.out\.tfevents\..+",
    "wandb": "",  # all of it is wandb's own, and may be of runs that were not sent yet
}
FINISHED = ("encoder.safetensors", "encoder.json", "eval/analysis.json")  # what only a run that is over has
WRITTEN_IN_PLACE = (LOCK, "skipped.csv")  # any other file is replaced as a whole, and so is a link in its place


def is_run(out: Path) -> bool:
    """Whether a directory is a run's: other programs have a config.yaml too, but not with all of our sections.

    That is read from the lines alone, so that a run whose file is damaged somewhere is still one.
    """
    path = out / "config.yaml"
    try:
        text = read_ordinary(path).decode(errors="replace")
    except (OSError, BadInput):
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


def resolve_parent(path: Path) -> Path:
    """Where a file is written: links of its folders are followed; a link in its own place would be replaced."""
    return path.parent.resolve() / path.name


def check_not_of_a_run(option: str, path: Path) -> None:
    """Raise if a file to write would take the place of one that a run needs."""
    place = resolve_parent(path)
    for folder in place.parents:
        if place.relative_to(folder).parts[0] in RUN_FILES and is_run(folder):
            raise BadInput(f"{option} {str(path)!r} would write over the run in {str(folder)!r}; choose another place")


# --- may a command write there?


def holds_already(out: Path, what: str, found: bool, *, leftovers: Collection[str] = ()) -> bool:
    """Whether the folder `--out` holds `what` (if that was `found`); raises if it holds anything else.

    With `leftovers`, a folder of nothing but these, and temporary files, counts as empty.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a file; name a directory")
    if not out.is_dir() or all(leftovers and (path.name in leftovers or is_temporary(path)) for path in out.iterdir()):
        return False
    if not found:
        raise BadInput(f"--out {str(out)!r} holds files that are not {what}; choose another directory")
    return True


def check_output_file(option: str, path: Path, endings: Sequence[str]) -> None:
    """Raise if a file cannot go there: before any work, not after it."""
    if path.suffix.lower() not in endings:
        raise BadInput(f"{option} {str(path)!r} should end in {' or '.join(endings)}")
    if path.is_dir():
        raise BadInput(f"{option} {str(path)!r} is a folder; name a file in it, such as features{endings[0]}")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{option} {str(path)!r}: there is no folder {str(path.absolute().parent)!r}; make it first")
    check_not_of_a_run(option, path)


def check_not_the_input(option: str, path: Path, data: str) -> None:
    """Raise if a file to write is the one that the pictures come from."""
    read = expanduser(data)
    if path.is_file() and read.is_file() and path.samefile(read):
        raise BadInput(f"{option}: {str(path)!r} is the file that --data reads, and would be lost; choose another name")


# --- where downloads and caches are


def home() -> Path:
    """`$MSVQ_HOME`, or `msvq` in the user's cache folder."""
    if chosen := os.environ.get("MSVQ_HOME"):
        return expanduser(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "msvq"
    except RuntimeError:
        raise BadInput(
            "there is no home directory to keep packed pictures and features in; MSVQ_HOME=DIR names another place"
        ) from None


def downloads() -> Path:
    """Where official data sets are looked for when no --data-root is given."""
    return home() / "datasets"


def packs() -> Path:
    """Where decoded folders are kept."""
    return home() / "packed"


def indexes() -> Path:
    """Where the features that are searched are kept."""
    return home() / "indexes"
