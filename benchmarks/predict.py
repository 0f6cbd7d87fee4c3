"""What a step should take on a GPU that we do not have: a roofline on paper.

    python benchmarks/predict.py                        # a minute or two on one core
    python benchmarks/predict.py --width 16 --precision fp32

A step is run on the pretended device of tests/pretended_device.py, at two small batches, and each of its kernels tells
its arithmetic and the bytes that it reads and writes. Both grow by the same amount with every picture (but for how many
views chance jitters and blurs), which gives any batch. A kernel takes as long as the slower of the two at the card's
peak, plus a launch. Real kernels stay below the peaks, so the times are what a card cannot beat, but the ratios between
loops and what bounds them hold for any card.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from msvq.core.runtime import autocast
from msvq.data.patterns import make_patterns
from msvq.model.heads import projector
from msvq.model.resnet import ResNet, resolve_stem

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.pretended_device import DEVICE, pretended_device

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.conventional import ConventionalMSVQ
    from benchmarks.peers import Product
else:
    from conventional import ConventionalMSVQ
    from peers import Product

BATCHES = (32, 64)  # of the steps that are run
LAUNCH = 4e-6  # seconds that PyTorch takes to launch a kernel, whatever the card


class Card(NamedTuple):
    """Peaks of a data sheet: 10^12 operations a second without sparsity, 10^9 bytes a second."""

    half: float  # bf16 or fp16 products that are summed in fp32
    tf32: float  # what convolutions in fp32 use
    fp32: float
    bandwidth: float


CARDS = {
    "RTX 3090": Card(71, 35.6, 35.6, 936),
    "RTX 4090": Card(165, 82.6, 82.6, 1008),
    "A100 80 GB": Card(312, 156, 19.5, 2039),
    "H100 SXM": Card(989, 495, 67, 3350),
}


class Kernel(NamedTuple):
    """One kernel of a step."""

    name: str
    kind: str  # of arithmetic: a field of Card
    operations: float
    num_bytes: float


def describe(func: Any, args: Any, kwargs: Any, result: Any) -> Kernel:
    """A kernel's arithmetic and bytes, from what it was given and what it gave."""
    tensors: list[Tensor] = []
    _collect((args, kwargs, result), tensors)
    if result is None:  # what changes lists in place returns nothing; gradients it writes only where a loss is scaled
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads":
                _collect(value, tensors)
    moved = sum(min(t.numel(), t.untyped_storage().nbytes() // t.element_size()) * t.element_size() for t in tensors)
    packet = func._overloadpacket
    operations = float(flop_registry[packet](*args, **kwargs, out_val=result)) if packet in flop_registry else 0.0
    operations = operations or float(max((t.numel() for t in tensors), default=0))
    is_half = packet in flop_registry and any(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
    kind = "half" if is_half else "tf32" if "convolution" in str(packet) else "fp32"
    return Kernel(str(func), kind, operations, float(moved))


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        _collect(part, found)


def kernels_of(make: Callable[[int], Callable[[], object]], batch: int) -> list[Kernel]:
    """The kernels of a loop's second step at a batch; `make` gives what takes a step."""
    found: list[Kernel] = []
    with pretended_device() as counts:
        take = make(batch)
        take()
        counts.on_kernel = lambda *told: found.append(describe(*told))
        take()
        counts.on_kernel = None
    return found


def at_batch(make: Callable[[int], Callable[[], object]], batch: int) -> list[Kernel]:
    """The kernels of a step at any batch, from those at two small ones."""
    few, more = (kernels_of(make, num) for num in BATCHES)
    if [kernel.name for kernel in few] != [kernel.name for kernel in more]:
        raise RuntimeError("the two steps are of different kernels")
    times = (batch - BATCHES[0]) / (BATCHES[1] - BATCHES[0])
    return [
        Kernel(a.name, a.kind, *(x + times * (y - x) for x, y in zip(a[2:], b[2:], strict=True)))
        for a, b in zip(few, more, strict=True)
    ]


# --- the loops


def ours(method: str, width: int, precision: str, *others: str) -> Callable[[int], Callable[[], object]]:
    """This project's step, with its views."""

    def make(batch: int) -> Callable[[], object]:
        images, _ = make_patterns(4 * batch, seed=0)
        options = [f"train.precision={precision}", "train.log_every=1000", *others]
        product = Product(
            images, method=method, width=width, size=32, batch_size=batch, overrides=options, device=DEVICE
        )
        trainer, batches = product.trainer, product.trainer.loader.epoch(0)

        def take() -> object:
            return trainer.train_step(*next(batches), 0.01)

        return take

    return make


def authors(width: int) -> Callable[[int], Callable[[], object]]:
    """A loop written as the authors': fp32, planar, per-parameter averages. A processor makes its views."""

    def make(batch: int) -> Callable[[], object]:
        images, _ = make_patterns(4 * batch, seed=0)
        loop = ConventionalMSVQ(images, width=width, size=32, batch_size=batch, workers=0)
        loop.student.to(DEVICE)
        loop.teachers = [teacher.to(DEVICE) for teacher in loop.teachers]
        loop.queues = [queue.to(DEVICE) for queue in loop.queues]
        loop.optimiser = torch.optim.SGD(
            loop.student.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True
        )
        loop.teach = lambda teacher, x: _teach(teacher, x)  # type: ignore[method-assign]
        views = [torch.randn(batch, 3, 32, 32).to(DEVICE) for _ in range(4)]
        return lambda: loop.train_step(*views)

    return make


@torch.no_grad()
def _teach(teacher: nn.Module, x: Tensor) -> Tensor:
    order = torch.randperm(len(x), device=x.device)
    z: Tensor = teacher(x[order])
    return z[torch.argsort(order)]


def plain_moco(width: int, precision: str) -> Callable[[int], Callable[[], object]]:
    """MoCoV2 as lightly's example composes it: ordinary batch norm, logits of the own key beside the queue's.

    With our head, temperature and weight decay. A processor makes its views.
    """

    def make(batch: int) -> Callable[[], object]:
        backbone = ResNet(width=width, stem=resolve_stem("auto", 32))
        query = nn.Sequential(backbone, projector(backbone.feature_dim, 2048, 128)).to(DEVICE)
        backbone = ResNet(width=width, stem=resolve_stem("auto", 32))
        key = nn.Sequential(backbone, projector(backbone.feature_dim, 2048, 128)).to(DEVICE).requires_grad_(False)
        bank = F.normalize(torch.randn(128, 4096), dim=0).to(DEVICE)
        optimiser = torch.optim.SGD(query.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True)
        x1, x2 = (torch.randn(batch, 3, 32, 32).to(DEVICE) for _ in range(2))

        def take() -> object:
            with torch.no_grad():
                for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                    slow.mul_(0.99).add_(fast, alpha=0.01)
            with autocast(DEVICE, precision):
                q = F.normalize(query(x1).float(), dim=1)
                with torch.no_grad():
                    k = F.normalize(key(x2).float(), dim=1)
                own = torch.einsum("nc,nc->n", q, k)[:, None]
                logits = torch.cat([own, q @ bank], dim=1) / 0.2
            loss = F.cross_entropy(logits.float(), torch.zeros(batch, dtype=torch.long, device=DEVICE))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            bank[:, :batch] = k.T
            return loss.item()

        return take

    return make


# --- the prediction


class Prediction(NamedTuple):
    """Seconds of a step on a card, and of these what waits for memory and for launches."""

    seconds: float
    memory: float
    launches: float


def predict(kernels: list[Kernel], card: Card, *, converts: bool = False) -> Prediction:
    """`converts`: every convolution in half precision first turns planes into channels last, and back."""
    total = memory = 0.0
    for kernel in kernels:
        moved = kernel.num_bytes * (3 if converts and "convolution" in kernel.name and kernel.kind == "half" else 1)
        arithmetic = kernel.operations / getattr(card, kernel.kind) / 1e12
        transfer = moved / card.bandwidth / 1e9
        total += max(arithmetic, transfer)
        memory += transfer if transfer > arithmetic else 0.0
    launches = len(kernels) * LAUNCH
    return Prediction(total + launches, memory, launches)


def bound(prediction: Prediction) -> str:
    """What takes most of the time."""
    parts = {
        "memory": prediction.memory,
        "launches": prediction.launches,
        "arithmetic": prediction.seconds - prediction.memory - prediction.launches,
    }
    return max(parts, key=lambda name: parts[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64, help="of the ResNet-18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"], help="of ours and of the plain MoCoV2")
    args = parser.parse_args()
    # Without groups networks are channels last, and no convolution has planes to convert.
    loops = {
        f"MSVQ, ours ({args.precision})": (ours("msvq", args.width, args.precision), False),
        f"MSVQ, ours ({args.precision}), if planes are converted": (ours("msvq", args.width, args.precision), True),
        "MSVQ, as the authors' (fp32)": (authors(args.width), False),
        f"MoCoV2, ours ({args.precision})": (ours("mocov2", args.width, args.precision), False),
        f"MoCoV2, plain ({args.precision})": (plain_moco(args.width, args.precision), False),
    }
    print(f"ResNet-18 of width {args.width}, 32 px, batch {args.batch}: milliseconds of a step, and what bounds it\n")
    print("| loop | kernels | " + " | ".join(CARDS) + " |")
    print("|---" * (2 + len(CARDS)) + "|")
    known: dict[str, list[Kernel]] = {}
    for name, (make, converts) in loops.items():
        key = name.split(", if")[0]
        kernels = known.setdefault(key, known.get(key) or at_batch(make, args.batch))
        told = [predict(kernels, card, converts=converts) for card in CARDS.values()]
        cells = [f"{1000 * step.seconds:.1f} ({bound(step)})" for step in told]
        print(f"| {name} | {len(kernels):,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
