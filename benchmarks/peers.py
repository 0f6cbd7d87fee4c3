"""What the conventional loop is compared with: the product, the limit that its networks set, and lightly's methods.

Each has `steps()`, an endless iterator whose every `next` takes one whole step.
"""

import copy
import importlib
import importlib.util
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.config.adapt import fill_from_data
from msvq.config.build import build_method, make_augment
from msvq.config.resolve import resolve
from msvq.core.runtime import autocast
from msvq.data.loader import Loader
from msvq.data.store import ImageDataset, ImageSplit
from msvq.methods import Batch
from msvq.model.resnet import ResNet, resolve_stem
from msvq.model.teacher import Network, Teacher
from msvq.train.trainer import Trainer

if TYPE_CHECKING:  # a script finds its siblings by name; mypy knows them by their folder
    from benchmarks.conventional import BASE_RATE, MEAN, STD, Views, endless, make_loader, replace_norms
else:
    from conventional import BASE_RATE, MEAN, STD, Views, endless, make_loader, replace_norms

CPU = torch.device("cpu")


class Product:
    """This project's own training loop, built as a run builds it, on pictures uint8 [N, H, W, 3] in memory."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        *,
        method: str,
        width: int,
        size: int,
        batch_size: int | None,
        recipe: str | None = None,
        overrides: Sequence[str] = (),
        seed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        labels = np.arange(len(images), dtype=np.int64) % 10
        pictures = ImageSplit(images, labels)
        data = ImageDataset("made", pictures, pictures, pictures, tuple("0123456789"), MEAN, STD, size, size)
        recipe = recipe or ("cifar10" if size <= 32 else "tinyimagenet")
        batch = [] if batch_size is None else [f"train.batch_size={batch_size}"]
        overrides = [f"backbone.width={width}", f"data.size={size}", *batch, *overrides]
        settings = fill_from_data(resolve(recipe=recipe, method=method, overrides=overrides, seed=seed), data, device)
        loader = Loader(pictures, batch_size=settings.train.batch_size, seed=seed, device=device)
        self.directory = tempfile.TemporaryDirectory()
        self.lr, self.settings, self.size = BASE_RATE, settings, size
        self.trainer = Trainer(
            build_method(settings, size),
            loader,
            make_augment(settings, data),
            settings.train,
            precision=settings.train.precision,
            directory=Path(self.directory.name),
        )
        self.trainer.method.train()

    @property
    def encoder(self) -> nn.Module:
        """The student's backbone."""
        return self.trainer.method.encoder

    def batch(self) -> Batch:
        """A batch as the method sees it."""
        images, labels, indices = next(self.trainer.loader.epoch(0))
        views = self.trainer.augment(images, self.trainer.method.views, torch.Generator().manual_seed(0))
        return Batch(views, labels, 0.0, indices)

    def steps(self) -> Iterator[float]:
        """From data to updated weights; gives the loss."""
        epoch = 0
        while True:
            for images, labels, indices in self.trainer.loader.epoch(epoch):
                yield self.trainer.train_step(images, labels, indices, self.lr)[0]
            epoch += 1


class Limit:
    """The networks of a method's step and nothing else, on one resident batch.

    No data, views, loss, optimiser, teachers' averages or queues; batch norm is not split, so this is as fast as these
    networks go. What the method asks of its networks is recorded in one real step, and repeated.
    """

    def __init__(self, product: Product) -> None:
        self.precision = product.trainer.precision
        settings = product.settings.model_copy(update={"method": without_splits(product.settings.method)})
        self.method = build_method(settings, product.size).to(memory_format=torch.channels_last).train()
        self.calls: list[tuple[nn.Module, bool, Tensor]] = []
        teachers = [module for module in self.method.modules() if isinstance(module, Teacher)]
        theirs = {id(module) for teacher in teachers for module in teacher.modules()}
        students = [m for m in self.method.modules() if isinstance(m, Network) and id(m) not in theirs]
        hooks = [module.register_forward_pre_hook(self._record) for module in (*teachers, *students)]
        with torch.no_grad(), autocast(CPU, self.precision):
            self.method(product.batch())
        for hook in hooks:
            hook.remove()

    def _record(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        taught = isinstance(module, Teacher)
        network = cast(nn.Module, module.network) if taught else module
        self.calls += [(network, taught, x.detach().clone()) for x in given if isinstance(x, Tensor)]

    def steps(self) -> Iterator[float]:
        """The teachers' passes, the student's, and one backward pass of the sum of what it gave."""
        while True:
            self.method.zero_grad()
            total = torch.zeros(())
            with autocast(CPU, self.precision):
                for network, taught, x in self.calls:
                    if taught:
                        with torch.no_grad():
                            network(x)
                    else:
                        total = total + network(x).float().sum()
            total.backward()
            yield float(total.detach())


def without_splits(options: dict[str, Any]) -> dict[str, Any]:
    """A method's options with ordinary batch norm, also in a method that it wraps."""
    inner = options.get("base_options")
    changed = {"base_options": without_splits(inner)} if isinstance(inner, dict) else {}
    return {**options, **changed, **({"bn_splits": 1} if "bn_splits" in options else {})}


class Fixed(nn.Module):
    """In a network's place: always the same embeddings."""

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.register_buffer("z", z)

    def forward(self, x: Tensor) -> Any:
        return self.z


def loss_and_queues(product: Product, *, store: bool = True) -> Callable[[], None]:
    """MSVQ's step without its networks: soft labels, loss, gradient up to the embeddings, and queues."""
    trainer = product.trainer
    method: Any = trainer.method
    num = trainer.settings.batch_size
    dtype = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
    for teacher in method.modules():
        if isinstance(teacher, Teacher):
            teacher.network = Fixed(torch.randn(num, 128).to(dtype))
    batch = Batch(tuple(torch.zeros(num, 3, 1, 1) for _ in method.views), torch.zeros(num, dtype=torch.int64), 0.0)
    z1 = torch.randn(num, 128).to(dtype).requires_grad_()

    def work() -> None:
        z1.grad = None
        with autocast(CPU, trainer.precision):
            targets = method.targets(batch)
            loss = method.compare(z1, targets).value
        loss.backward()
        if store:
            method.store(targets, batch.labels)

    return work


class Elsewhere:
    """A contender in a process of its own, as its users run it: this project sets up its process for itself."""

    def __init__(self, kind: type[Any], images: NDArray[np.uint8], **sizes: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, kind, images, sizes))  # it has workers of its own
        self.process.start()

    def take(self, num: int) -> None:
        """So many whole steps."""
        self.connection.send(num)
        self.connection.recv()

    def close(self) -> None:
        self.connection.send(0)
        self.process.join()


def _serve(connection: Connection, kind: type[Any], images: NDArray[np.uint8], sizes: dict[str, Any]) -> None:
    steps = kind(images, **sizes).steps()
    while num := connection.recv():
        for _ in range(num):
            next(steps)
        connection.send(num)


def has_lightly() -> bool:
    return importlib.util.find_spec("lightly") is not None


def lightly(name: str) -> Any:
    """A part of lightly, which is imported where it is used: it need not be there."""
    return importlib.import_module(f"lightly.{name}")


class Lightly(nn.Module):
    """A method from lightly's parts on our backbone, as lightly's own benchmark on CIFAR-10 trains it.

    Heads, loss, transform, momentum, optimiser, rate and batch are those of that script (cifar10_benchmark.py, linked
    from "Benchmarks" in its docs). There the rate falls by a cosine, without warm-up: `lr` may be set between steps.
    Blur is off up to 32 px, as there; colours are normalised by the data's `mean` and `std`, as when it is judged.
    """

    rate = 0.06

    def __init__(
        self,
        images: NDArray[np.uint8],
        *,
        width: int,
        size: int,
        batch_size: int = 128,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        seed: int = 0,
        workers: int = 2,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        backbone = ResNet(width=width, stem=resolve_stem("auto", size))
        self.student = nn.Sequential(backbone)
        self.build(backbone.feature_dim)
        learned = [p for p in self.parameters() if p.requires_grad]
        self.optimiser = torch.optim.SGD(learned, lr=self.rate, momentum=0.9, weight_decay=5e-4)
        look: dict[str, Any] = {"input_size": size, "normalize": {"mean": list(mean), "std": list(std)}}
        views = Views(images, [self.transform({**look, "gaussian_blur": 0.0} if size <= 32 else look)])
        self.loader = make_loader(views, batch_size=batch_size, seed=seed, workers=workers)
        self.batch_size, self.lr = batch_size, self.rate

    def build(self, dim: int) -> None:
        """Add heads for features of `dim` to the student, and what else there is."""
        raise NotImplementedError

    def transform(self, look: dict[str, Any]) -> Any:
        return lightly("transforms").SimCLRTransform(cj_strength=0.5, **look)

    def loss(self, views: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def add_teacher(self) -> None:
        self.teacher = copy.deepcopy(self.student)
        lightly("models.utils").deactivate_requires_grad(self.teacher)

    def update_teacher(self) -> None:
        lightly("models.utils").update_momentum(self.student, self.teacher, m=0.99)

    @property
    def encoder(self) -> nn.Module:
        """The backbone that learns."""
        return self.student[0]

    def steps(self) -> Iterator[float]:
        """From data to updated weights; gives the loss."""
        for views in endless(self.loader):
            for group in self.optimiser.param_groups:
                group["lr"] = self.lr
            loss = self.loss(views[0])
            loss.backward()
            self.optimiser.step()
            self.optimiser.zero_grad()
            yield loss.item()


class LightlySimCLR(Lightly):
    def build(self, dim: int) -> None:
        self.student.append(lightly("models.modules").SimCLRProjectionHead(dim, 512, 128))
        self.criterion = lightly("loss").NTXentLoss()

    def loss(self, views: list[Tensor]) -> Tensor:
        z0, z1 = map(self.student, views)
        return cast(Tensor, self.criterion(z0, z1))


class LightlyMoCoV2(Lightly):
    """With batch norm in eight groups, a teacher that sees them shuffled, and the loss in both directions."""

    hidden, temp, splits = 512, 0.1, True

    def build(self, dim: int) -> None:
        if self.splits:
            replace_norms(self.student)
        self.student.append(lightly("models.modules").MoCoProjectionHead(dim, self.hidden, 128))
        self.add_teacher()
        self.criterion = lightly("loss").NTXentLoss(temperature=self.temp, memory_bank_size=(4096, 128))

    def loss(self, views: list[Tensor]) -> Tensor:
        self.update_teacher()
        x0, x1 = views
        return (self.compare(x0, x1) + self.compare(x1, x0)) / 2

    def compare(self, x0: Tensor, x1: Tensor) -> Tensor:
        """The loss of what the student makes of one view beside what the teacher makes of the other."""
        utils = lightly("models.utils")
        shuffled, order = utils.batch_shuffle(x1)
        return cast(Tensor, self.criterion(self.student(x0), utils.batch_unshuffle(self.teacher(shuffled), order)))


class LightlyExample(LightlyMoCoV2):
    """MoCoV2 as lightly's documented example puts it together, with our head: what a step of ours is timed beside.

    Batch norm is ordinary, the loss has one direction.
    """

    hidden, temp, splits = 2048, 0.2, False

    def transform(self, look: dict[str, Any]) -> Any:
        return lightly("transforms").MoCoV2Transform(**look)

    def loss(self, views: list[Tensor]) -> Tensor:
        self.update_teacher()
        return cast(Tensor, self.criterion(self.student(views[0]), self.teacher(views[1])))


class LightlyBYOL(Lightly):
    """The best of lightly's table after 800 epochs: 91.0 % kNN."""

    def build(self, dim: int) -> None:
        heads = lightly("models.modules")
        self.student.append(heads.BYOLProjectionHead(dim, 1024, 256))
        self.add_teacher()
        self.predictor = heads.BYOLPredictionHead(256, 1024, 256)
        self.criterion = lightly("loss").NegativeCosineSimilarity()

    def transform(self, look: dict[str, Any]) -> Any:
        looks = lightly("transforms")
        return looks.BYOLTransform(looks.BYOLView1Transform(**look), looks.BYOLView2Transform(**look))

    def loss(self, views: list[Tensor]) -> Tensor:
        self.update_teacher()
        p0, p1 = (self.predictor(self.student(x)) for x in views)
        z0, z1 = map(self.teacher, views)
        return cast(Tensor, (self.criterion(p0, z1) + self.criterion(p1, z0)) / 2)


class LightlyFastSiam(Lightly):
    """The best of lightly's table after 200 epochs: 90.6 % kNN. Each of four views predicts the mean of the others."""

    def build(self, dim: int) -> None:
        heads = lightly("models.modules.heads")
        layers = [(dim, 2048, nn.BatchNorm1d(2048), nn.ReLU()), (2048, 2048, nn.BatchNorm1d(2048), None)]
        self.student.append(heads.ProjectionHead(layers))
        self.predictor = heads.SimSiamPredictionHead(2048, 512, 2048)
        self.criterion = lightly("loss").NegativeCosineSimilarity()

    def transform(self, look: dict[str, Any]) -> Any:
        return lightly("transforms").FastSiamTransform(**look)

    def loss(self, views: list[Tensor]) -> Tensor:
        embeddings = [self.student(x) for x in views]
        targets = torch.stack(embeddings).detach()
        others = (targets.sum(dim=0) - targets) / (len(views) - 1)
        losses = [self.criterion(self.predictor(z), other) for z, other in zip(embeddings, others, strict=True)]
        return torch.stack(losses).mean()


LIGHTLY = {
    "lightly-mocov2": LightlyMoCoV2,
    "lightly-simclr": LightlySimCLR,
    "lightly-byol": LightlyBYOL,
    "lightly-fastsiam": LightlyFastSiam,
}
