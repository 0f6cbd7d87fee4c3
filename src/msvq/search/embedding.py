"""`msvq embed`: the features of all pictures of a source, in a file. What was interrupted goes on where it was."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msvq.api import Run, load
from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, check_not_the_input, lock, write_atomically, write_text
from msvq.core.runtime import OutOfMemory
from msvq.core.version import __version__
from msvq.data.decode import PASSING
from msvq.search.encoder import open_embedder
from msvq.search.feature_shards import Parts, check_batch_size, check_ours, check_readable
from msvq.search.formats import Table, writer_for
from msvq.search.source import open_source

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


def embed(
    run: str | Path | Run,
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
    run = run if isinstance(run, Run) else load(run)
    for path in (out, _skipped_path(out)):
        check_not_the_input("--out", path, data or run.config.data.source)
    embedder = open_embedder(run, checkpoint=checkpoint, device=device, precision=precision)
    source = open_source(run, data, data_root, split=split, download=download, display=display)
    folder.mkdir(exist_ok=True)
    busy = f"another process is writing {str(out)!r}; wait for it, or choose another --out"
    with lock(folder / LOCK, on_busy=lambda: BadInput(busy)):
        parts = Parts(folder, source, np.arange(len(source)), embedder)
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
            "checkpoint": embedder.checkpoint,
            "encoder": embedder.key,
            "data": printable(source.origin),
            "root": printable(source.root),
            "split": split,
            "precision": embedder.precision,
            "device": embedder.device.type,
        }
        table = Table(source, parts.kept, parts.features, embedder.feature_dim, about)
        whole = folder / "whole"
        with display.task(f"writing {out.name}", len(parts.kept)) as advance:
            write_atomically(whole, lambda file: write(file, table, advance))
        listed = write_skipped(out, skipped)
        whole.replace(out)
        again = any(reason.startswith(PASSING) for reason in parts.skipped.values())
        if not again:
            parts.remove()
    return Written(out, len(parts.kept), embedder.feature_dim, skipped, listed, folder if again else None)


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
