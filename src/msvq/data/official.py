"""CIFAR-10, CIFAR-100 and STL-10 from their official files, split as the paper splits them (methods.md 1.1)."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.data.store import Pictures
from msvq.errors import BadInput

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Splits:
    """What a reader found. `notes` are sentences about what is missing."""

    train: Pictures
    bank: Pictures
    test: Pictures
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What the paper fixes for a data set."""

    folder: str  # inside the official archive
    mean: Triple
    std: Triple
    size: int
    test_size: int


OFFICIAL = {
    "cifar10": Facts("cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 32, 32),
    "cifar100": Facts("cifar-100-python", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), 32, 32),
    "stl10": Facts("stl10_binary", (0.4408, 0.4279, 0.3867), (0.2682, 0.2610, 0.2686), 64, 96),
}


def read_official(name: str, root: Path | None) -> Splits:
    """The splits of a data set whose extracted archive, or the folder around it, is `root`."""
    folder = OFFICIAL[name].folder
    if root is None:
        raise BadInput(f"{name} needs --data-root DIR, the folder that holds {folder}")
    path = root if root.name == folder else root / folder
    if not path.is_dir():
        raise BadInput(f"there is no {folder} in {str(root)!r}; extract the official archive of {name} there")
    if name == "stl10":
        return _read_stl10(path)
    if name == "cifar10":
        parts, labels, names = [f"data_batch_{i}" for i in range(1, 6)], b"labels", ("batches.meta", b"label_names")
        return _read_cifar(path, parts, "test_batch", labels, names)
    return _read_cifar(path, ["train"], "test", b"fine_labels", ("meta", b"fine_label_names"))


class _ArraysOnly(pickle.Unpickler):
    """Reads plain containers and numpy arrays. Anything else that a pickle could call is refused."""

    ALLOWED = frozenset(
        {("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
    )

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name, if it is one that an array needs."""
        if (module.rpartition(".")[2], name) not in self.ALLOWED or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a picture")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            values = _ArraysOnly(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise BadInput(f"{path} is damaged or not what it should be ({error}); extract it again") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    return values


def _read_cifar(path: Path, parts: list[str], test: str, labels: bytes, names: tuple[str, bytes]) -> Splits:
    missing = [part for part in parts if not (path / part).is_file()]
    if len(missing) == len(parts) or not (path / test).is_file():
        raise BadInput(f"{path} holds no {test if len(missing) < len(parts) else parts[0]}; extract the archive again")
    batches = [_cifar_batch(path / part, labels) for part in parts if part not in missing]
    train = Pictures(np.concatenate([b.images for b in batches]), np.concatenate([b.labels for b in batches]))
    notes = (f"{path.name} lacks {', '.join(missing)}: training on {len(train):,} pictures",) if missing else ()
    meta = _unpickle(path / names[0]).get(names[1], []) if (path / names[0]).is_file() else []
    held_out = _cifar_batch(path / test, labels)
    count = 1 + int(max(train.labels.max(), held_out.labels.max()))
    class_names = tuple(bytes(n).decode() for n in meta) if len(meta) >= count else tuple(map(str, range(count)))
    return Splits(train, train, held_out, class_names, notes)


def _cifar_batch(path: Path, key: bytes) -> Pictures:
    """Rows of 1024 red, 1024 green and 1024 blue values, row by row of the picture."""
    values = _unpickle(path)
    data, labels = np.asarray(values.get(b"data")), np.asarray(values.get(key))
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072 or labels.shape != data.shape[:1]:
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Pictures(images, labels.astype(np.int64))


def _read_stl10(path: Path) -> Splits:
    """Train and unlabelled pictures to learn from, the labelled ones to judge by."""
    bank = Pictures(_stl_images(path / "train_X.bin"), _stl_labels(path / "train_y.bin"))
    test = Pictures(_stl_images(path / "test_X.bin"), _stl_labels(path / "test_y.bin"))
    train, notes = bank, [f"{path.name} lacks unlabeled_X.bin: training on the {len(bank):,} labelled pictures alone"]
    if (path / "unlabeled_X.bin").is_file():
        more = _stl_images(path / "unlabeled_X.bin")
        unknown = np.full(len(more), -1, dtype=np.int64)
        train, notes = Pictures(np.concatenate([bank.images, more]), np.concatenate([bank.labels, unknown])), []
    listed = path / "class_names.txt"
    names = tuple(listed.read_text(encoding="utf-8").split()) if listed.is_file() else tuple(map(str, range(1, 11)))
    return Splits(train, bank, test, names, tuple(notes))


def _stl_images(path: Path) -> NDArray[np.uint8]:
    """Three planes of 96 columns of 96 values."""
    values = _read_bytes(path)
    if not len(values) or len(values) % (3 * 96 * 96):
        raise BadInput(f"{path} is cut short; extract it again")
    return np.ascontiguousarray(values.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1))


def _stl_labels(path: Path) -> NDArray[np.int64]:
    labels = _read_bytes(path).astype(np.int64) - 1
    if not len(labels) or labels.min() < 0 or labels.max() > 9:
        raise BadInput(f"{path} holds labels other than 1 to 10; extract it again")
    return labels


def _read_bytes(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise BadInput(f"there is no {path.name} in {path.parent}; extract the archive again")
    return np.fromfile(path, dtype=np.uint8)
