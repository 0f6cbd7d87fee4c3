"""Features of a whole source: in memory, or in a file that `msvq embed` writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, lock, to_csv, write_atomically, write_text
from msvq.core.runtime import OutOfMemory
from msvq.core.version import __version__
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import (
    BATCH_SIZE,
    SHARD_SIZE,
    UNIT,
    WHOLE,
    FeatureShards,
    Skipped,
    check_ours,
    check_readable,
    compute_features,
    is_readable,
    may_pass,
    name_skipped,
)
from msvq.search.findings import has_collapsed
from msvq.search.formats import WRITERS, Table, check_library
from msvq.search.index import fill_rows, reserve_file, unit_rows
from msvq.search.inputs import Inputs
from msvq.search.viewer import find_viewer_columns


@dataclass(frozen=True)
class Written:
    """What `embed` has written."""

    num: int
    feature_dim: int
    skipped: Skipped
    skipped_path: Path | None  # lists them, where there are some
    shards: Path | None  # kept where some of them may be readable later: the same call tries those again


def embed(
    inputs: Inputs,
    out: str | Path,
    *,
    pictures: bool = False,
    batch_size: int = BATCH_SIZE,
    display: Display | None = None,
) -> Written:
    """Write the features of all pictures to an .npz, .parquet or .csv.

    `pictures`: a .parquet holds thumbnails, a map and neighbours as well, for viewers.

    Until it is whole, finished shards are kept in `<out>.parts`; the same call continues from them, to the same bits.
    They stay there if a picture could not be read for a reason that may pass: the same call tries it again.
    """
    out, display = Path(out), display or Display()
    listing = out.with_name(f"{out.stem}.skipped.csv")
    folder = out.with_name(f"{out.name}.parts")
    inputs.check_output("--out", out, list(WRITERS))
    inputs.check_output("--out", listing, [".csv"])
    check_library(out, pictures=pictures)
    if not 1 <= batch_size <= SHARD_SIZE:
        raise BadInput(f"--batch-size is 1 to {SHARD_SIZE:,}, not {batch_size}")
    check_ours(folder)
    encoder, source = inputs.open(display)
    folder.mkdir(exist_ok=True)
    busy = f"another process is writing {str(out)!r}; wait for it, or choose another --out"
    with lock(folder / LOCK, on_busy=lambda: BadInput(busy)):
        shards = FeatureShards(folder, source, np.arange(len(source)), encoder)
        try:
            shards.complete(batch_size, display)
            check_readable(source, shards.skipped)
        except OutOfMemory:  # with a smaller --batch-size it goes on
            raise
        except BadInput:
            shards.remove()
            raise
        about = {
            "msvq": __version__,
            "run": printable(str(inputs.run.path.absolute()) if inputs.run else encoder.name),
            "checkpoint": encoder.checkpoint,
            "encoder": encoder.key,
            "data": printable(source.origin),
            "root": printable(source.root),
            "split": inputs.split,
            "precision": encoder.precision,
            "device": encoder.device.type,
        }
        kept = shards.kept
        viewer = None
        if pictures:
            with _mapped_unit_features(shards) as features:
                if has_collapsed(features):
                    display.note("the encoder has collapsed, so neither the map nor the neighbours mean anything")
                viewer = find_viewer_columns(features, display)
        table = Table(source, kept, shards.features, encoder.feature_dim, about, viewer)
        whole, write = folder / WHOLE, WRITERS[out.suffix.lower()]
        with display.task(f"writing {out.name}", len(kept)) as advance:
            write_atomically(whole, lambda file: write(file, table, advance))
        skipped = name_skipped(source, shards.skipped)
        if skipped:
            write_text(listing, to_csv([("file", "reason"), *skipped]))
        else:
            listing.unlink(missing_ok=True)  # of an earlier time
        whole.replace(out)
        try_again = may_pass(shards.skipped)
        if not try_again:
            shards.remove()
    listed, again = listing if skipped else None, folder if try_again else None
    return Written(len(kept), encoder.feature_dim, skipped, skipped_path=listed, shards=again)


@contextmanager
def _mapped_unit_features(shards: FeatureShards) -> Iterator[NDArray[np.float32]]:
    """The features of complete shards at length 1, in a file of their folder that is gone afterwards."""
    path, shape = shards.folder / UNIT, (len(shards.kept), shards.encoder.feature_dim)
    reserve_file(path, 4 * shape[0] * shape[1])
    try:
        features = np.memmap(path, "<f4", "r+", shape=shape)
        fill_rows(features, np.arange(len(features)), map(unit_rows, shards.features()))
        yield features
        del features
    finally:
        path.unlink(missing_ok=True)


def embed_source(
    encoder: LoadedEncoder, data: str, *, split: str = "all", workers: int | None = None
) -> tuple[NDArray[np.float32], list[str], NDArray[np.int64], list[tuple[str, str]]]:
    """Features [N, d], names and labels of all readable pictures of a source; and the others, with the reason."""
    source = Inputs(encoder.run or encoder.name, data, split=split).open_source()
    positions = np.arange(len(source))
    ((features, skipped),) = compute_features(encoder, source, [positions], workers=workers)
    kept = positions[is_readable(positions, skipped)]
    names = [source.names[position] for position in kept.tolist()]
    return features, names, source.labels[kept], list(name_skipped(source, skipped))
