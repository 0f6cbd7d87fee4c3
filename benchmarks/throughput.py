"""How fast the product trains, beside a conventional loop, lightly, and the limit that its own networks set.

    python benchmarks/throughput.py                     # all of it: some 30 minutes on two cores
    python benchmarks/throughput.py --only msvq16 --only augment --out throughput.json

Ratios, each from repetitions by turns in one run: the median and, in brackets, the least and the most. All contenders
have this machine's cores; OMP_NUM_THREADS limits the threads of all. A repetition of the conventional loop or of
lightly begins with the batches that its workers have ready (two per worker), which flatters it slightly; while another
contender is timed, the workers are idle. The others run in a process of their own, as their users run them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from msvq.core.runtime import cpu_has_bf16, resolve_precision
from msvq.data.patterns import make_patterns
from msvq.data.workers import available_cores
from msvq.evaluate.knn import knn_predict
from msvq.methods import METHODS
from msvq.model.losses import l2_normalize
from msvq.model.teacher import Network

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.conventional import ConventionalMSVQ, endless, four_views, make_loader
    from benchmarks.peers import CPU, Elsewhere, LightlyExample, Limit, Product, has_lightly, loss_and_queues
    from benchmarks.timing import AT_LEAST, AT_MOST, alternate, memory_beyond, rates, ratio, row, show, spread
else:
    from conventional import ConventionalMSVQ, endless, four_views, make_loader
    from peers import CPU, Elsewhere, LightlyExample, Limit, Product, has_lightly, loss_and_queues
    from timing import AT_LEAST, AT_MOST, alternate, memory_beyond, rates, ratio, row, show, spread

MSVQ_VIEWS = ("strong", "weak", "weak", "weak")


@dataclass(frozen=True)
class Scale:
    """How much is measured: the real thing, or a small trial that shows that everything runs."""

    repetitions: int
    quick: bool

    @property
    def batch_size(self) -> int:
        return 32 if self.quick else 256

    def width(self, real: int) -> int:
        return 4 if self.quick else real

    def num(self, real: int, small: int) -> int:
        return small if self.quick else real

    def steps(self, width: int) -> int:
        """In one repetition."""
        return self.num({64: 2}.get(width, 6), 2)

    def images(self, size: int) -> NDArray[np.uint8]:
        """So many that no epoch ends within some repetitions; drawn ones, repeated."""
        drawn, _ = make_patterns(self.num(2048, 64), seed=0, size=size)
        return np.tile(drawn, (10, 1, 1, 1))


def take(steps: Iterator[Any], num: int) -> None:
    for _ in range(num):
        next(steps)


def repeat(num: int, verb: Callable[[], object]) -> None:
    for _ in range(num):
        verb()


def limit_bar(width: int) -> tuple[str, float]:
    return AT_LEAST, 0.92 if width == 64 else 0.85


def training(scale: Scale, *, method: str, width: int, size: int = 32) -> dict[str, Any]:
    """Whole training steps: another's loop, ours, and our networks alone; ours also compiled, where that wins."""
    images, num = scale.images(size), scale.steps(width)
    sizes: dict[str, Any] = {"width": scale.width(width), "size": size, "batch_size": scale.batch_size}
    queue = [] if size <= 32 else ["method.queue_size=4096"]
    ours = Product(images, method=method, overrides=queue, **sizes)
    contenders: dict[str, Product | Limit] = {"ours": ours, "limit": Limit(ours)}
    if width == 16 and size == 32 and not scale.quick:  # compiling takes a minute
        compiled = Product(images, method=method, overrides=[*queue, "train.compile=true"], **sizes)
        next(compiled.steps())
        if any(module.is_compiled for module in compiled.trainer.method.modules() if isinstance(module, Network)):
            contenders["compiled"] = compiled
        else:
            print("the networks could not be compiled, so their row is left out")
    parts = {name: partial(take, contender.steps(), num) for name, contender in contenders.items()}
    other = "conventional" if method == "msvq" else "lightly"
    if other == "conventional" or has_lightly():
        peer = Elsewhere(ConventionalMSVQ if other == "conventional" else LightlyExample, images, **sizes)
        parts[other] = partial(peer.take, num)
        seconds = alternate(parts, scale.repetitions)
        peer.close()
    else:
        print("lightly is not there, so its row is left out; python -m pip install lightly gives it")
        seconds = alternate(parts, scale.repetitions)
    found: dict[str, Any] = {"pictures per second": rates(seconds, num * scale.batch_size)}
    if other == "lightly" and other in seconds:
        found["ours / lightly"] = row(ratio(seconds["lightly"], seconds["ours"]), (AT_LEAST, 2.8))
    elif other in seconds:
        bar = (AT_LEAST, 3.1) if width == 64 else None
        note = " (where bf16 is native)"
        found["ours / conventional"] = row(ratio(seconds["conventional"], seconds["ours"]), bar, note=note)
    if "compiled" in seconds:
        for name in (other, "limit"):
            if name in seconds:
                found[f"compiled / {name}"] = row(ratio(seconds[name], seconds["compiled"]))
    return found | {"ours / limit": row(ratio(seconds["limit"], seconds["ours"]), limit_bar(width))}


def methods(scale: Scale) -> dict[str, Any]:
    """Every method's share of what its networks allow, at width 16."""
    images, num, found = scale.images(32), 2, {}
    for name in list(METHODS):
        ours = Product(images, method=name, width=scale.width(16), size=32, batch_size=scale.batch_size)
        both = {"ours": partial(take, ours.steps(), num), "limit": partial(take, Limit(ours).steps(), num)}
        seconds = alternate(both, scale.repetitions)
        found[name] = row(ratio(seconds["limit"], seconds["ours"]), limit_bar(16))
        found[name] |= rates(seconds, num * scale.batch_size)
        print(f"  {name} {found[name]['median']:.2f} of its limit", file=sys.stderr, flush=True)
    return found


def augment(scale: Scale) -> dict[str, Any]:
    """Four views of each picture, nothing else: ours, and torchvision's transforms on PIL pictures in two workers."""
    found: dict[str, Any] = {}
    for size, least in ((32, 7.0), (64, 2.5)):
        images, num, workers = scale.images(size), scale.num(8, 2), 2
        product = Product(images, method="msvq", width=4, size=size, batch_size=scale.batch_size).trainer
        batch, generator = torch.from_numpy(images[: scale.batch_size]), torch.Generator().manual_seed(0)
        loader = make_loader(four_views(images, size), batch_size=scale.batch_size, seed=0, workers=workers)
        batches = endless(loader)
        views = partial(product.augment, batch, MSVQ_VIEWS, generator)
        parts = {"ours": partial(repeat, num, views), "torchvision": partial(take, batches, num)}
        ready = {"torchvision": partial(take, batches, 2 * workers)}  # what was prepared beforehand does not count
        seconds = alternate(parts, scale.repetitions, before=ready)
        found[f"{size} px, views per second"] = rates(seconds, num * scale.batch_size * len(MSVQ_VIEWS))
        found[f"{size} px, ours / torchvision"] = row(ratio(seconds["torchvision"], seconds["ours"]), (AT_LEAST, least))
    return found


def norm(scale: Scale) -> dict[str, Any]:
    """What normalising in eight groups costs a whole step, in percent."""
    images, found = scale.images(32), {}
    for width in (16, 64):
        sizes: dict[str, Any] = {"width": scale.width(width), "size": 32, "batch_size": scale.batch_size}
        parts = {}
        for splits in (1, 8):
            ours = Product(images, method="msvq", overrides=[f"method.bn_splits={splits}"], **sizes)
            parts[str(splits)] = partial(take, ours.steps(), scale.steps(width))
        seconds = alternate(parts, scale.repetitions)
        more = [100 * (a / b - 1) for a, b in zip(seconds["8"], seconds["1"], strict=True)]
        found[f"width {width}, cost in percent"] = row(spread(more), (AT_MOST, 8))
    return found


def parts_of_step(scale: Scale) -> dict[str, Any]:
    """The share of a whole MSVQ step, with queues of 16,384, that is not the networks'; in percent."""
    found: dict[str, Any] = {}
    for width in (16, 64):
        images, num = scale.images(32), scale.steps(width)
        sizes: dict[str, Any] = {"width": scale.width(width), "size": 32, "batch_size": scale.batch_size}
        whole, bare = (Product(images, method="msvq", overrides=["method.queue_size=16384"], **sizes) for _ in range(2))
        method, batch = cast(Any, whole.trainer.method), whole.batch()
        parts = {
            "step": partial(take, whole.steps(), num),
            "averages": partial(repeat, num, partial(method.ema_update, batch)),
            "loss": partial(repeat, num, loss_and_queues(bare)),
        }
        seconds = alternate(parts, scale.repetitions)
        averages, loss = (ratio(seconds[name], seconds["step"], times=100) for name in ("averages", "loss"))
        found[f"width {width}, teachers' averages, percent"] = row(averages, (AT_MOST, 2))
        found[f"width {width}, loss and queues, percent"] = row(loss, (AT_MOST, 5))
    return found


def memory(scale: Scale) -> dict[str, Any]:
    """Megabytes that MSVQ's loss and gradient add at their peak, with two queues of 65,536 and a batch of 256."""
    return {"loss and gradient, MB": row(in_own_process("loss", scale), (AT_MOST, 300))}


def loss_memory(scale: Scale) -> float | None:
    images, queue = scale.images(32), scale.num(65_536, 1024)
    sizes: dict[str, Any] = {"method": "msvq", "width": 4, "size": 32, "batch_size": scale.batch_size}
    small, real = (Product(images, overrides=[f"method.queue_size={size}"], **sizes) for size in (256, queue))
    loss_and_queues(small, store=False)()  # what PyTorch sets up once does not count
    return memory_beyond(loss_and_queues(real, store=False))


def knn_features(scale: Scale) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    bank, queries = (
        l2_normalize(torch.randn(scale.num(*num), 512, generator=generator)) for num in ((50_000, 2000), (10_000, 400))
    )
    return bank, torch.randint(10, (len(bank),), generator=generator), queries


def ours_knn(bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    return knn_predict(bank, labels, queries, k=200, temp=0.1, num_classes=10)


def plain_knn(bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """All similarities at once, and one topk over them."""
    similarities, nearest = (queries @ bank.T).topk(200, dim=1)
    scores = torch.zeros(len(queries), 10).scatter_add_(1, labels[nearest], (similarities / 0.1).exp())
    return scores.argmax(1)


def knn(scale: Scale) -> dict[str, Any]:
    """10,000 queries to a bank of 50,000, k 200: seconds, and megabytes that ours adds at its peak."""
    features, answers = knn_features(scale), {}

    def answer(name: str, predict: Callable[..., Tensor]) -> None:
        answers[name] = predict(*features)

    parts = {"ours": partial(answer, "ours", ours_knn), "plain": partial(answer, "plain", plain_knn)}
    seconds = alternate(parts, scale.repetitions)
    return {
        "seconds": {name: round(float(np.median(times)), 3) for name, times in seconds.items()},
        "same answers": row(float((answers["ours"] == answers["plain"]).float().mean())),
        "ours / plain": row(ratio(seconds["plain"], seconds["ours"]), (AT_LEAST, 2)),
        "extra memory, MB": row(in_own_process("knn", scale), (AT_MOST, 1000)),
    }


def knn_memory(scale: Scale) -> float | None:
    bank, labels, queries = knn_features(scale)
    ours_knn(bank[:1000], labels[:1000], queries[:100])
    return memory_beyond(lambda: ours_knn(bank, labels, queries))


PARTS: dict[str, Callable[[Scale], dict[str, Any]]] = {
    "msvq64": partial(training, method="msvq", width=64),
    "msvq16": partial(training, method="msvq", width=16),
    "msvq16-64px": partial(training, method="msvq", width=16, size=64),
    "moco64": partial(training, method="mocov2", width=64),
    "moco16": partial(training, method="mocov2", width=16),
    "methods": methods,
    "augment": augment,
    "norm": norm,
    "parts": parts_of_step,
    "memory": memory,
    "knn": knn,
}
MEASURED: dict[str, Callable[[Scale], float | None]] = {"loss": loss_memory, "knn": knn_memory}


def in_own_process(name: str, scale: Scale) -> float | None:
    """A peak of memory, in a process that has done nothing else."""
    words = [sys.executable, __file__, "--measure", name, *(["--quick"] if scale.quick else [])]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(answer.stderr)
    measured: float | None = json.loads(answer.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be given again")
    parser.add_argument("--repetitions", type=int, help="of everything that is timed; default 5")
    parser.add_argument("--quick", action="store_true", help="a small trial: tiny networks, one repetition, no bars")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--measure", choices=MEASURED, help=argparse.SUPPRESS)
    given = parser.parse_args()
    scale = Scale(given.repetitions or (1 if given.quick else 5), given.quick)
    if given.measure:
        print(json.dumps(MEASURED[given.measure](scale)))
        return
    machine: dict[str, Any] = {
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "native bf16": cpu_has_bf16(),
    }
    machine |= {"precision": resolve_precision("auto", CPU), "torch": str(torch.__version__)}
    results: dict[str, Any] = {"machine": machine, "quick": scale.quick, "repetitions": scale.repetitions, "parts": {}}
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    for name, part in PARTS.items():
        if not given.only or name in given.only:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            found = part(scale)
            if scale.quick:  # tiny networks have no bars
                found = {
                    key: {k: v for k, v in values.items() if k not in ("bar", "met")} for key, values in found.items()
                }
            results["parts"][name] = found
            print(show(name, found), flush=True)
            if given.out:  # after each part: all of them take long
                given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
