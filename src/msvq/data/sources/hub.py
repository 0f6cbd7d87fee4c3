"""Data sets of the Hugging Face hub, by the `datasets` library (the `hf` extra): `hf:NAME`."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput, first_line
from msvq.data.sources.base import TEST_NAMES, EncodedSource, Positions, hold_out

PREFIX = "hf:"


@dataclass(frozen=True, kw_only=True)
class HubImages(EncodedSource):
    """Pictures of a hub data set, encoded as they came."""

    rows: tuple[tuple[Any, NDArray[np.int64]], ...]  # tables, and which of their rows
    column: str
    stamp: str

    def __getitem__(self, index: int) -> str | bytes:
        for table, chosen in self.rows:
            if index < len(chosen):
                cell = table[int(chosen[index])][self.column] or {}  # a row may have no picture
                return cell.get("bytes") or cell.get("path") or b""
            index -= len(chosen)
        raise IndexError(index)

    @property
    def origin(self) -> str:
        """The data set's name."""
        return self.root

    def select(self, chosen: Positions) -> "HubImages":
        """Some of the pictures, by ascending positions."""
        ends = np.cumsum([len(order) for _, order in self.rows])
        places = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        rows = tuple(
            (table, order[some - (end - len(order))])
            for (table, order), end, some in zip(self.rows, ends, places, strict=True)
        )
        fewer = super().select(chosen)
        return replace(fewer, rows=rows, stamp=f"{self.stamp} {fewer.num_train} {len(chosen)}")

    def fingerprint(self) -> str:
        """The library's own, of the tables and the choice."""
        return self.stamp


def open_hub(name: str, *, use_labels: bool = True, keep_all: bool = False) -> HubImages:
    """The data set `name` (or a folder that the library can load), downloaded by the library if need be.

    `keep_all`: every picture of every split, whether or not training would use it.
    """
    if not name.strip():
        raise BadInput("hf: takes the name of a data set of the hub, such as hf:cifar10")
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
    label = next((key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)), None)
    label = label if use_labels else None
    class_names = tuple(features[label].names) if label else ()
    labels = {n: _labels(table, label) for n, table in splits.items()}
    # A row is read whole, and any other column of pictures would be decoded on the way, whatever is in it.
    encoded = datasets.Image(decode=False)
    tables = {n: table.select_columns([column]).cast_column(column, encoded) for n, table in splits.items()}
    if keep_all:
        return _join_splits(name, tables, labels, class_names, column)
    tests = [n for n in TEST_NAMES if n in splits and n != train_name]
    # The first that has labels: often test has none, and validation serves.
    test_name = next((n for n in tests if (labels[n] >= 0).any()), tests[0] if tests else None)
    chosen = [n for n in (train_name, test_name) if n is not None]
    return _order_splits(name, [tables[n] for n in chosen], [labels[n] for n in chosen], class_names, column)


def _labels(table: Any, column: str | None) -> NDArray[np.int64]:
    if column is None:
        return np.full(len(table), -1, np.int64)
    return np.array([-1 if value is None else value for value in table[column]], np.int64)


def _join_splits(
    name: str, tables: dict[str, Any], labels: dict[str, NDArray[np.int64]], class_names: tuple[str, ...], column: str
) -> HubImages:
    """All splits, one after another, each in its own order."""
    names = [f"{split} {i}" for split, table in tables.items() for i in range(len(table))]
    rows = tuple((table, np.arange(len(table))) for table in tables.values())
    return HubImages(
        root=f"{PREFIX}{name}",
        names=names,
        labels=np.concatenate(list(labels.values())),
        num_train=len(names),
        class_names=class_names,
        rows=rows,
        column=column,
        stamp=" ".join(str(table._fingerprint) for table in tables.values()),
    )


def _order_splits(
    name: str, tables: list[Any], labels: list[NDArray[np.int64]], class_names: tuple[str, ...], column: str
) -> HubImages:
    notes = []
    train, test = tables[0], tables[1] if len(tables) > 1 else tables[0]
    order = np.argsort(labels[0] < 0, kind="stable")
    if len(tables) == 1 or not (labels[1] >= 0).any():
        held_out = hold_out(labels[0])
        order = order[~np.isin(order, held_out)]
        test, labels = train, [labels[0], labels[0]]
        if class_names:
            notes = [f"no labelled test pictures: {len(held_out):,} of the labelled pictures are held out to judge by"]
    else:
        held_out = np.flatnonzero(labels[1] >= 0)
        if left_out := len(test) - len(held_out):
            notes = [f"{left_out:,} test pictures without a known class are left out"]
    return HubImages(
        root=f"{PREFIX}{name}",
        names=[f"train {i}" for i in order] + [f"test {i}" for i in held_out],
        labels=np.concatenate([labels[0][order], labels[1][held_out]]),
        num_train=len(order),
        class_names=class_names,
        notes=tuple(notes),
        rows=((train, order), (test, held_out)),
        column=column,
        stamp=" ".join(str(table._fingerprint) for table in tables) + f" {len(order)} {len(held_out)}",
    )
