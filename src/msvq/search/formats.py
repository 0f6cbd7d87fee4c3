"""Features with names and labels as a file that other tools read: .npz, .parquet or .csv, written shard by shard."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Advance, printable
from msvq.core.errors import BadInput
from msvq.core.files import csv_cell
from msvq.data.sources.base import ImageSource, Positions
from msvq.search.viewer import ViewerColumns, encode_thumbnails

BLOCK = 4096  # names that are strings at one time


@dataclass(frozen=True)
class Table:
    """What is written: row by row the features, names and labels of the pictures of `source` at `kept`."""

    source: ImageSource
    kept: Positions
    features: Callable[[], Iterator[NDArray[np.float32]]]  # in blocks [n, d], each time anew
    feature_dim: int
    about: dict[str, Any]
    viewer: ViewerColumns | None = None  # where the file is to be looked at, too

    def names(self, start: int, stop: int) -> list[str]:
        """Names of some rows, in letters that any file takes."""
        return [printable(self.source.names[int(i)]) for i in self.kept[start:stop]]

    @property
    def labels(self) -> NDArray[np.int64]:
        """-1 where unknown."""
        return self.source.labels[self.kept]

    @property
    def class_names(self) -> list[str]:
        """The labels in words."""
        return [printable(name) for name in self.source.class_names]

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], list[str], list[int], list[str | None]]]:
        """Features, names, labels and classes of some rows at a time; a class is None where it is unknown."""
        start, labels, classes = 0, self.labels, self.class_names
        for features in self.features():
            stop = start + len(features)
            some = labels[start:stop].tolist()
            words = [classes[label] if 0 <= label < len(classes) else None for label in some]
            yield features, self.names(start, stop), some, words
            start = stop


def write_npz(file: BinaryIO, table: Table, advance: Advance) -> None:
    """Arrays `features`, `names`, `labels`, `class_names` and `about`, as numpy.savez would, without holding them."""
    num = len(table.kept)
    with ZipFile(file, "w") as archive:

        def add(name: str, kind: np.dtype[Any], shape: tuple[int, ...], blocks: Iterator[NDArray[Any]]) -> None:
            entry = ZipInfo(f"{name}.npy")  # with a fixed date: the same content is the same file
            entry.compress_type = ZIP_DEFLATED if kind.kind == "U" else ZIP_STORED  # names are mostly filling
            with archive.open(entry, "w", force_zip64=True) as member:
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                for block in blocks:
                    member.write(np.ascontiguousarray(block, kind).tobytes())

        def features() -> Iterator[NDArray[np.float32]]:
            for block in table.features():
                yield block
                advance(len(block))

        def names() -> Iterator[list[str]]:
            return (table.names(start, start + BLOCK) for start in range(0, num, BLOCK))

        add("features", np.dtype("<f4"), (num, table.feature_dim), features())
        longest = max((len(name) for block in names() for name in block), default=1)
        kind = np.dtype(f"<U{max(longest, 1)}")
        add("names", kind, (num,), (np.array(block, kind) for block in names()))
        words, about = np.array(table.class_names, dtype=str), np.array(json.dumps(table.about))
        for name, array in (("labels", table.labels.astype("<i8")), ("class_names", words), ("about", about)):
            add(name, array.dtype, array.shape, iter([array]))


def write_csv(file: BinaryIO, table: Table, advance: Advance) -> None:
    """A row per picture: file, label, class, f0, f1 ... with nine digits, which is every bit of a float32."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label", "class", *(f"f{i}" for i in range(table.feature_dim))])
    for features, names, labels, words in table.blocks():
        for row, *about in zip(features.tolist(), names, labels, words, strict=True):
            writer.writerow([*map(csv_cell, about), *(f"{number:.9g}" for number in row)])
        advance(len(features))
    text.detach()  # the file stays open


def write_parquet(file: BinaryIO, table: Table, advance: Advance) -> None:
    """Columns file, label, class (null where unknown) and features, a list of fixed length; a row group per shard.

    For viewers also `image` (a thumbnail, as Hugging Face stores pictures), `x` and `y` on a map, and `neighbors` (rows
    of the file, and their cosine distances, as embedding-atlas reads them).
    """
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    viewer, thumbnails = table.viewer, encode_thumbnails(table.source, table.kept)
    kinds = {"file": pa.string(), "label": pa.int64(), "class": pa.string()}
    metadata = {"msvq": json.dumps(table.about)}
    if viewer is not None:
        near = pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())})
        image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        kinds |= {"image": image, "x": pa.float32(), "y": pa.float32(), "neighbors": near}
        metadata["huggingface"] = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    kinds["features"] = pa.list_(pa.float32(), table.feature_dim)
    schema = pa.schema(kinds, metadata=metadata)
    # Features are noise to a compressor, and repeat nothing that a dictionary would catch.
    packed = {"compression": {"file": "zstd", "label": "zstd", "class": "zstd"}, "use_dictionary": ["class"]}
    start = 0
    with closing(thumbnails), pq.ParquetWriter(file, schema, **packed) as writer:
        for features, names, labels, words in table.blocks():
            if not len(features):
                continue
            columns, rows = [names, labels, words], slice(start, start + len(features))
            if viewer is not None:
                images = zip(islice(thumbnails, len(features)), names, strict=True)
                neighbours = zip(viewer.rows[rows], 1 - viewer.cosines[rows], strict=True)
                columns.append([{"bytes": content, "path": name} for content, name in images])
                columns += [*viewer.places[rows].T]
                columns.append([{"ids": ids, "distances": distances} for ids, distances in neighbours])
            arrays = [pa.array(column, kind) for column, kind in zip(columns, list(kinds.values())[:-1], strict=True)]
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), table.feature_dim))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(features))
            advance(len(features))
            start = rows.stop


Writer = Callable[[BinaryIO, Table, Advance], None]
WRITERS: dict[str, Writer] = {".npz": write_npz, ".parquet": write_parquet, ".csv": write_csv}


def check_library(out: Path, *, pictures: bool = False) -> None:
    """Raise if such a file cannot hold pictures that are wanted, or if what writes it is not installed."""
    if pictures and out.suffix.lower() != ".parquet":
        raise BadInput(f"--pictures go into a .parquet file, which viewers open, not into {out.name!r}")
    if out.suffix.lower() == ".parquet":
        try:
            import_module("pyarrow")
        except ImportError:
            raise BadInput("a .parquet file needs pyarrow; pip install 'msvq[parquet]' gives it") from None
