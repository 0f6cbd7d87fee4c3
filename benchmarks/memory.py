"""Peak anonymous memory of a few training steps, on one resident batch or from a mapped store of so many GB.

python benchmarks/memory.py mapped 4        # or: resident 0; benchmarks/data.py compares them
"""

import io
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from msvq.config.adapt import fill_from_data
from msvq.config.build import build_method, make_augment
from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.data.loader import Loader
from msvq.data.pack import pack_bytes
from msvq.data.patterns import make_patterns
from msvq.data.sources import DataPlan, DataSettings
from msvq.data.sources.base import EncodedSource
from msvq.evaluate.features import feature_function
from msvq.train.monitors import KnnMonitor
from msvq.train.trainer import Trainer


def main() -> None:
    kind, gigabytes = sys.argv[1], float(sys.argv[2])
    side = 64
    buffer = io.BytesIO()
    Image.fromarray(make_patterns(1, seed=0)[0][0]).resize((side, side)).save(buffer, "BMP")
    num = int(gigabytes * 1e9 / pack_bytes(1, side)) if kind == "mapped" else 2000
    labels = np.arange(num, dtype=np.int64) % 10
    items = Made(
        origin=f"made {num}",
        root="",
        names=Same(num),
        labels=labels,
        num_train=num - 1000,
        class_names=tuple("0123456789"),
        content=buffer.getvalue(),
    )
    data = items.open(DataPlan(DataSettings(source="hf:made"), side, side), Display())
    settings = resolve(recipe="folder", overrides=["backbone.width=16"])
    with tempfile.TemporaryDirectory() as folder:
        settings = fill_from_data(settings, data, torch.device("cpu"))
        loader = Loader(data.train, batch_size=settings.train.batch_size, seed=0, device=torch.device("cpu"))
        trainer = Trainer(
            build_method(settings, side),
            loader,
            make_augment(settings, data),
            settings.train,
            directory=Path(folder),
            precision=settings.train.precision,
        )
        features = feature_function(data, torch.device("cpu"), "fp32")
        knn = KnnMonitor(data, settings.evaluate, features=features)
        with PeakOfAnonymous() as peak:
            batches = trainer.loader.epoch(0)
            batch = next(batches)
            for _ in range(12):
                trainer.train_step(*batch, 0.01)
                batch = next(batches) if kind == "mapped" else batch
            if kind == "mapped":
                knn.measure(trainer.method.encoder)
                for _ in range(3):
                    trainer.train_step(*next(batches), 0.01)
    mapped = pack_bytes(num, side) / 1e9 if kind == "mapped" else 0
    print(json.dumps({"anonymous_mb": round(peak.mb, 1), "store_gb": round(mapped, 2), "knn_bank": len(knn.bank)}))


@dataclass(frozen=True, kw_only=True)
class Made(EncodedSource):
    """Any number of pictures, all the same: what matters is where their pixels are."""

    content: bytes

    def __getitem__(self, index: int) -> bytes:
        return self.content

    def fingerprint(self) -> str:
        return f"{self.origin} {len(self.content)}"


class Same(Sequence[str]):
    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: Any) -> Any:
        return str(index)


class PeakOfAnonymous:
    """Watches this process's anonymous memory."""

    def __enter__(self) -> "PeakOfAnonymous":
        self.mb, self.going = 0.0, True
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.going = False
        self.thread.join()

    def watch(self) -> None:
        while self.going:
            lines = Path("/proc/self/status").read_text().splitlines()
            kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            self.mb = max(self.mb, kilobytes / 1024)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
