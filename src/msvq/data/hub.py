"""Data sets of the Hugging Face hub, by the `datasets` library (the `hf` extra): `hf:NAME`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.listing import TEST_NAMES, choose, hold_out

PREFIX = "hf:"


@dataclass(frozen=True)
class HubPictures:
    """Pictures of a hub data set, in the order of the store, encoded as they came."""

    root: str
    names: Sequence[str]
    labels: NDArray[np.int64]
    num_train: int
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[tuple[Any, NDArray[np.int64]], ...]  # tables, and which of their rows
    column: str
    stamp: str

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> str | bytes:
        for table, chosen in self.rows:
            if index < len(chosen):
                cell = table[int(chosen[index])][self.column] or {}  # a row may have no picture
                return cell.get("bytes") or cell.get("path") or b""
            index -= len(chosen)
        raise IndexError(index)

    @property
    def origin(self) -> str:
        """What its packs belong to."""
        return self.root

    @property
    def num_bank(self) -> int:
        """How many training pictures have a label."""
        return int((self.labels[: self.num_train] >= 0).sum())

    def limited(self, limit: int | None) -> "HubPictures":
        """With a random `limit` of the training pictures."""
        chosen = choose(self.num_train, limit)
        kept = np.concatenate([chosen, np.arange(self.num_train, len(self))])
        (train, order), *test = self.rows
        return replace(
            self,
            names=[self.names[int(i)] for i in kept],
            labels=self.labels[kept],
            num_train=len(chosen),
            rows=((train, order[chosen]), *test),
            stamp=f"{self.stamp} {len(chosen)}",
        )

    def fingerprint(self) -> str:
        """The library's own, of the tables and the choice."""
        return self.stamp


def open_hub(name: str, *, use_labels: bool = True, whole: bool = False) -> HubPictures:
    """The data set `name` (or a folder that the library can load), downloaded by the library if need be.

    `whole`: every picture of every split, whether or not training would use it.
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
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"cannot load the data set {name!r} of the hub: {reason}") from None
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
    if whole:
        return _in_a_row(name, tables, labels, class_names, column)
    tests = [n for n in TEST_NAMES if n in splits and n != train_name]
    # The first that has labels: often test has none, and validation serves.
    test_name = next((n for n in tests if (labels[n] >= 0).any()), tests[0] if tests else None)
    chosen = [n for n in (train_name, test_name) if n is not None]
    return _arranged(name, [tables[n] for n in chosen], [labels[n] for n in chosen], class_names, column)


def _labels(table: Any, column: str | None) -> NDArray[np.int64]:
    if column is None:
        return np.full(len(table), -1, np.int64)
    return np.array([-1 if value is None else value for value in table[column]], np.int64)


def _in_a_row(
    name: str, tables: dict[str, Any], labels: dict[str, NDArray[np.int64]], class_names: tuple[str, ...], column: str
) -> HubPictures:
    """All splits, one after another, each in its own order."""
    names = [f"{split} {i}" for split, table in tables.items() for i in range(len(table))]
    rows = tuple((table, np.arange(len(table))) for table in tables.values())
    stamp = " ".join(str(table._fingerprint) for table in tables.values())
    known = np.concatenate(list(labels.values()))
    return HubPictures(f"{PREFIX}{name}", names, known, len(names), class_names, (), rows, column, stamp)


def _arranged(
    name: str, tables: list[Any], labels: list[NDArray[np.int64]], class_names: tuple[str, ...], column: str
) -> HubPictures:
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
    kept = np.concatenate([labels[0][order], labels[1][held_out]])
    names = [f"train {i}" for i in order] + [f"test {i}" for i in held_out]
    stamp = " ".join(str(table._fingerprint) for table in tables) + f" {len(order)} {len(held_out)}"
    rows = ((train, order), (test, held_out))
    root = f"{PREFIX}{name}"
    return HubPictures(root, names, kept, len(order), class_names, tuple(notes), rows, column, stamp)
