"""How fast pictures reach the training loop, and what they cost in memory. Ratios, each measured in one run.

    python benchmarks/data.py                     # all of it: some minutes
    python benchmarks/data.py --only packing --pictures ~/photos --pictures ~/more --out data.json

Pictures: the folders given by --pictures, each a set of its own; without any, made ones.
"""

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from msvq.config.adapt import fill_from_data
from msvq.config.build import build_method, make_augment
from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.core.files import packs
from msvq.data.loader import Loader
from msvq.data.pack import open_pack
from msvq.data.patterns import make_patterns
from msvq.data.sources import DataPlan, DataSettings, fitting_sizes, open_dataset
from msvq.data.sources.folders import FileImages, list_folder
from msvq.data.stream import PIECE, DecodingStream, StreamedSplit
from msvq.data.workers import Workers, available_cores, chunked, perform
from msvq.train.trainer import Trainer

REPETITIONS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"packing": packing, "feeding": feeding, "stream": streaming, "reopen": reopening, "memory": memory}
    parser.add_argument("--only", choices=parts, action="append", help="this part alone; may be given again")
    parser.add_argument("--pictures", type=Path, action="append", help="a folder of pictures; may be given again")
    parser.add_argument(
        "--num", type=int, default=50_000, help="at most so many pictures of a set are packed and streamed"
    )
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the store whose memory is measured")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    given = parser.parse_args()
    results: dict[str, Any] = {"cores": available_cores(), "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MSVQ_HOME"] = f"{folder}/home"
        results["pictures"], sets = find_pictures(given.pictures, Path(folder), given.num)
        os.sync()  # what was just extracted is not written out while something is timed
        for name, part in parts.items():
            if not given.only or name in given.only:
                results[name] = {}
                for label, pictures in sets.items() if name in ("packing", "stream") else (("", sets),):
                    found = part(pictures, given)  # type: ignore[operator]
                    results[name].update({label: found} if label else found)
                print(json.dumps({name: results[name]}, indent=2), flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=2) + "\n")


def find_pictures(chosen: list[Path] | None, folder: Path, num: int) -> tuple[str, dict[str, FileImages]]:
    """Sets of pictures by name, and a word about them."""
    if chosen:
        return "real", {one.name: first(list_folder(one.absolute(), use_labels=False), num) for one in chosen}
    images, _ = make_patterns(min(num, 1000), seed=0)
    (folder / "made").mkdir()
    for i in range(num):
        picture = Image.fromarray(images[i % len(images)]).resize((160, 120), Image.Resampling.BICUBIC)
        picture.save(folder / "made" / f"{i}.jpg", quality=90)
    return "made", {"made": list_folder(folder / "made")}


def first(listing: FileImages, num: int) -> FileImages:
    return listing.select(np.arange(min(num, len(listing))))


def alternate(**measured: Callable[[], float]) -> dict[str, list[float]]:
    """Each of them in turn, several times, so that a slow spell of the machine hits all alike."""
    values: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(REPETITIONS):
        for name, measure in measured.items():
            values[name].append(measure())
    return values


def ratio(values: dict[str, list[float]], over: str, under: str) -> dict[str, float | list[float]]:
    each = [a / b for a, b in zip(values[over], values[under], strict=True)]
    rates = {name: round(statistics.median(v), 1) for name, v in values.items()}
    return {**rates, "ratio": round(statistics.median(each), 3), "ratios": [round(value, 3) for value in sorted(each)]}


def packing(listing: FileImages, given: Any) -> dict[str, Any]:
    """Pictures per second, to the file on disk: packing confined to one core, and packing with all of them.

    Beside it a plain loop that decodes in one process and keeps nothing.
    """
    side, cores = max(fitting_sizes(listing.typical_side())), os.sched_getaffinity(0)

    def plain_loop() -> float:
        some = list(chunked(listing, range(len(listing) // 3)))
        started = time.perf_counter()
        for piece in some:
            perform("decode", piece, side)
        return len(listing) // 3 / (time.perf_counter() - started)

    def pack(affinity: set[int]) -> float:
        os.sched_setaffinity(0, affinity)
        started = time.perf_counter()
        open_pack(listing, side=side, pixels=True, max_skipped=0.1, num_workers=None, display=Display())
        seconds = time.perf_counter() - started
        os.sched_setaffinity(0, cores)
        shutil.rmtree(packs())
        os.sync()
        return len(listing) / seconds

    measured = alternate(plain_loop=plain_loop, one_core=lambda: pack({min(cores)}), all_cores=lambda: pack(cores))
    return ratio(measured, "all_cores", "one_core")


def streaming(listing: FileImages, given: Any) -> dict[str, Any]:
    """Pictures per second: worker processes that decode and hand back nothing, and shuffled batches from a stream."""
    side, num_workers = max(fitting_sizes(listing.typical_side())), 2
    alone = Workers(num_workers)
    stream = DecodingStream(listing, side=side, max_lost=0, num_workers=num_workers)
    order = np.random.default_rng(0).permutation(len(listing))
    pictures = StreamedSplit(stream, listing.labels, rows=order)
    loader = Loader(pictures, batch_size=256, seed=0, device=torch.device("cpu"))
    epochs = iter(range(1000))

    def decode() -> float:
        started = time.perf_counter()
        done = sum(len(result.rows) for result in alone.map("check", chunked(listing, order, PIECE), side=side))
        return done / (time.perf_counter() - started)

    def batches() -> float:
        started = time.perf_counter()
        done = sum(len(images) for images, _, _ in loader.epoch(next(epochs)))
        return done / (time.perf_counter() - started)

    decode(), batches()  # the processes are up
    values = alternate(decode_alone=decode, stream=batches)
    alone.close()
    stream.workers.close()
    return ratio(values, "stream", "decode_alone")


def feeding(sets: dict[str, FileImages], given: Any) -> dict[str, Any]:
    """Seconds: a training step of MSVQ at width 16, and getting its batch from a packed store."""
    listing = next(iter(sets.values()))
    results = {}
    for size in (32, 64):
        settings = resolve(data=listing.root, overrides=["backbone.width=16", f"data.size={size}"])
        data = listing.open(DataPlan(DataSettings(source=listing.root), size, size), Display())
        with tempfile.TemporaryDirectory() as folder:
            settings = fill_from_data(settings, data, torch.device("cpu"))
            loader = Loader(data.train, batch_size=256, seed=0, device=torch.device("cpu"))
            trainer = Trainer(
                build_method(settings, size),
                loader,
                make_augment(settings, data),
                settings.train,
                directory=Path(folder),
                precision=settings.train.precision,
            )
            batch = next(trainer.loader.epoch(0))
            images, labels, indices = batch
            trainer.train_step(images, labels, indices, 0.01)
            batches = trainer.loader.epoch(1)

            taken: list[Any] = [batch]

            def feed(batches: Any = batches, taken: list[Any] = taken) -> float:
                started = time.perf_counter()
                taken[0] = next(batches)
                return time.perf_counter() - started

            def step(trainer: Trainer = trainer, taken: list[Any] = taken) -> float:
                started = time.perf_counter()
                images, labels, indices = taken[0]
                trainer.train_step(images, labels, indices, 0.01)
                return time.perf_counter() - started

            values = alternate(feed=feed, step=step)
        share = ratio(values, "feed", "step")
        share |= {name: round(statistics.median(values[name]), 5) for name in ("feed", "step")}
        each = sorted(f / s for f, s in zip(values["feed"], values["step"], strict=True))
        results[f"{size} px"] = share | {
            "ratio": round(statistics.median(each), 5),
            "ratios": [round(r, 5) for r in each],
        }
    return results


def reopening(sets: dict[str, FileImages], given: Any) -> dict[str, Any]:
    """Seconds to open a folder of 100,000 pictures that has been packed."""
    buffer = io.BytesIO()
    Image.fromarray(make_patterns(1, seed=0)[0][0]).save(buffer, "JPEG")
    with tempfile.TemporaryDirectory() as folder:
        for i in range(100_000):
            path = Path(folder, f"class{i % 100:02}", f"{i:06}.jpg")
            if i < 100:
                path.parent.mkdir()
            path.write_bytes(buffer.getvalue())
        seconds = []
        for _ in range(1 + REPETITIONS):
            started = time.perf_counter()
            assert len(open_dataset(DataSettings(source=folder, size=32, test_size=32)).train) == 90_000
            seconds.append(time.perf_counter() - started)
    return {"packing": round(seconds[0], 2), "reopening": [round(value, 3) for value in sorted(seconds[1:])]}


def memory(sets: dict[str, FileImages], given: Any) -> dict[str, Any]:
    """Peak of anonymous memory in MB: the same steps on one resident batch, and on a store of several GB with kNN."""
    if not Path("/proc/self/status").exists():
        return {"skipped": "needs Linux's /proc"}
    peaks = {}
    for kind in ("resident", "mapped"):
        words = [sys.executable, str(Path(__file__).with_name("memory.py")), kind, str(given.gigabytes)]
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise SystemExit(answer.stderr)
        peaks[kind] = json.loads(answer.stdout.splitlines()[-1])
    beyond = round(peaks["mapped"]["anonymous_mb"] - peaks["resident"]["anonymous_mb"], 1)
    return {**peaks, "beyond_resident_mb": beyond}


if __name__ == "__main__":
    main()
