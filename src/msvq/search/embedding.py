"""Features of pictures: of arrays and files in Python, or of a whole source, in a file that `msvq embed` writes."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput, unknown
from msvq.core.files import LOCK, check_not_the_input, lock, write_atomically, write_text
from msvq.core.runtime import OutOfMemory
from msvq.core.version import __version__
from msvq.data.decode import PASSING
from msvq.data.inputs import PORTION, are_paths, decode_files, materialise, to_image_list
from msvq.data.sources import DataSettings, ImageSource, absolute, find_images, is_path
from msvq.data.sources.base import SplitName
from msvq.runs.encoder import LoadedEncoder, load_encoder
from msvq.runs.run_dir import RunDir, open_run
from msvq.search.feature_shards import WHOLE, Parts, check_batch_size, check_ours, check_readable
from msvq.search.formats import Table, writer_for

BATCH_SIZE = 256
Skipped = Sequence[tuple[str, str]]  # name and reason


@dataclass(frozen=True)
class Written:
    """What `embed` has written."""

    path: Path
    num: int
    feature_dim: int
    skipped: tuple[tuple[str, str], ...]
    skipped_path: Path | None  # lists them, where there are some
    parts: Path | None  # kept where some of them may be readable later: the same call tries those again


def open_source(
    run: RunDir,
    data: str | None,
    data_root: str | Path | None = None,
    *,
    split: str = "all",
    download: bool = False,
    display: Display | None = None,
) -> ImageSource:
    """The pictures that `--data` names (None: the run's own): all of them, or a split as training would see it."""
    name: SplitName | None = next((known for known in get_args(SplitName) if known == split), None)
    if name is None:
        raise unknown("split", split, get_args(SplitName))
    own = data is None or absolute(data) == run.config.data.source
    root = Path(data_root) if data_root is not None else run.config.data.root if own else None
    settings = DataSettings(source=run.config.data.source if data is None else data, root=root)
    if own:  # a run without labels holds no picture out
        settings = settings.model_copy(update={"labels": run.config.data.labels})
    keep_all = split == "all" and is_path(settings.source)
    source = find_images(settings, download=download, display=display, keep_all=keep_all).split(name)
    if not len(source):
        raise BadInput(f"there are no {split} pictures in {settings.source!r}; --split all takes those that there are")
    return source


def embed(
    run: str | Path | RunDir,
    out: str | Path,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    split: str = "all",
    download: bool = False,
    checkpoint: str = "last",
    device: str | None = None,
    precision: str | None = None,
    batch_size: int = BATCH_SIZE,
    display: Display | None = None,
) -> Written:
    """Write the features of all pictures to an .npz, .parquet or .csv. The arguments are those of `msvq embed`.

    Until it is whole, finished parts are kept in `<out>.parts`; the same call continues from them, to the same bits.
    They stay there if a picture could not be read for a reason that may pass: the same call tries it again.
    """
    out, display = Path(out), display or Display()
    write = writer_for(out)
    check_batch_size(batch_size)
    folder = out.with_name(f"{out.name}.parts")
    check_ours(folder)
    run = run if isinstance(run, RunDir) else open_run(run)
    for path in (out, _skipped_path(out)):
        check_not_the_input("--out", path, data or run.config.data.source)
    encoder = load_encoder(run, checkpoint).to(device, precision)
    source = open_source(run, data, data_root, split=split, download=download, display=display)
    folder.mkdir(exist_ok=True)
    busy = f"another process is writing {str(out)!r}; wait for it, or choose another --out"
    with lock(folder / LOCK, on_busy=lambda: BadInput(busy)):
        parts = Parts(folder, source, np.arange(len(source)), encoder)
        try:
            parts.complete(batch_size, display)
            check_readable(parts.skipped, len(source))
        except OutOfMemory:  # with a smaller --batch-size it goes on
            raise
        except BadInput:
            parts.remove()
            raise
        skipped = (*source.unlisted, *((source.names[i], reason) for i, reason in sorted(parts.skipped.items())))
        about = {
            "msvq": __version__,
            "run": printable(str(run.path.absolute())),
            "checkpoint": encoder.checkpoint,
            "encoder": encoder.key,
            "data": printable(source.origin),
            "root": printable(source.root),
            "split": split,
            "precision": encoder.precision,
            "device": encoder.device.type,
        }
        table = Table(source, parts.kept, parts.features, encoder.feature_dim, about)
        whole = folder / WHOLE
        with display.task(f"writing {out.name}", len(parts.kept)) as advance:
            write_atomically(whole, lambda file: write(file, table, advance))
        listed = write_skipped(out, skipped)
        whole.replace(out)
        again = any(reason.startswith(PASSING) for reason in parts.skipped.values())
        if not again:
            parts.remove()
    return Written(out, len(parts.kept), encoder.feature_dim, skipped, listed, folder if again else None)


def embed_images(
    encoder: LoadedEncoder,
    images: ArrayLike | Sequence[ArrayLike] | Iterable[str | PathLike[str]],
    *,
    batch_size: int = 500,
) -> NDArray[np.float32]:
    """Features [N, d] of pictures that a person hands over in Python: arrays of many shapes, or the names of files."""
    if batch_size < 1:
        raise BadInput(f"batch_size is a number of pictures, at least 1, not {batch_size}")
    images = materialise(images)
    features = [np.zeros((0, encoder.feature_dim), np.float32)]
    if are_paths(images):
        return np.concatenate([*features, *map(encoder, decode_files(images, encoder.size))])
    pictures = to_image_list(images)  # type: ignore[arg-type]  # not files, so arrays
    found = np.zeros((len(pictures), encoder.feature_dim), np.float32)
    shapes = [picture.shape for picture in pictures]
    for shape in dict.fromkeys(shapes):  # pictures of equal size go through together
        chosen = [index for index, other in enumerate(shapes) if other == shape]
        for start in range(0, len(chosen), batch_size):
            rows = chosen[start : start + batch_size]
            found[rows] = encoder(np.stack([pictures[index] for index in rows]))
    return found


def embed_source(
    encoder: LoadedEncoder, data: str, *, split: str = "all", workers: int | None = None
) -> tuple[NDArray[np.float32], list[str], NDArray[np.int64], list[tuple[str, str]]]:
    """Features [N, d], names and labels of all readable pictures of a source; and the others, with the reason."""
    source = open_source(encoder.run, data, split=split)
    features = [np.zeros((0, encoder.feature_dim), np.float32)]
    kept: list[int] = []
    skipped = list(source.unlisted)
    portions = [np.arange(i, min(i + PORTION, len(source))) for i in range(0, len(source), PORTION)]
    with closing(source.decoded(iter(portions), encoder.size, workers=workers)) as results:
        for portion, result in zip(portions, results, strict=True):
            good = [i for i in range(len(portion)) if i not in result.reasons]
            skipped += [(source.names[portion[i]], reason) for i, reason in result.reasons.items()]
            kept += portion[good].tolist()
            features.append(encoder(result.rows[good]))
    return np.concatenate(features), [source.names[i] for i in kept], source.labels[kept], skipped


def write_skipped(out: Path, skipped: Skipped) -> Path | None:
    """Write `<out without its ending>.skipped.csv`; without skipped pictures, take an older one away."""
    path = _skipped_path(out)
    if not skipped:
        path.unlink(missing_ok=True)
        return None
    text = io.StringIO(newline="")
    rows = [("file", "reason"), *((printable(name), printable(reason)) for name, reason in skipped)]
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())
    return path


def _skipped_path(out: Path) -> Path:
    return out.with_name(f"{out.stem}.skipped.csv")


def tell_skipped(skipped: Skipped) -> str:
    """How many pictures were left out and why, in short; empty where none was."""
    if not skipped:
        return ""
    kinds = Counter(reason.partition(":")[0] for _, reason in skipped)
    why = ", ".join(f"{count:,} {reason!r}" for reason, count in kinds.most_common(3))
    more = f" and {len(kinds) - 3} other reasons" if len(kinds) > 3 else ""
    return f"{len(skipped):,} left out: {why}{more}"
