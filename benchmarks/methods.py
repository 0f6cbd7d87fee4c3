"""Train every method on the embedded data set under one small budget, and print a table.

    python benchmarks/methods.py [--steps 600] [--seeds 1] [--methods msvq,simclr] [--out results.json]

kNN (k = 200, T = 0.1) of the encoder before and after, student passes in a step, pictures per second, and the peak
memory of the process. Each method trains in a process of its own, so that its memory is its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msvq
from msvq.methods import METHODS

BATCH, PICTURES = 64, 10_000
# What the page's table was measured with: SGD at 0.12, which suits every method, and the paper's network, narrow.
OTHERWISE = ["backbone.name=resnet18", "backbone.width=16", "train.optimiser=sgd", "train.base_lr=0.48"]


def train_one(name: str, steps: int, seed: int) -> dict[str, float]:
    """One run, measured."""
    epochs = max(1, round(steps * BATCH / PICTURES))
    with tempfile.TemporaryDirectory() as folder:
        run = msvq.pretrain(
            out=Path(folder) / "run",
            recipe="demo",
            method=name,
            epochs=epochs,
            seed=seed,
            overrides=[*OTHERWISE, "evaluate.every=99"],
        )
        metrics = run.metrics()
    scores = [line["knn_top1"] for line in metrics if "knn_top1" in line]
    return {
        "before": scores[0],
        "after": scores[-1],
        "speed": statistics.median(line["images_per_second"] for line in metrics if line["kind"] == "epoch"),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steps": max(line["step"] for line in metrics),
    }


def in_own_process(name: str, steps: int, seed: int) -> dict[str, float]:
    """`train_one` in a fresh process."""
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps), "--seed", str(seed)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{name} failed:\n{finished.stderr}")
    measured: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return measured


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """A Markdown table, the mean over seeds with its standard deviation where there are several."""

    def number(runs: list[dict[str, float]], key: str, digits: int) -> str:
        values = [run[key] for run in runs]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}"

    lines = [
        "| method | kNN before | kNN after | student passes | pictures/s | peak memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        cells = [number(runs, "before", 1), number(runs, "after", 1), str(METHODS[name].student_passes)]
        cells += [number(runs, "speed", 0), number(runs, "memory", 0)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="training steps per method, rounded to epochs")
    parser.add_argument("--seeds", type=int, default=1, help="runs per method")
    parser.add_argument("--methods", default=",".join(METHODS), help="names, separated by commas")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train_one(options.one, options.steps, options.seed)))
        return
    rows: dict[str, list[dict[str, float]]] = {}
    for name in options.methods.split(","):
        if name not in METHODS:
            raise SystemExit(f"unknown method {name!r}; known: {', '.join(METHODS)}")
        for seed in range(options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr, flush=True)
            rows.setdefault(name, []).append(in_own_process(name, options.steps, seed))
        print(table({name: rows[name]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
