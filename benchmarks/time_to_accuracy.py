"""Accuracy against time on real pictures: what a budget trains, MSVQ as in the paper, and lightly's methods.

    python benchmarks/time_to_accuracy.py DATA_ROOT --out times.json             # some 80 minutes on two cores
    python benchmarks/time_to_accuracy.py DATA_ROOT --jobs 2 --out times.json    # the same in an hour
    python benchmarks/time_to_accuracy.py DATA_ROOT --run budget:10 --run lightly-simclr:10 --seeds 3 --out times.json
    python benchmarks/time_to_accuracy.py DATA_ROOT --data tinyimagenet --run budget:60 --run ours:60 --out times.json

DATA_ROOT is what `msvq pretrain --data-root` takes. Each run gets its minutes: first the paces of all are measured by
turns, on an otherwise idle machine; the pace says how many steps the minutes hold, and the learning rate's schedule is
fitted to them. `budget` is what `msvq pretrain --budget` trains, its network chosen by the paces of all that it may
choose from. kNN (k 200, T 0.1, all training pictures with their labels, all test pictures) is taken on the way, with
the clock stopped. A minute of training is so many steps at the measured pace: the clock on the wall is in the JSON
beside it, and agrees where nothing else runs. Each run has a process of its own. With --jobs, so many of them train at
once with a share of the threads, which uses the cores better; the paces are those of all threads, so the minutes and
steps are the same. With --out, what an earlier command put into that file is kept: paces of this machine are taken, and
of the runs only those that are missing are done. docs/draw_expectations.py makes a figure and a table of such a file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from msvq.config.budget import Choice, changed, choices, fix_length
from msvq.config.resolve import Flags
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.files import write_text
from msvq.core.runtime import cpu_has_bf16, resolve_precision, warmup_cosine
from msvq.data.sources import open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.features import WHITENED_BY, feature_function
from msvq.evaluate.knn import knn_accuracy
from msvq.model.whitening import Whitened, Whitening, without_whitening
from msvq.runs.run_dir import processor_name
from msvq.train.budget import Stage, climb, stages
from msvq.train.pretrain import open_trial

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.peers import CPU, LIGHTLY, has_lightly
    from benchmarks.timing import Spread, spread
else:
    from peers import CPU, LIGHTLY, has_lightly
    from timing import Spread, spread

METHODS = {
    "ours": "msvq",
    "mocov2": "mocov2",
}  # at their data set's recipe, the paper's; mocov2 tells speed from method
CONTENDERS = ("budget", *METHODS, *LIGHTLY)
TEN = [f"{name}:10" for name in (*LIGHTLY, "ours", "budget")]
READY, PACED, ENOUGH = 4, 16, 3.0  # batches that workers may have ready; steps and seconds whose pace is measured
LONG = 10_000  # steps of a run whose pace is measured
BAR_POINTS, BAR_MINUTES = 12.0, 1.5

Record = dict[str, Any]


class Run(NamedTuple):
    """One training: who, for how many minutes, from which seed."""

    contender: str
    minutes: float
    seed: int


class Contender(NamedTuple):
    """Something that takes steps: `steps(start)` is without end, and counts them from `start`."""

    encoder: torch.nn.Module
    batch_size: int
    stages: list[Stage]
    steps: Callable[[int], Iterator[None]]


class Offer(NamedTuple):
    """A network that a contender may take, and from which number of steps on; `open` gives a run of so many."""

    network: str
    least_steps: int
    open: Callable[[int], AbstractContextManager[Contender]]


@contextmanager
def open_ours(name: str, settings: Settings, data: ImageDataset, total: int) -> Iterator[Contender]:
    """Our own loop, as a run has it, with the warm-up of a budget, or the recipe's share of the run."""
    batch_size, share = settings.train.batch_size, settings.train.warmup_epochs / settings.train.epochs
    steps_per_epoch = len(data.train) // batch_size
    if name == "budget":
        settings = fix_length(settings, total, steps_per_epoch, looks=1, keep=())
    else:
        warm_up = share * total / steps_per_epoch
        settings = changed(settings, {"train.steps": total, "train.warmup_epochs": warm_up})
    with open_trial(data, CPU, None, settings) as trainer:
        trainer.method.train()

        def steps(start: int) -> Iterator[None]:
            trainer.step = start
            for epoch in count():
                for batch in trainer.loader.epoch(epoch):
                    trainer.train_step(*batch, trainer.learning_rate())
                    trainer.step += 1
                    yield

        yield Contender(trainer.method.encoder, batch_size, stages(trainer), steps)


@contextmanager
def open_lightly(name: str, width: int, seed: int, data: ImageDataset, total: int) -> Iterator[Contender]:
    """One of lightly's methods."""
    images = np.asarray(data.train.images)
    peer = LIGHTLY[name](images, width=width, size=data.size, seed=seed, mean=data.mean, std=data.std)
    taken = peer.steps()

    def steps(start: int) -> Iterator[None]:
        for number in count(start):
            peer.lr = warmup_cosine(number, base_lr=peer.rate, warmup_steps=0, total_steps=total)
            next(taken)
            yield

    yield Contender(peer.encoder, peer.batch_size, [Stage(0, 1.0, data.size)], steps)


def offers(name: str, seed: int, data: ImageDataset, given: argparse.Namespace) -> list[Offer]:
    """What a contender chooses from, the smallest network first."""
    if name in LIGHTLY:
        return [Offer(f"resnet18 width {given.width}", 0, partial(open_lightly, name, given.width, seed, data))]
    place = {"data": given.data, "data_root": given.data_root, "seed": seed}
    if name == "budget":
        flags = Flags(budget="10m", **place)  # any time: the choice is made by steps
        found = choices(flags.settings(), flags.seconds or 0.0, (data.size, data.test_size), keep=flags.named)
    else:
        flags = Flags(method=METHODS[name], overrides=[f"backbone.width={given.width}"], **place)
        found = [Choice(flags.settings(), 0)]
    return [Offer(one.backbone.title, least, partial(open_ours, name, one, data)) for one, least in found]


def measure(offer: Offer) -> Record:
    """Mean seconds of a step in each of the stages, after those whose batches were ready beforehand."""
    found = []
    with offer.open(LONG) as contender:
        for stage in contender.stages:
            steps = contender.steps(stage.start)
            for _ in range(READY + 1):
                next(steps)
            taken, started = 0, time.perf_counter()
            while taken < PACED or time.perf_counter() - started < ENOUGH:
                next(steps)
                taken += 1
            seconds = (time.perf_counter() - started) / taken
            found.append({"size": stage.size, "share": stage.share, "seconds": seconds})
    return {"network": offer.network, "stages": found}


def train(run: Run, offered: list[Offer], paces: list[Record], data: ImageDataset, points: int) -> Record:
    """One run: kNN at `points` places on the way, by minutes of training."""
    if [offer.network for offer in offered] != [pace["network"] for pace in paces]:
        raise SystemExit(f"the paces of {run.contender} in that file are of other networks; give --out another name")
    means = [sum(stage["share"] * stage["seconds"] for stage in pace["stages"]) for pace in paces]
    steps = [max(points, int(60 * run.minutes / mean)) for mean in means]
    chosen = climb([offer.least_steps for offer in offered], steps.__getitem__)
    total, pace = steps[chosen], paces[chosen]
    stops = {round(total * (i + 1) / points) for i in range(points)}
    paced = wall = 0.0
    curve = []
    with offered[chosen].open(total) as contender:
        if [stage.size for stage in contender.stages] != [stage["size"] for stage in pace["stages"]]:
            raise SystemExit(f"the paces of {run.contender} in that file are of other crops; give --out another name")
        taking = contender.steps(0)
        for number in range(total):
            started = time.perf_counter()
            next(taking)
            wall += time.perf_counter() - started
            paced += pace["stages"][sum(number >= stage.start for stage in contender.stages) - 1]["seconds"]
            if number + 1 in stops:
                found = accuracies(contender.encoder, data)
                curve.append({"minutes": paced / 60, "wall": wall / 60, "step": number + 1, **found})
                print(f"  {run.contender} {paced / 60:.1f} min: {found['knn_top1']:.1f} %", file=sys.stderr, flush=True)
    shape = {"pictures": len(data.train), "classes": data.num_classes, "size": data.size}
    return {**shape, "steps": total, "batch_size": contender.batch_size, "pace": pace, "curve": curve}


def accuracies(encoder: torch.nn.Module, data: ImageDataset) -> dict[str, float]:
    """kNN of the encoder as it comes, `knn_top1`; of its plain features; and of these when they are whitened."""
    features = feature_function(data, CPU, resolve_precision("auto", CPU))
    bank, test = (features(without_whitening(encoder), part) for part in (data.labelled, data.test))
    whitening = Whitening(bank.shape[1])
    whitening.fit(features(without_whitening(encoder), data.train.subsample(WHITENED_BY)))
    vote = partial(knn_accuracy, labels=(data.labelled.labels, data.test.labels), k=200, temp=0.1)
    plain, whitened = vote(bank, test), vote(whitening(bank), whitening(test))
    own = whitened if isinstance(encoder, Whitened) else plain
    return {"knn_top1": own, "knn_plain": plain, "knn_whitened": whitened}


def conclusions(runs: list[Record]) -> list[str]:
    """What each has in the end; and the two headlines, as far as the runs allow them."""
    final: dict[tuple[str, float], list[float]] = {}
    for run in sorted(runs, key=lambda run: int(run["seed"])):
        final.setdefault((run["contender"], run["minutes"]), []).append(run["curve"][-1]["knn_top1"])
    lines = [f"{who} after {minutes:g} minutes: {told(values)}" for (who, minutes), values in final.items()]
    means = {key: statistics.mean(values) for key, values in final.items()}
    theirs = {name: means[name, 10] for name in LIGHTLY if (name, 10) in means}
    if not theirs or ("budget", 10) not in means:
        return lines
    for name, mean in theirs.items():
        more = means["budget", 10] - mean
        lines.append(f"budget over {name} after ten minutes: {more:.1f} points (at least {BAR_POINTS:g})")
    best = max(theirs.values())
    enough = [minutes for (name, minutes), mean in means.items() if name == "budget" and mean >= best]
    when = f"after {min(enough):g}" if enough else "in none of its runs"
    lines.append(f"what the best of lightly's has after ten minutes, budget has {when} (at most {BAR_MINUTES:g})")
    return lines


def told(values: list[float]) -> str:
    """Their mean, and their spread where there are several."""
    found: Spread = spread(values)
    return f"{statistics.mean(values):.1f}" + (f" ({found.low:.1f}-{found.high:.1f})" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path, help="where the data set is")
    parser.add_argument("--data", choices=("cifar10", "tinyimagenet"), default="cifar10")
    parser.add_argument("--run", action="append", metavar="NAME:MINUTES", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=16, help="of the networks, but for what a budget chooses")
    parser.add_argument("--points", type=int, default=5, help="measurements on the way")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds in which the paces are measured")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, after the paces are measured")
    parser.add_argument("--out", type=Path, help="write everything here as JSON, after each run; what is there is kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(json.loads(given.child), given)
        return
    words = given.run or [*TEN, f"budget:{BAR_MINUTES:g}"]
    wanted = [(name, float(minutes)) for name, _, minutes in (word.partition(":") for word in words)]
    names = list(dict.fromkeys(name for name, _ in wanted))
    if given.jobs < 1:
        raise SystemExit("--jobs is a number of runs at once, at least 1")
    for name in names:
        if name not in CONTENDERS:
            raise SystemExit(f"unknown contender {name!r}; known: {', '.join(CONTENDERS)}")
        if name in LIGHTLY and not has_lightly():
            raise SystemExit("lightly is not there; python -m pip install lightly gives it")
    results: Record = {"width": given.width, "paces": [], "runs": []}
    if given.out and given.out.exists():
        results = earlier(given.out, given.width)
    here = {
        "data": given.data,
        "processor": processor_name(),
        "bf16": cpu_has_bf16(),
        "threads": torch.get_num_threads(),
    }

    def ours(records: list[Record], **key: Any) -> list[Record]:
        """Those of this data set and machine."""
        return [record for record in records if (here | key).items() <= record.items()]

    new = [name for name in names if not ours(results["paces"], contender=name)]
    results["paces"] += [here | {"contender": name, "networks": found} for name, found in measured(new, given).items()]
    save(results, given.out)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    all_runs = dict.fromkeys(Run(name, minutes, seed) for seed in seeds for name, minutes in wanted)
    lock, stopped = threading.Lock(), threading.Event()

    def do(run: Run) -> None:
        if stopped.is_set():  # another has failed
            return
        try:
            paces = ours(results["paces"], contender=run.contender)[0]["networks"]
            found = here | run._asdict() | ask(run, paces, given)
        except BaseException:
            stopped.set()
            raise
        with lock:  # whatever becomes of the others
            results["runs"].append(found)
            save(results, given.out)
        curve = ", ".join(f"{point['minutes']:.1f} min {point['knn_top1']:.1f} %" for point in found["curve"])
        print(f"{run.contender} {run.minutes:g} min, seed {run.seed}, {found['steps']} steps: {curve}", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [pool.submit(do, run) for run in all_runs if not ours(results["runs"], **run._asdict())]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            stopped.set()
            raise
    print("\n".join(conclusions(ours(results["runs"]))))


def save(results: Record, path: Path | None) -> None:
    if path:
        write_text(path, json.dumps(results, indent=1) + "\n")


def earlier(path: Path, width: int) -> Record:
    """What an earlier command wrote, if it is of the same network."""
    try:
        found: Record = json.loads(path.read_text())
        theirs = found["width"]
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{path} is not a file of this script; give another name") from None
    if theirs != width:
        raise SystemExit(f"{path} is of width {theirs}, not {width}; give another name, or --width {theirs}")
    return found


def measured(names: list[str], given: argparse.Namespace) -> dict[str, list[Record]]:
    """The paces of all, by turns: the median of each."""
    rounds = [
        {name: ask(Run(name, 0, 0), [], given) for name in (names if i % 2 else reversed(names))}
        for i in range(given.repetitions)
    ]
    for name in names:
        for network, *others in zip(*(found[name] for found in rounds), strict=True):
            for stage, *more in zip(network["stages"], *(other["stages"] for other in others), strict=True):
                stage["seconds"] = statistics.median(one["seconds"] for one in (stage, *more))
            paces = ", ".join(f"{stage['seconds']:.3f}" for stage in network["stages"])
            print(f"{name}, {network['network']}: {paces} s a step", flush=True)
    return rounds[0]


def ask(run: Run, paces: list[Record], given: argparse.Namespace) -> Any:
    """Have a run done by a fresh process; without paces, have them measured."""
    task = {"run": run, "paces": paces}
    words = [sys.executable, __file__, str(given.data_root), "--child", json.dumps(task)]
    words += ["--data", given.data, "--width", str(given.width), "--points", str(given.points)]
    environment = dict(os.environ)
    if paces:
        print("training {}, {:g} minutes, seed {}".format(*run), file=sys.stderr, flush=True)
        environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // given.jobs))
    answer = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if answer.returncode:
        raise SystemExit(answer.returncode)
    return json.loads(answer.stdout.splitlines()[-1])


def child(task: Record, given: argparse.Namespace) -> None:
    """Do a task, and print what was found."""
    settings = Flags(data=given.data, data_root=given.data_root).settings().data
    data = open_dataset(settings, download=False, display=Display())
    run = Run(*task["run"])
    offered = offers(run.contender, run.seed, data, given)
    paces = task["paces"]
    found = train(run, offered, paces, data, given.points) if paces else [measure(offer) for offer in offered]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
