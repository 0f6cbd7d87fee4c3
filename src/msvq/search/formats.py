"""Features with names and labels as a file that other tools read: .npz, .parquet or .csv, written shard by shard."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Advance, printable
from msvq.core.errors import BadInput
from msvq.data.sources.base import ImageSource, Positions

BLOCK = 4096  # names that are strings at one time


@dataclass(frozen=True)
class Table:
    """What is written: row by row the features, names and labels of the pictures of `source` at `kept`."""

    source: ImageSource
    kept: Positions
    features: Callable[[], Iterator[NDArray[np.float32]]]  # in blocks [n, d], each time anew
    feature_dim: int
    about: dict[str, Any]

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
            for start in range(0, num, BLOCK):
                yield table.names(start, start + BLOCK)

        add("features", np.dtype("<f4"), (num, table.feature_dim), features())
        longest = max((len(name) for block in names() for name in block), default=1)
        kind = np.dtype(f"<U{max(longest, 1)}")
        add("names", kind, (num,), (np.array(block, kind) for block in names()))
        add("labels", np.dtype("<i8"), (num,), iter([table.labels]))
        words = np.array(table.class_names, dtype=str)
        add("class_names", words.dtype, words.shape, iter([words]))
        about = np.array(json.dumps(table.about))
        add("about", about.dtype, (), iter([about]))


def write_csv(file: BinaryIO, table: Table, advance: Advance) -> None:
    """A row per picture: file, label, class, f0, f1 ... with nine digits, which is every bit of a float32."""
    titles = ["file", "label", "class", *(f"f{i}" for i in range(table.feature_dim))]
    file.write((",".join(titles) + "\n").encode())
    numbers = ",%.9g" * table.feature_dim + "\n"
    for features, names, labels, words in table.blocks():
        text = io.StringIO(newline="")
        write = csv.writer(text, lineterminator="\n").writerow
        for row, name, label, word in zip(features, names, labels, words, strict=True):
            write([name, label, word])
            text.seek(text.tell() - 1)  # the numbers take the place of the end of the line
            text.write(numbers % tuple(row.tolist()))
        file.write(text.getvalue().encode())
        advance(len(features))


def write_parquet(file: BinaryIO, table: Table, advance: Advance) -> None:
    """Columns file, label, class (null where unknown) and features, a list of fixed length; a row group per shard."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = pa.schema(
        [
            ("file", pa.string()),
            ("label", pa.int64()),
            ("class", pa.string()),
            ("features", pa.list_(pa.float32(), table.feature_dim)),
        ],
        metadata={"msvq": json.dumps(table.about)},
    )
    # Features are noise to a compressor, and repeat nothing that a dictionary would catch.
    packed = {"compression": {"file": "zstd", "label": "zstd", "class": "zstd"}, "use_dictionary": ["class"]}
    with pq.ParquetWriter(file, schema, **packed) as writer:
        for features, names, labels, words in table.blocks():
            if not len(features):
                continue
            numbers = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), table.feature_dim)
            columns = [pa.array(names), pa.array(labels, pa.int64()), pa.array(words, pa.string()), numbers]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(features))
            advance(len(features))


Writer = Callable[[BinaryIO, Table, Advance], None]
WRITERS: dict[str, Writer] = {".npz": write_npz, ".parquet": write_parquet, ".csv": write_csv}


def check_library(out: Path) -> None:
    """Raise if what writes such a file is not installed."""
    if out.suffix.lower() == ".parquet":
        try:
            import_module("pyarrow")
        except ImportError:
            raise BadInput("a .parquet file needs pyarrow; pip install 'msvq[parquet]' gives it") from None
