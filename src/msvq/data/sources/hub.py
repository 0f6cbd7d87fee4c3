"""Data sets of the Hugging Face hub, by the `datasets` library (the `hf` extra): `hf:NAME`."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput, first_line
from msvq.data.sources.base import TEST_NAMES, EncodedSource, Positions

PREFIX = "hf:"


@dataclass(frozen=True, kw_only=True)
class HubImages(EncodedSource):
    """Pictures of a hub data set, encoded as they came."""

    tables: Sequence[Any]
    column: str
    rows: NDArray[np.int64]  # [N, 2]: which table, and which of its rows

    def __getitem__(self, index: int) -> str | bytes:
        table, row = self.rows[index].tolist()
        cell = self.tables[table][row][self.column] or {}  # a row may have no picture
        return cell.get("bytes") or cell.get("path") or b""

    def select(self, chosen: Positions) -> Self:
        """Some of the pictures."""
        return replace(super().select(chosen), rows=self.rows[chosen])

    def fingerprint(self) -> str:
        """The library's own of the tables, and the choice."""
        digest = hashlib.sha256(" ".join(str(table._fingerprint) for table in self.tables).encode())
        digest.update(np.ascontiguousarray(self.rows).data)
        return digest.hexdigest()[:32]


def open_hub(name: str, *, use_labels: bool = True, keep_all: bool = False) -> HubImages:
    """The data set `name` (or a folder that the library can load), downloaded by the library if need be.

    `keep_all`: every picture of every split, whether or not training would use it.
    """
    if not name.strip():
        raise BadInput("hf: takes the name of a data set of the hub, such as hf:cifar10")
    if Path(name).exists() and not name.startswith((".", os.sep)):
        raise BadInput(f"hf:{name} is a data set of the hub, and there is a {name!r} here; hf:./{name} is the latter")
    try:
        import datasets
    except ImportError:
        raise BadInput("hf: data sets need the library 'datasets'; install it with: pip install 'msvq[hf]'") from None
    try:
        splits: dict[str, Any] = dict(datasets.load_dataset(name))
    except Exception as error:  # the library raises many kinds, for the network, the name and the format
        raise BadInput(f"cannot load the data set {name!r} of the hub: {first_line(error)}") from None
    train_name = next((n for n in ("train", *splits) if n in splits), None)
    if train_name is None:
        raise BadInput(f"the data set {name!r} of the hub has no pictures")
    features = splits[train_name].features
    column = next((key for key, kind in features.items() if isinstance(kind, datasets.Image)), None)
    if column is None:
        raise BadInput(f"the data set {name!r} of the hub has no column of pictures, but {', '.join(features)}")
    label = next((key for key, kind in features.items() if use_labels and isinstance(kind, datasets.ClassLabel)), None)
    labels = {n: _labels(table, label) for n, table in splits.items()}
    # A row is read whole, and any other column of pictures would be decoded on the way, whatever is in it.
    encoded = datasets.Image(decode=False)
    tables = {n: table.select_columns([column]).cast_column(column, encoded) for n, table in splits.items()}
    tests = [n for n in TEST_NAMES if n in splits and n != train_name]
    # The first that has labels: often test has none, and validation serves.
    test_name = next((n for n in tests if (labels[n] >= 0).any()), tests[0] if tests else None)
    chosen = list(splits) if keep_all else [n for n in (train_name, test_name) if n is not None]
    titles = chosen if keep_all else ["train", "test"]
    lengths = [len(tables[n]) for n in chosen]
    images = HubImages(
        origin=f"{PREFIX}{name}",
        root=f"{PREFIX}{name}",
        names=[f"{title} {i}" for title, length in zip(titles, lengths, strict=False) for i in range(length)],
        labels=np.concatenate([labels[n] for n in chosen]),
        num_train=sum(lengths) if keep_all else lengths[0],
        class_names=tuple(features[label].names) if label else (),
        tables=[tables[n] for n in chosen],
        column=column,
        rows=np.concatenate([np.stack([np.full(num, table), np.arange(num)], 1) for table, num in enumerate(lengths)]),
    )
    return images if keep_all else images.arranged()


def _labels(table: Any, column: str | None) -> NDArray[np.int64]:
    if column is None:
        return np.full(len(table), -1, np.int64)
    return np.array([-1 if value is None else value for value in table[column]], np.int64)
