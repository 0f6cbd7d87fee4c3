"""MSVQ trained the conventional way: the yardstick that `throughput.py` holds the product against.

It is written as training scripts for small pictures usually are: PIL pictures one by one through torchvision's
transforms in the workers of a DataLoader, fp32, contiguous tensors, split batch norm by reshaping, teachers averaged
parameter by parameter. It computes what `msvq.methods.msvq` computes; `tests/test_throughput.py` holds it to that.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from msvq.model.heads import projector
from msvq.model.resnet import ResNet, resolve_stem

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SPLITS = 8
MOMENTUMS = (0.99, 0.95)
STUDENT_TEMP, TEACHER_TEMP = 0.1, 0.04
BASE_RATE = 0.06

Transform = Callable[[Image.Image], Any]


class Blur:
    """PIL's Gaussian blur with a random sigma."""

    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def strong_transform(size: int) -> Transform:
    steps: Transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([Blur()], p=0.5),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return steps


def weak_transform(size: int) -> Transform:
    steps: Transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(p=0.9),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return steps


class Views(Dataset[list[Any]]):
    """Pictures uint8 [N, H, W, 3]; each is handed out as a list with what every transform makes of it."""

    def __init__(self, images: NDArray[np.uint8], several: Sequence[Transform]) -> None:
        self.images, self.several = images, list(several)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Any]:
        picture = Image.fromarray(self.images[index])
        return [transform(picture) for transform in self.several]


def four_views(images: NDArray[np.uint8], size: int) -> Views:
    """What MSVQ sees of a picture: one strong view and three weak ones."""
    return Views(images, [strong_transform(size), *(weak_transform(size) for _ in range(3))])


def make_loader(dataset: Dataset[Any], *, batch_size: int, seed: int, workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


class ReshapedBatchNorm(nn.BatchNorm2d):
    """Split batch norm in the usual way: the groups become channels, by a view that needs contiguous tensors."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        num, channels, height, width = x.shape
        mean, var = self.running_mean.repeat(SPLITS), self.running_var.repeat(SPLITS)
        output = F.batch_norm(
            x.view(-1, channels * SPLITS, height, width),
            mean,
            var,
            self.weight.repeat(SPLITS),
            self.bias.repeat(SPLITS),
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        self.running_mean.copy_(mean.view(SPLITS, channels).mean(0))
        self.running_var.copy_(var.view(SPLITS, channels).mean(0))
        return output.view(num, channels, height, width)


def replace_norms(network: nn.Module) -> None:
    for name, module in list(network.named_children()):
        if isinstance(module, nn.BatchNorm2d):
            setattr(network, name, ReshapedBatchNorm(module.num_features))
        else:
            replace_norms(module)


class Encoder(nn.Module):
    """The backbone with its projector: pictures to unit embeddings."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.backbone = ResNet(width=width, stem=resolve_stem("auto", size))
        self.projector = projector(self.backbone.feature_dim, 2048, 128)
        replace_norms(self.backbone)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.projector(self.backbone(x)), dim=1)


def relation_loss(z: Tensor, z_teacher: Tensor, queue: Tensor) -> Tensor:
    """Cross entropy of the student's similarities to a queue [Q, d] with a teacher's."""
    soft_label = F.softmax(z_teacher @ queue.T / TEACHER_TEMP, dim=1)
    log_relation = F.log_softmax(z @ queue.T / STUDENT_TEMP, dim=1)
    return -torch.sum(soft_label * log_relation, dim=1).mean()


def msvq_loss(z1: Tensor, z2: Tensor, z3: Tensor, z4: Tensor, queue1: Tensor, queue2: Tensor) -> Tensor:
    """The mean of the three soft labels' losses; all of unit length."""
    return (relation_loss(z1, z2, queue1) + relation_loss(z1, z3, queue1) + relation_loss(z1, z4, queue2)) / 3


class ConventionalMSVQ:
    """MSVQ on pictures uint8 [N, H, W, 3]. `lr` may be set between steps."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        *,
        width: int,
        size: int,
        batch_size: int,
        queue_size: int = 4096,
        seed: int = 0,
        workers: int = 2,
    ) -> None:
        if queue_size % batch_size:
            raise ValueError(f"a queue of {queue_size} is not a multiple of a batch of {batch_size}")
        torch.manual_seed(seed)
        self.loader = make_loader(four_views(images, size), batch_size=batch_size, seed=seed, workers=workers)
        self.student = Encoder(width, size)
        self.teachers = [copy.deepcopy(self.student).requires_grad_(False) for _ in MOMENTUMS]
        self.queues = [F.normalize(torch.randn(queue_size, 128), dim=1) for _ in MOMENTUMS]
        self.pointer, self.lr = 0, BASE_RATE
        self.optimiser = torch.optim.SGD(self.student.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)

    @property
    def encoder(self) -> nn.Module:
        """The student's backbone."""
        return self.student.backbone

    def steps(self) -> Iterator[float]:
        """Without end: each `next` takes one whole training step, from data to updated weights, and gives its loss."""
        for views in endless(self.loader):
            yield self.train_step(*views)

    def train_step(self, x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr
        self.ema_update()
        z1 = self.student(x1)
        z2, z3 = self.teach(self.teachers[0], x2), self.teach(self.teachers[0], x3)
        z4 = self.teach(self.teachers[1], x4)
        loss = msvq_loss(z1, z2, z3, z4, *self.queues)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.enqueue(z2, z4)
        return loss.item()

    @torch.no_grad()
    def ema_update(self) -> None:
        for teacher, momentum in zip(self.teachers, MOMENTUMS, strict=True):
            for slow, fast in zip(teacher.parameters(), self.student.parameters(), strict=True):
                slow.data = slow.data * momentum + fast.data * (1 - momentum)

    @torch.no_grad()
    def teach(self, teacher: nn.Module, x: Tensor) -> Tensor:
        """Embeddings in the order of x, computed in a random order."""
        order = torch.randperm(len(x))
        z: Tensor = teacher(x[order])
        return z[torch.argsort(order)]

    @torch.no_grad()
    def enqueue(self, z2: Tensor, z4: Tensor) -> None:
        for queue, z in zip(self.queues, (z2, z4), strict=True):
            queue[self.pointer : self.pointer + len(z)] = z
        self.pointer = (self.pointer + len(z2)) % len(self.queues[0])
