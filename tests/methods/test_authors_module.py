"""MSVQ's step beside a module with the structure of its authors', written in the plainest way."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from msvq.config.resolve import resolve
from msvq.methods import MSVQ, Batch
from msvq.model.initial import match_state_dict
from msvq.model.resnet import ResNet
from msvq.train.init_weights import load_initial_weights

N, GROUPS, WIDTH, HIDDEN, DIM, SIZE, STEPS = 16, 4, 4, 16, 8, 48, 4
MOMENTUMS, TEACHER_TEMP, STUDENT_TEMP = (0.9, 0.6), 0.04, 0.1  # so fast that the teachers part at once


class GroupedNorm(nn.BatchNorm2d):
    """Sample i belongs to group i mod GROUPS, which has statistics of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        groups = [x[start::GROUPS] for start in range(GROUPS)]
        with torch.no_grad():
            means = torch.stack([group.mean((0, 2, 3)) for group in groups])
            variances = torch.stack([group.var((0, 2, 3)) for group in groups])
            self.running_mean.copy_(0.9 * self.running_mean + 0.1 * means.mean(0))
            self.running_var.copy_(0.9 * self.running_var + 0.1 * variances.mean(0))
        normed = [F.batch_norm(group, None, None, self.weight, self.bias, training=True) for group in groups]
        return torch.stack(normed, dim=1).flatten(0, 1)  # 0, 1, 2, ... again


def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), GroupedNorm(outputs))
    first = BasicBlock(inputs, outputs, stride, shortcut if stride > 1 else None, norm_layer=GroupedNorm)
    return nn.Sequential(first, BasicBlock(outputs, outputs, norm_layer=GroupedNorm))


class Base(nn.Module):
    """The children of torchvision's ResNet-18 in a row, narrow, with a 3x3 stem and no max-pool."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH * 2**number for number in range(4)]
        stages = [stage(WIDTH, WIDTH, 1), *(stage(a, b, 2) for a, b in pairwise(widths))]
        stem = (nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), GroupedNorm(WIDTH), nn.ReLU())
        self.net = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features


class Memory(nn.Module):
    """Embeddings as they come, unit vectors when they are read; only their labels are saved."""

    bank: Tensor
    labels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.randn(SIZE, DIM), persistent=False)
        self.register_buffer("labels", torch.full((SIZE,), -1))
        self.pointer = 0

    def read(self) -> Tensor:
        return F.normalize(self.bank.clone(), dim=1)

    def write(self, z: Tensor, labels: Tensor) -> None:
        self.bank[self.pointer : self.pointer + N] = z
        self.labels[self.pointer : self.pointer + N] = labels
        self.pointer = (self.pointer + N) % SIZE


class AuthorsMSVQ(nn.Module):
    """Student net and g_s, teachers f_t1, g_t1 and f_t2, g_t2, two queues; one strong view and three weak ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Base()
        self.g_s = nn.Sequential(nn.Linear(8 * WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        self.f_t1, self.g_t1 = copy.deepcopy(self.net), copy.deepcopy(self.g_s)
        self.f_t2, self.g_t2 = copy.deepcopy(self.net), copy.deepcopy(self.g_s)
        self.queue1, self.queue2 = Memory(), Memory()

    @torch.no_grad()
    def follow(self) -> None:
        for m, f, g in ((MOMENTUMS[0], self.f_t1, self.g_t1), (MOMENTUMS[1], self.f_t2, self.g_t2)):
            for teacher, student in ((f, self.net), (g, self.g_s)):
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.copy_(m * slow + (1 - m) * fast)

    @torch.no_grad()
    def teach(self, f: nn.Module, g: nn.Module, x: Tensor, order: Tensor) -> Tensor:
        z: Tensor = g(f(x[order]))[torch.argsort(order)]
        return z

    def forward(self, views: tuple[Tensor, ...], labels: Tensor, orders: list[Tensor]) -> Tensor:
        self.follow()
        z1 = F.normalize(self.g_s(self.net(views[0])), dim=1)
        z2 = self.teach(self.f_t1, self.g_t1, views[1], orders[0])
        z3 = self.teach(self.f_t1, self.g_t1, views[2], orders[1])
        z4 = self.teach(self.f_t2, self.g_t2, views[3], orders[2])
        queue1, queue2 = self.queue1.read(), self.queue2.read()
        self.queue1.write(z2, labels)
        self.queue2.write(z4, labels)
        loss = torch.zeros(())
        for z, queue in ((z2, queue1), (z3, queue1), (z4, queue2)):
            soft_label = torch.softmax(F.normalize(z, dim=1) @ queue.T / TEACHER_TEMP, dim=1)
            loss = loss - (soft_label * torch.log_softmax(z1 @ queue.T / STUDENT_TEMP, dim=1)).sum(1).mean() / 3
        return loss


def assert_alike(ours: nn.Module, authors: nn.Module) -> None:
    """Backbones: weights and statistics, whatever they are called."""
    own = {name: value for name, value in ours.state_dict().items() if not name.endswith("num_batches_tracked")}
    found = match_state_dict(own, authors.state_dict(), "theirs").weights
    torch.testing.assert_close(own, found, rtol=0, atol=1e-9)


def test_init_takes_the_student_of_their_file(tmp_path: Path) -> None:
    authors, path = AuthorsMSVQ(), tmp_path / "msvq_200.pth"
    optimiser = torch.optim.SGD(authors.net.parameters(), lr=0.06, momentum=0.9)
    authors.net(torch.randn(N, 3, 8, 8)).sum().backward()
    optimiser.step()
    torch.save({"model": authors.state_dict(), "optimizer": optimiser.state_dict(), "epoch": 200}, path)
    start = load_initial_weights(resolve(recipe="cifar10", init=str(path), overrides=[f"backbone.width={WIDTH}"]), 32)
    assert start is not None
    assert torch.equal(start.weights["layer4.1.conv2.weight"], authors.get_parameter("net.net.6.1.conv2.weight"))
    assert start.note().startswith(
        f"the backbone starts from {path}: all of its {len(start.weights)} tensors, called model.net.net.* there "
        f"(torchvision's children in a row, without a max-pool); "
    )
    assert start.record()["layout"] == "torchvision's children in a row, without a max-pool"


def ours_from(authors: AuthorsMSVQ) -> Any:
    backbone = ResNet(width=WIDTH).double()
    backbone.load_state_dict(match_state_dict(backbone.state_dict(), authors.state_dict(), "theirs").weights)
    options: dict[str, Any] = {"teacher_temp": TEACHER_TEMP, "student_temp": STUDENT_TEMP, "bn_splits": GROUPS}
    options |= {"queue_size": SIZE, "hidden_dim": HIDDEN, "output_dim": DIM}
    method: Any = MSVQ(backbone, momentum1=MOMENTUMS[0], momentum2=MOMENTUMS[1], **options).double()
    method.student.projector.load_state_dict(authors.g_s.state_dict())
    for teacher in method.teachers:
        teacher.network.load_state_dict(method.student.state_dict())
    for number, memory in (("1", authors.queue1), ("2", authors.queue2)):
        method.queues[number].keys = memory.read()
    return method


def test_a_step_of_the_authors_module_is_ours() -> None:
    authors = AuthorsMSVQ().double()
    method = ours_from(authors)
    orders: list[Tensor] = []
    for teacher in method.teachers:
        teacher.random.permutation = lambda *_: (order := orders.pop(0), order.argsort())  # theirs
    both = [
        torch.optim.SGD([p for p in learning if p.requires_grad], lr=0.06, momentum=0.9, weight_decay=5e-4)
        for learning in ([*authors.net.parameters(), *authors.g_s.parameters()], method.parameters())
    ]
    for step in range(STEPS):  # the last one meets in the queues what the first has stored
        views = tuple(torch.randn(N, 3, 16, 16, dtype=torch.float64) for _ in range(4))
        labels = torch.arange(N) + step
        orders += [torch.randperm(N) for _ in range(3)]
        losses = authors(views, labels, list(orders)), method(Batch(views, labels, 0.0)).value
        torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-9)
        for loss, optimiser in zip(losses, both, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert_alike(method.student.backbone, authors.net)
    for number, (f, memory) in enumerate([(authors.f_t1, authors.queue1), (authors.f_t2, authors.queue2)], start=1):
        assert_alike(method.teachers[number - 1].network.backbone, f)
        queue = method.queues[str(number)]
        torch.testing.assert_close(queue.keys, memory.read(), rtol=0, atol=1e-9)
        assert torch.equal(queue.labels, memory.labels)
