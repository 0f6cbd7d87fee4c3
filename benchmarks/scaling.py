"""How the cost of a step grows: with batch, queue, width, resolution and number of soft labels.

    python benchmarks/scaling.py --out scaling.json             # some minutes on two cores
    python docs/draw_scaling.py scaling.json                    # draws docs/images/scaling.svg

One thing changes at a time, from MSVQ with ResNet-18 of width 16, 32 px, batch 256 and queues of 4,096. Each point has
a process of its own: the median time of some steps, and the most memory that the process held.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from msvq.data.patterns import make_patterns

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.peers import Product
else:
    from peers import Product

BASE: dict[str, Any] = {"batch": 256, "queue": 4096, "width": 16, "resolution": 32, "labels": 3}
POINTS: dict[str, list[int]] = {
    "batch": [32, 64, 128, 256, 512],
    "queue": [1024, 4096, 16_384, 65_536],
    "width": [8, 16, 32, 64],
    "resolution": [16, 24, 32, 48, 64],
    "labels": [1, 2, 3, 4],
}
METHOD_OF = {1: "ressl", 2: "mq", 3: "msvq", 4: "msvq-x5"}  # by their soft labels


def measure(point: dict[str, Any], steps: int) -> dict[str, float]:
    """One point, in this process."""
    size, batch = point["resolution"], point["batch"]
    images, _ = make_patterns(min(2 * batch, 512), seed=0, size=size)
    overrides = [f"method.queue_size={max(point['queue'], batch)}", f"data.test_size={size}", "backbone.stem=small"]
    product = Product(
        images,
        method=METHOD_OF[point["labels"]],
        recipe="cifar10",
        width=point["width"],
        size=size,
        batch_size=batch,
        overrides=overrides,
    )
    taken, seconds = product.steps(), []
    for _ in range(steps + 1):
        started = time.perf_counter()
        next(taken)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": statistics.median(seconds[1:]),
        "pictures_per_second": batch / statistics.median(seconds[1:]),
        "megabytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=POINTS, action="append", help="this thing alone; may be given again")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each point")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(measure(json.loads(given.point), given.steps)))
        return
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "base": BASE, "curves": {}}
    for name, values in POINTS.items():
        if given.only and name not in given.only:
            continue
        print(f"\n| {name} | s a step | pictures/s | most memory, MB |\n|---|---|---|---|", flush=True)
        for value in values:
            words = [
                sys.executable,
                __file__,
                "--point",
                json.dumps({**BASE, name: value}),
                "--steps",
                str(given.steps),
            ]
            answer = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(answer.stdout.splitlines()[-1])
            results["curves"].setdefault(name, []).append({"value": value, **found})
            row = f"{found['seconds']:.3f} | {found['pictures_per_second']:.0f} | {found['megabytes']:,.0f}"
            print(f"| {value:,} | {row} |", flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
