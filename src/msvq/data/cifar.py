"""CIFAR-10 and CIFAR-100 from the pickles of their official archives, without running what these carry."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from msvq.core.errors import BadInput
from msvq.data.splits import Splits
from msvq.data.store import ImageSplit


def read_cifar(name: str, path: Path) -> Splits:
    """The splits in an extracted archive of cifar10 or cifar100 (whose fine labels are taken)."""
    if name == "cifar10":
        parts = [f"data_batch_{i}" for i in range(1, 6)]
        return _read_batches(path, parts, "test_batch", b"labels", ("batches.meta", b"label_names"))
    return _read_batches(path, ["train"], "test", b"fine_labels", ("meta", b"fine_label_names"))


class _ArraysOnly(pickle.Unpickler):
    """Reads plain containers and numpy arrays. Anything else that a pickle could call is refused."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name, if it is one that an array needs."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a picture")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            values = _ArraysOnly(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise BadInput(f"{path} is damaged or not what it should be ({error}); extract it again") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    return values


def _read_batches(path: Path, parts: list[str], test: str, labels: bytes, names: tuple[str, bytes]) -> Splits:
    missing = [part for part in parts if not (path / part).is_file()]
    if len(missing) == len(parts) or not (path / test).is_file():
        raise BadInput(f"{path} holds no {test if len(missing) < len(parts) else parts[0]}; extract the archive again")
    batches = [_cifar_batch(path / part, labels) for part in parts if part not in missing]
    train = ImageSplit(np.concatenate([b.images for b in batches]), np.concatenate([b.labels for b in batches]))
    notes = (f"{path.name} lacks {', '.join(missing)}: training on {len(train):,} pictures",) if missing else ()
    meta = _unpickle(path / names[0]).get(names[1], []) if (path / names[0]).is_file() else []
    held_out = _cifar_batch(path / test, labels)
    count = 1 + int(max(train.labels.max(), held_out.labels.max()))
    class_names = tuple(map(str, range(count)))
    if isinstance(meta, list) and len(meta) >= count and all(isinstance(n, bytes) for n in meta):
        class_names = tuple(n.decode(errors="replace") for n in meta)
    return Splits(train, train, held_out, class_names, notes)


def _cifar_batch(path: Path, key: bytes) -> ImageSplit:
    """Rows of 1024 red, 1024 green and 1024 blue values, row by row of the picture."""
    values = _unpickle(path)
    try:
        data, labels = np.asarray(values.get(b"data")), np.asarray(values.get(key))
    except Exception:  # lists of unequal length, arrays without content
        raise BadInput(f"{path} is not a batch of pictures; extract it again") from None
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072 or labels.shape != data.shape[:1]:
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    if not len(labels) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return ImageSplit(images, labels.astype(np.int64))
