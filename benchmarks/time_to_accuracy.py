"""Accuracy against time on real CIFAR-10: a conventional loop, lightly's MoCoV2, ours, and ours with recipe `fast`.

    python benchmarks/time_to_accuracy.py DATA_ROOT --out times.json             # some 80 minutes on two cores
    python benchmarks/time_to_accuracy.py DATA_ROOT --jobs 2 --out times.json    # the same in an hour
    python benchmarks/time_to_accuracy.py DATA_ROOT --run fast:10 --run lightly:10 --seeds 3 --out times.json

DATA_ROOT is what `msvq pretrain --data cifar10 --data-root` takes. Each run gets its minutes: first the paces of all
are measured by turns, on an otherwise idle machine; the pace says how many steps the minutes hold, and the learning
rate's schedule is fitted to them. kNN (k 200, T 0.1, all 50,000 training pictures, 10,000 test pictures) is taken on
the way, with the clock stopped. A minute of training is so many steps at the measured pace: the clock on the wall is
in the JSON beside it, and agrees where nothing else runs. Each run has a process of its own. With --jobs, so many of
them train at once with a share of the threads, which uses the cores better; the paces are those of all threads, so
the minutes and steps are the same. With --out, what an earlier command put into that file is kept: its paces are taken,
and of the runs only those that are missing are done.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.core.files import write_text
from msvq.core.runtime import resolve_precision, warmup_cosine
from msvq.data.sources import open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import knn_accuracy

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.conventional import ConventionalMSVQ
    from benchmarks.peers import CPU, LightlyMoCoV2, Product, has_lightly
    from benchmarks.timing import Spread, spread
else:
    from conventional import ConventionalMSVQ
    from peers import CPU, LightlyMoCoV2, Product, has_lightly
    from timing import Spread, spread


class Ours(NamedTuple):
    """A contender that is trained by our loop."""

    recipe: str
    method: str
    overrides: tuple[str, ...] = ()


OURS = {
    "ours": Ours("cifar10", "msvq"),  # the paper's method at its recipe
    "mocov2": Ours("cifar10", "mocov2"),  # lightly's method, which tells speed from method
    "fast": Ours("fast", "msvq"),
    "fixed": Ours("fast", "msvq", ("train.resolution=null",)),  # fast at 32 px throughout
    "cold": Ours("fast", "msvq", ("train.resolution=null", "method.warm_start=0.0")),  # that without warm_start
}
CONTENDERS = ("conventional", "lightly", *OURS)
READY, PACED = 4, 16  # batches that a DataLoader's workers may have ready; steps whose pace is measured
WARM_UP = 5 / 200  # share of the run, as in the paper
RATE = 0.06  # of the others, at a batch of 256
BAR_MINUTES, BAR_SHARE, BAR_POINTS = 15.0, 0.4, 7.0


class Run(NamedTuple):
    """One training: who, for how many minutes, from which seed."""

    contender: str
    minutes: float
    seed: int


class Contender:
    """Takes steps of its own kind. `stages`: the resolutions it goes through, and from which share of the run."""

    def __init__(self, name: str, data: ImageDataset, *, width: int, seed: int) -> None:
        images = np.asarray(data.train.images)
        sizes: dict[str, Any] = {"width": width, "size": 32, "seed": seed}
        self.stages: list[tuple[float, int]] = [(0.0, 32)]
        self.warm_up, self.rate, self.batch_size = WARM_UP, RATE, 256
        self.product: Product | None = None
        self.other: Any = None
        if name in OURS:
            self.product = Product(images, batch_size=None, **OURS[name]._asdict(), **sizes)
            train = self.product.settings.train
            self.stages = train.resolution or self.stages
            self.warm_up, self.rate = train.warmup_epochs / train.epochs, self.product.trainer.peak_lr
            self.batch_size = train.batch_size
        else:
            kind = ConventionalMSVQ if name == "conventional" else LightlyMoCoV2
            self.other = kind(images, batch_size=self.batch_size, **sizes)
        self.contender: Any = self.product or self.other
        self.steps = self.contender.steps()

    def step(self, number: int, total: int) -> None:
        """Step `number` of a run of `total`."""
        warm_up = round(self.warm_up * total)
        self.contender.lr = warmup_cosine(number, base_lr=self.rate, warmup_steps=warm_up, total_steps=total)
        if self.product is not None:
            self.product.trainer.step, self.product.trainer.total_steps = number, total
        next(self.steps)

    def pace(self) -> list[float]:
        """Mean seconds of a step in each of the stages, after those whose batches were ready beforehand."""
        found = []
        for share, _ in self.stages:
            for _ in range(READY + 1):
                self.step(round(1000 * share), 1000)
            started = time.perf_counter()
            for _ in range(PACED):
                self.step(round(1000 * share), 1000)
            found.append((time.perf_counter() - started) / PACED)
        return found


def shares(stages: list[tuple[float, int]]) -> list[float]:
    """How much of a run each stage takes."""
    ends = [*(start for start, _ in stages[1:]), 1.0]
    return [end - start for (start, _), end in zip(stages, ends, strict=True)]


def train(run: Run, data: ImageDataset, pace: list[float], *, width: int, points: int) -> dict[str, Any]:
    """One run: kNN at `points` places on the way, by minutes of training."""
    contender = Contender(run.contender, data, width=width, seed=run.seed)
    if len(pace) != len(contender.stages):
        raise SystemExit(f"the pace of {run.contender} in that file is of another recipe; give --out another name")
    parts = shares(contender.stages)
    mean = sum(share * seconds for share, seconds in zip(parts, pace, strict=True))
    total = max(points, round(60 * run.minutes / mean))
    stops = {round(total * (i + 1) / points) for i in range(points)}
    bounds = [round(start * total) for start, _ in contender.stages]
    paced = wall = 0.0
    curve = []
    for number in range(total):
        started = time.perf_counter()
        contender.step(number, total)
        wall += time.perf_counter() - started
        paced += pace[sum(number >= bound for bound in bounds) - 1]
        if number + 1 in stops:
            top1 = accuracy(contender.contender.encoder, data)
            curve.append({"minutes": paced / 60, "wall": wall / 60, "step": number + 1, "knn_top1": top1})
            print(f"  {run.contender} {paced / 60:.1f} min: {top1:.1f} %", file=sys.stderr, flush=True)
    return {**run._asdict(), "steps": total, "batch_size": contender.batch_size, "pace": pace, "curve": curve}


def accuracy(encoder: torch.nn.Module, data: ImageDataset) -> float:
    features = feature_function(data, CPU, resolve_precision("auto", CPU))
    bank, test = (features(encoder, part) for part in (data.labelled, data.test))
    return knn_accuracy(bank, test, (data.labelled.labels, data.test.labels), k=200, temp=0.1)


def minutes_to(curve: list[dict[str, float]], target: float) -> float | None:
    """When a curve first reaches an accuracy, on straight lines between its points; None if it never does."""
    before = {"minutes": 0.0, "knn_top1": 0.0}
    for point in curve:
        if point["knn_top1"] >= target:
            rise = (target - before["knn_top1"]) / (point["knn_top1"] - before["knn_top1"])
            return before["minutes"] + rise * (point["minutes"] - before["minutes"])
        before = point
    return None


def conclusions(runs: list[dict[str, Any]]) -> list[str]:
    """The two headlines, as far as the runs allow them."""
    final: dict[tuple[str, float], list[float]] = {}
    for run in sorted(runs, key=lambda run: int(run["seed"])):
        final.setdefault((run["contender"], run["minutes"]), []).append(run["curve"][-1]["knn_top1"])
    lines = [f"{who} after {minutes:g} minutes: {told(values)}" for (who, minutes), values in final.items()]
    fast, lightly = final.get(("fast", 10)), final.get(("lightly", 10))
    if fast and lightly:
        more = statistics.mean(fast) - statistics.mean(lightly)
        lines.append(f"fast over lightly after ten minutes: {more:.1f} points (at least {BAR_POINTS:g})")
    fixed = final.get(("ours", BAR_MINUTES))
    for budget in dict.fromkeys(minutes for who, minutes in final if who == "fast" and fixed):
        chosen = [run["curve"] for run in runs if (run["contender"], run["minutes"]) == ("fast", budget)]
        times = [minutes_to(curve, statistics.mean(fixed or [])) for curve in chosen]
        reached = [found for found in times if found is not None]
        lines.append(f"ours at a fixed 32 px reaches {told(fixed or [])} in {BAR_MINUTES:g} minutes; so does")
        lines.append(f"  fast, planned for {budget:g} minutes,")
        lines.append(
            f"  in {len(reached)} of {len(times)} runs" + (f", after {told(reached)} minutes" if reached else "")
        )
        if len(reached) == len(times):
            share = statistics.mean(reached) / BAR_MINUTES
            lines.append(f"  {share:.2f} of the time (at most {BAR_SHARE})")
    return lines


def told(values: list[float]) -> str:
    """Their mean, and their spread where there are several."""
    found: Spread = spread(values)
    return f"{statistics.mean(values):.1f}" + (f" ({found.low:.1f}-{found.high:.1f})" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--run", action="append", metavar="NAME:MINUTES", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--points", type=int, default=5, help="measurements on the way")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds in which the paces are measured")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, after the paces are measured")
    parser.add_argument("--pace", type=Path, help="JSON of an earlier run of this script, whose paces are taken")
    parser.add_argument("--out", type=Path, help="write everything here as JSON, after each run; what is there is kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(json.loads(given.child), given)
        return
    words = given.run or ["conventional:10", "lightly:10", "ours:10", "fast:10", "ours:15", "fast:6"]
    wanted = [(name, float(minutes)) for name, _, minutes in (word.partition(":") for word in words)]
    names = list(dict.fromkeys(name for name, _ in wanted))
    if given.jobs < 1:
        raise SystemExit("--jobs is a number of runs at once, at least 1")
    for name in names:
        if name not in CONTENDERS:
            raise SystemExit(f"unknown contender {name!r}; known: {', '.join(CONTENDERS)}")
        if name == "lightly" and not has_lightly():
            raise SystemExit("lightly is not there; python -m pip install lightly gives it")
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "width": given.width, "paces": {}, "runs": []}
    if given.out and given.out.exists():
        results = earlier(given.out, given.width)
    if given.pace:
        results["paces"] = earlier(given.pace, given.width)["paces"] | results["paces"]
    results["paces"] |= measured([name for name in names if name not in results["paces"]], given)
    save(results, given.out)
    done = [Run(*(run[key] for key in Run._fields)) for run in results["runs"]]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    all_runs = dict.fromkeys(Run(name, minutes, seed) for seed in seeds for name, minutes in wanted)
    lock, stopped = threading.Lock(), threading.Event()

    def do(run: Run) -> None:
        if stopped.is_set():  # another has failed
            return
        try:
            found = ask({"run": run, "pace": results["paces"][run.contender]}, given)
        except BaseException:
            stopped.set()
            raise
        with lock:  # whatever becomes of the others
            results["runs"].append(found)
            save(results, given.out)
        curve = ", ".join(f"{point['minutes']:.1f} min {point['knn_top1']:.1f} %" for point in found["curve"])
        print(f"{run.contender} {run.minutes:g} min, seed {run.seed}, {found['steps']} steps: {curve}", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [pool.submit(do, run) for run in all_runs if run not in done]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            stopped.set()
            raise
    print("\n".join(conclusions(results["runs"])))


def save(results: dict[str, Any], path: Path | None) -> None:
    if path:
        write_text(path, json.dumps(results, indent=1) + "\n")


def earlier(path: Path, width: int) -> dict[str, Any]:
    """What an earlier command wrote, if it is of the same network."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        theirs = found["width"]
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{path} is not a file of this script; give another name") from None
    if theirs != width:
        raise SystemExit(f"{path} is of width {theirs}, not {width}; give another name, or --width {theirs}")
    return found


def measured(names: list[str], given: argparse.Namespace) -> dict[str, list[float]]:
    """The paces of all, by turns: the median of each."""
    rounds = [
        {name: ask({"pace": name}, given) for name in (names if i % 2 else reversed(names))}
        for i in range(given.repetitions)
    ]
    paces = {}
    for name in names:
        stages = zip(*(found[name] for found in rounds), strict=True)
        paces[name] = [statistics.median(stage) for stage in stages]
        print(f"{name}: {', '.join(f'{seconds:.3f}' for seconds in paces[name])} s a step", flush=True)
    return paces


def ask(task: dict[str, Any], given: argparse.Namespace) -> Any:
    """Have a task done by a fresh process."""
    words = [sys.executable, __file__, str(given.data_root), "--child", json.dumps(task)]
    words += ["--width", str(given.width), "--points", str(given.points)]
    environment = dict(os.environ)
    if "run" in task:
        print("training {}, {:g} minutes, seed {}".format(*task["run"]), file=sys.stderr, flush=True)
        environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // given.jobs))
    answer = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if answer.returncode:
        raise SystemExit(answer.returncode)
    return json.loads(answer.stdout.splitlines()[-1])


def child(task: dict[str, Any], given: argparse.Namespace) -> None:
    """Do a task, and print what was found."""
    settings = resolve(recipe="cifar10", data_root=given.data_root).data
    data = open_dataset(settings, download=False, display=Display())
    found: Any
    if "run" in task:
        found = train(Run(*task["run"]), data, task["pace"], width=given.width, points=given.points)
    else:
        found = Contender(task["pace"], data, width=given.width, seed=0).pace()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
