"""How long an exact search takes, and a look for duplicates. Made features: what they are changes no time.

    python benchmarks/search.py                               # 1 million x 512: 2 GB of disk, some minutes
    python benchmarks/search.py --num 100000 --duplicates 20000 --out search.json

The features are in a file that is mapped, as an index is; opening it, with its checksum, is timed apart. A search is
compared, by turns, with numpy doing the same on all rows at once. Times are medians (least-most).
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.array_cache import hash_files, map_checked
from msvq.core.console import Display
from msvq.data.workers import available_cores
from msvq.search.duplicates import NEIGHBOURS
from msvq.search.index import FEATURES, unit_rows
from msvq.search.neighbours import nearest_neighbours
from msvq.search.search import nearest

if TYPE_CHECKING:
    from benchmarks.timing import AT_MOST, alternate, memory_beyond, ratio, row, show, spread
else:  # run as a script, this folder is where modules are looked for
    from timing import AT_MOST, alternate, memory_beyond, ratio, row, show, spread

TOP, REPETITIONS = 20, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=1_000_000, help="pictures that are searched")
    parser.add_argument("--dim", type=int, default=512, help="numbers per picture")
    parser.add_argument("--duplicates", type=int, default=20_000, help="pictures that are compared pair by pair")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    given = parser.parse_args()
    results: dict[str, Any] = {
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "num": given.num,
        "dim": given.dim,
    }
    with tempfile.TemporaryDirectory() as folder:
        make_features(Path(folder), given.num, given.dim)
        features, results["opening"] = opening(Path(folder), given.dim)
        results["search"] = searching(features)
        results["duplicates"] = comparing(np.array(features[: given.duplicates]))
    for part in ("opening", "search", "duplicates"):
        print(show(part, results[part]))
    if given.out:
        given.out.write_text(json.dumps(results, indent=2) + "\n")


def make_features(folder: Path, num: int, dim: int) -> None:
    """A file of random unit features, as an index has it."""
    generator = np.random.default_rng(0)
    with (folder / FEATURES).open("wb") as file:
        for start in range(0, num, 50_000):
            shape = (min(50_000, num - start), dim)
            file.write(unit_rows(generator.standard_normal(shape, np.float32)).tobytes())


def opening(folder: Path, dim: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Mapping the features and comparing their checksum, as before every search."""
    expected = hash_files([folder / FEATURES], Display())
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        arrays = map_checked(folder, {FEATURES: "<f4"}, expected, Display(), "the index")
        seconds.append(time.perf_counter() - started)
    return arrays[FEATURES].reshape(-1, dim), {"seconds, with the checksum": row(spread(seconds))}


def searching(features: NDArray[np.float32]) -> dict[str, Any]:
    """One query among all, opened already; and ten at once."""
    queries = unit_rows(np.random.default_rng(1).standard_normal((10, features.shape[1]), np.float32))

    def by_numpy() -> None:
        cosines = features @ queries[0]
        best = np.argpartition(-cosines, TOP)[:TOP]
        best[np.argsort(-cosines[best])]

    seconds = alternate(
        {
            "one": lambda: void(nearest(features, queries[:1], TOP)),
            "ten": lambda: void(nearest(features, queries, TOP)),
            "numpy": by_numpy,
        },
        REPETITIONS,
    )
    return {
        "seconds, one query": row(spread(seconds["one"]), (AT_MOST, 1.0)),
        "seconds, ten queries at once": row(spread(seconds["ten"])),
        "time of one query over numpy's": row(ratio(seconds["one"], seconds["numpy"])),
    }


def void(_: object) -> None:
    """For what is timed and not looked at."""


def neighbours(features: NDArray[np.float32]) -> object:
    return nearest_neighbours(features, NEIGHBOURS, Display(), "comparing")


def comparing(features: NDArray[np.float32]) -> dict[str, Any]:
    """All pairs of some pictures, a block at a time, with the memory that it takes."""
    seconds = alternate({"all": lambda: void(neighbours(features))}, 1)["all"]
    pairs = len(features) * (len(features) - 1) / 2
    return {
        f"seconds, {len(features):,} pictures": row(spread(seconds)),
        "million pairs a second": row(spread([pairs / 1e6 / s for s in seconds])),
        "MB of memory": row(memory_beyond(lambda: neighbours(features))),
    }


if __name__ == "__main__":
    main()
