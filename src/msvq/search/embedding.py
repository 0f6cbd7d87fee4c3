"""Features of pictures: of arrays and files in Python, or of a whole source, in a file that `msvq embed` writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, lock, to_csv, write_atomically, write_text
from msvq.core.runtime import OutOfMemory
from msvq.core.version import __version__
from msvq.data.inputs import are_paths, decode_files, materialise, to_image_list
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import (
    BATCH_SIZE,
    SHARD_SIZE,
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
from msvq.search.formats import WRITERS, Table, check_library
from msvq.search.inputs import Inputs


@dataclass(frozen=True)
class Written:
    """What `embed` has written."""

    num: int
    feature_dim: int
    skipped: Skipped
    skipped_path: Path | None  # lists them, where there are some
    shards: Path | None  # kept where some of them may be readable later: the same call tries those again


def embed(inputs: Inputs, out: str | Path, *, batch_size: int = BATCH_SIZE, display: Display | None = None) -> Written:
    """Write the features of all pictures to an .npz, .parquet or .csv.

    Until it is whole, finished shards are kept in `<out>.parts`; the same call continues from them, to the same bits.
    They stay there if a picture could not be read for a reason that may pass: the same call tries it again.
    """
    out, display = Path(out), display or Display()
    listing = out.with_name(f"{out.stem}.skipped.csv")
    folder = out.with_name(f"{out.name}.parts")
    inputs.check_output("--out", out, list(WRITERS))
    inputs.check_output("--out", listing, [".csv"])
    check_library(out)
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
            "run": printable(str(inputs.run.path.absolute())),
            "checkpoint": encoder.checkpoint,
            "encoder": encoder.key,
            "data": printable(source.origin),
            "root": printable(source.root),
            "split": inputs.split,
            "precision": encoder.precision,
            "device": encoder.device.type,
        }
        kept = shards.kept
        table = Table(source, kept, shards.features, encoder.feature_dim, about)
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
    return Written(
        num=len(kept),
        feature_dim=encoder.feature_dim,
        skipped=skipped,
        skipped_path=listing if skipped else None,
        shards=folder if try_again else None,
    )


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
    if are_paths(images):
        none = np.zeros((0, encoder.feature_dim), np.float32)
        return np.concatenate([none, *map(encoder, decode_files(images, encoder.size))])
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
    source = Inputs(encoder.run, data, split=split).open_source()
    positions = np.arange(len(source))
    ((features, skipped),) = compute_features(encoder, source, [positions], workers=workers)
    kept = positions[is_readable(positions, skipped)]
    names = [source.names[position] for position in kept.tolist()]
    return features, names, source.labels[kept], list(name_skipped(source, skipped))
