"""Features of a whole source: in memory, or in a file that `msvq embed` writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import to_csv, write_atomically, write_text
from msvq.core.version import __version__
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import BATCH_SIZE, SHARD_SIZE, Skipped, may_pass
from msvq.search.findings import has_collapsed
from msvq.search.formats import WRITERS, Table, check_library
from msvq.search.index import open_index
from msvq.search.inputs import Inputs
from msvq.search.viewer import find_viewer_columns


@dataclass(frozen=True)
class EmbedResult:
    """What `embed` has written."""

    num: int
    feature_dim: int
    skipped: Skipped
    skipped_path: Path | None  # lists them, where there are some
    try_again: bool  # whether some of them may be readable later: the same call computes those alone


def embed(
    inputs: Inputs,
    out: str | Path,
    *,
    pictures: bool = False,
    batch_size: int = BATCH_SIZE,
    display: Display | None = None,
) -> EmbedResult:
    """Write the features of all pictures to an .npz, .parquet or .csv, from the index that every command shares.

    `pictures`: a .parquet holds thumbnails, a map and neighbours as well, for viewers.
    """
    out, display = Path(out), display or Display()
    listing = out.with_name(f"{out.stem}.skipped.csv")
    inputs.check_output("--out", out, list(WRITERS))
    inputs.check_output("--out", listing, [".csv"])
    check_library(out, pictures=pictures)
    if not 1 <= batch_size <= SHARD_SIZE:
        raise BadInput(f"--batch-size is 1 to {SHARD_SIZE:,}, not {batch_size}")
    encoder, source = inputs.open(display)
    index = open_index(source, encoder, display, raw=True, batch_size=batch_size)
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

    def blocks() -> Iterator[NDArray[np.float32]]:
        return (index.features[start : start + SHARD_SIZE] for start in range(0, len(index), SHARD_SIZE))

    viewer = None
    if pictures:
        unit = open_index(source, encoder, Display()).features  # made a moment ago: all is said
        if has_collapsed(encoder, index):
            display.note("the encoder has collapsed, so neither the map nor the neighbours mean anything")
        viewer = find_viewer_columns(unit, display)
    table = Table(source, index.kept, blocks, encoder.feature_dim, about, viewer)
    write = WRITERS[out.suffix.lower()]
    with display.task(f"writing {out.name}", len(index)) as advance:
        write_atomically(out, lambda file: write(file, table, advance))
    if index.left_out:
        write_text(listing, to_csv([("file", "reason"), *index.left_out]))
    else:
        listing.unlink(missing_ok=True)  # of an earlier time
    listed, again = listing if index.left_out else None, may_pass(index.skipped)
    return EmbedResult(len(index), encoder.feature_dim, index.left_out, skipped_path=listed, try_again=again)


def embed_source(
    encoder: LoadedEncoder, data: str, *, split: str = "all", workers: int | None = None
) -> tuple[NDArray[np.float32], list[str], NDArray[np.int64], list[tuple[str, str]]]:
    """Features [N, d], names and labels of all readable pictures of a source; and the others, with the reason."""
    source = Inputs(encoder, data, split=split).open_source()
    index = open_index(source, encoder, Display(), raw=True, workers=workers)
    names = [source.names[position] for position in index.kept.tolist()]
    return np.array(index.features), names, source.labels[index.kept], list(index.left_out)
