"""The MSVQ family: its equations, what it reduces to, and what each queue may store."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from msvq.methods import METHODS, Batch, Method
from msvq.methods.msvq import MQ, MSV, MSVQ, MSVQX3, MSVQX5, MSVQDagger, ReSSL
from msvq.model.losses import info_nce, l2_normalize

Make = Callable[..., Any]
FAMILY: list[type[MSVQ]] = [MSVQ, MSV, MQ, MSVQDagger, MSVQX3, MSVQX5, ReSSL]
N, DIM, SIZE = 6, 8, 24


def embeddings(*numbers: int) -> dict[int, Tensor]:
    """X^a [N, DIM] for each view number a."""
    generator = torch.Generator().manual_seed(7)
    drawn = {a: torch.randn(N, DIM, dtype=torch.float64, generator=generator) for a in range(1, 6)}
    return {a: drawn[a] for a in numbers}


def step(method: Any, x: dict[int, Tensor], *, progress: float = 1.0) -> Any:
    """One step of a method on embeddings by view number."""
    views = (x[1], *(x[a] for a in method.teacher_views))
    return method(Batch(views, torch.arange(N), progress))


def share_queues(method: Any, other: Any) -> None:
    """Give `method` the queues of `other`, as far as it has them."""
    for b in method.queues:
        method.queues[b].load_state_dict(other.queues[b].state_dict())


def slow_loss(labels: list[tuple[Tensor, Tensor]], z1: Tensor, *, student_temp: float, teacher_temp: float) -> float:
    """The mean over (teacher embeddings, queue) of H(P^{a,b}, P^{1,b}), by loops over plain numbers."""

    def relation(z: Tensor, keys: Tensor, temp: float) -> list[float]:
        weights = [math.exp(float(z @ k) / float(z.norm() * k.norm()) / temp) for k in keys]
        return [w / sum(weights) for w in weights]

    total = 0.0
    for z, keys in labels:
        for i in range(len(z1)):
            p, s = relation(z[i], keys, teacher_temp), relation(z1[i], keys, student_temp)
            total -= sum(pj * math.log(sj) for pj, sj in zip(p, s, strict=True)) / len(z1)
    return total / len(labels)


@pytest.mark.parametrize("kind", FAMILY)
def test_loss_is_the_papers_equation_by_loops(kind: type[MSVQ], on_embeddings: Make) -> None:
    method = on_embeddings(kind, dim=DIM, queue_size=SIZE, student_temp=0.13, teacher_temp=0.06)
    keys = {int(b): queue.keys.clone() for b, queue in method.queues.items()}
    x = embeddings(1, 2, 3, 4, 5)
    expected = {
        MSVQ: [(2, 1), (3, 1), (4, 2)],  # Eq. 13
        MSVQDagger: [(2, 1), (3, 1), (4, 2)],
        MSV: [(2, 1), (3, 1)],  # Eq. 8
        MQ: [(2, 1), (4, 2)],  # Eq. 11
        MSVQX3: [(2, 1), (3, 2), (4, 2)],
        MSVQX5: [(2, 1), (3, 1), (4, 2), (5, 2)],
        ReSSL: [(2, 1)],  # Eq. 5
    }[kind]
    slow = slow_loss([(x[a], keys[b]) for a, b in expected], x[1], student_temp=0.13, teacher_temp=0.06)
    assert step(method, x).value.item() == pytest.approx(slow, rel=1e-10)


def test_three_msvq_is_two_msv_and_two_mq_less_ressl(on_embeddings: Make) -> None:
    msvq, msv, mq, ressl = (on_embeddings(kind, dim=DIM, queue_size=SIZE) for kind in (MSVQ, MSV, MQ, ReSSL))
    for other in (msv, mq, ressl):
        share_queues(other, msvq)
    x = embeddings(1, 2, 3, 4)
    left = 3 * step(msvq, x).value
    right = 2 * step(msv, x).value + 2 * step(mq, x).value - step(ressl, x).value
    torch.testing.assert_close(left, right)


def test_gradient_on_similarities_has_the_papers_form(on_embeddings: Make) -> None:
    method = on_embeddings(MSVQ, dim=DIM, queue_size=SIZE)
    k1, k2 = (method.queues[b].keys.clone() for b in "12")
    x = embeddings(1, 2, 3, 4)
    x[1] = l2_normalize(x[1]).requires_grad_()
    z = {a: l2_normalize(value) for a, value in x.items()}

    def relation(a: int, keys: Tensor, temp: float) -> Tensor:
        return torch.softmax(z[a].detach() @ keys.T / temp, 1)

    p11, p12 = relation(1, k1, 0.1), relation(1, k2, 0.1)
    p21, p31, p42 = relation(2, k1, 0.04), relation(3, k1, 0.04), relation(4, k2, 0.04)
    grad_l11 = (2 * p11 - p21 - p31) / (3 * N * 0.1)
    grad_l12 = (p12 - p42) / (3 * N * 0.1)
    through = grad_l11 @ k1 + grad_l12 @ k2
    tangent = through - (through * z[1]).sum(1, keepdim=True) * z[1]  # of the normalisation, at unit length
    step(method, x).value.backward()
    torch.testing.assert_close(x[1].grad, tangent.detach())


def test_gradient_agrees_with_finite_differences(on_embeddings: Make) -> None:
    method = on_embeddings(MSVQ, dim=DIM, queue_size=SIZE)
    x = embeddings(1, 2, 3, 4)

    def loss(x1: Tensor) -> Tensor:
        value: Tensor = step(copy.deepcopy(method), {**x, 1: x1}).value
        return value

    assert torch.autograd.gradcheck(loss, (x[1].requires_grad_(),))


def test_msv_averages_its_labels(on_embeddings: Make) -> None:
    method = on_embeddings(MSV, dim=DIM, queue_size=SIZE)
    keys, x = method.queues["1"].keys.clone(), embeddings(1, 2, 3)
    p = sum(torch.softmax(l2_normalize(x[a]) @ keys.T / 0.04, 1) for a in (2, 3)) / 2
    log_s = torch.log_softmax(l2_normalize(x[1]) @ keys.T / 0.1, 1)
    torch.testing.assert_close(step(method, x).value, -(p * log_s).sum(1).mean())


@pytest.mark.parametrize("kind", FAMILY)
def test_logged_kl_is_the_loss_less_the_teachers_entropy(kind: type[MSVQ], on_embeddings: Make) -> None:
    method = on_embeddings(kind, dim=DIM, queue_size=SIZE)
    keys, x = {int(b): queue.keys.clone() for b, queue in method.queues.items()}, embeddings(1, 2, 3, 4, 5)

    def kl(view: int, queue: int) -> Tensor:
        p = torch.softmax(l2_normalize(x[view]) @ keys[queue].T / 0.04, 1)
        log_s = torch.log_softmax(l2_normalize(x[1]) @ keys[queue].T / 0.1, 1)
        return torch.nn.functional.kl_div(log_s, p, reduction="batchmean")

    expected = torch.stack([kl(label.view, label.queue) for label in kind.soft_label_specs]).mean()
    torch.testing.assert_close(step(method, x).logs["kl"], expected)


def test_equal_views_and_temperatures_teach_nothing(on_embeddings: Make) -> None:
    method = on_embeddings(ReSSL, dim=DIM, queue_size=SIZE, student_temp=0.1, teacher_temp=0.1)
    x1 = embeddings(1)[1].requires_grad_()
    loss = step(method, {1: x1, 2: x1.detach()})
    loss.value.backward()
    assert loss.logs["kl"].item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(x1.grad, torch.zeros_like(x1))


def test_a_cold_teacher_gives_its_nearest_key_as_label(on_embeddings: Make) -> None:
    method = on_embeddings(ReSSL, dim=DIM, queue_size=SIZE, teacher_temp=1e-6)
    keys, x = method.queues["1"].keys.clone(), embeddings(1, 2)
    nearest = (l2_normalize(x[2]) @ keys.T).argmax(1)
    expected = nn.functional.cross_entropy(l2_normalize(x[1]) @ keys.T / 0.1, nearest)
    torch.testing.assert_close(step(method, x).value, expected)


def test_a_hot_teacher_gives_the_uniform_label(on_embeddings: Make) -> None:
    method = on_embeddings(ReSSL, dim=DIM, queue_size=SIZE, teacher_temp=1e9)
    keys, x = method.queues["1"].keys.clone(), embeddings(1, 2)
    expected = -torch.log_softmax(l2_normalize(x[1]) @ keys.T / 0.1, 1).mean()
    torch.testing.assert_close(step(method, x).value, expected)


@pytest.mark.parametrize("kind", FAMILY)
def test_loss_does_not_depend_on_scale_rotation_or_order(kind: type[MSVQ], on_embeddings: Make) -> None:
    method = on_embeddings(kind, dim=DIM, queue_size=SIZE)
    x = embeddings(1, 2, 3, 4, 5)
    expected = step(copy.deepcopy(method), x).value
    scaled = {a: value * (a + 0.5) for a, value in x.items()}
    torch.testing.assert_close(step(copy.deepcopy(method), scaled).value, expected)

    rotation = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64)).Q
    rotated = copy.deepcopy(method)
    for queue in rotated.queues.values():
        queue.keys = queue.keys @ rotation
    torch.testing.assert_close(step(rotated, {a: value @ rotation for a, value in x.items()}).value, expected)

    permuted = copy.deepcopy(method)
    for queue in permuted.queues.values():
        queue.keys = queue.keys[torch.randperm(SIZE)]
    torch.testing.assert_close(step(permuted, x).value, expected)

    order = torch.randperm(N)
    torch.testing.assert_close(step(copy.deepcopy(method), {a: v[order] for a, v in x.items()}).value, expected)


@pytest.mark.parametrize("kind", FAMILY)
def test_queues_store_what_the_paper_says(kind: type[MSVQ], on_embeddings: Make) -> None:
    method, x = on_embeddings(kind, dim=DIM, queue_size=SIZE), embeddings(1, 2, 3, 4, 5)
    before = {b: queue.keys.clone() for b, queue in method.queues.items()}
    step(method, x)
    for b, view in {"1": 2, "2": 4}.items():  # never view 3 or 5, and never the student's
        if b in method.queues:
            torch.testing.assert_close(method.queues[b].keys[:N], l2_normalize(x[view]))
            assert torch.equal(method.queues[b].keys[N:], before[b][N:])
            assert torch.equal(method.queues[b].labels, method.queues["1"].labels)
    assert method.queues["1"].labels[:N].tolist() == list(range(N))


def test_loss_uses_the_queue_without_this_batch(on_embeddings: Make) -> None:
    method, x = on_embeddings(MSVQ, dim=DIM, queue_size=SIZE), embeddings(1, 2, 3, 4)
    keys = {int(b): queue.keys.clone() for b, queue in method.queues.items()}
    snapshot = slow_loss([(x[2], keys[1]), (x[3], keys[1]), (x[4], keys[2])], x[1], student_temp=0.1, teacher_temp=0.04)
    assert step(method, x).value.item() == pytest.approx(snapshot)
    assert step(method, x).value.item() != pytest.approx(snapshot)  # now the batch is in


def test_x5_with_doubled_labels_is_mq(on_embeddings: Make) -> None:
    x5, mq = (on_embeddings(kind, dim=DIM, queue_size=SIZE) for kind in (MSVQX5, MQ))
    share_queues(mq, x5)
    x = embeddings(1, 2, 4)
    torch.testing.assert_close(step(x5, {**x, 3: x[2], 5: x[4]}).value, step(mq, x).value)


def test_x3_with_equal_teachers_and_queues_is_msvq(on_embeddings: Make) -> None:
    x3, msvq = (on_embeddings(kind, dim=DIM, queue_size=SIZE, momentum1=0.9, momentum2=0.9) for kind in (MSVQX3, MSVQ))
    share_queues(x3, msvq)
    for method in (x3, msvq):
        method.queues["2"].load_state_dict(msvq.queues["1"].state_dict())
    x = embeddings(1, 2, 3, 4)
    torch.testing.assert_close(step(x3, x).value, step(msvq, x).value)


def test_msvq_with_equal_everything_is_ressl_after_a_step(tiny: Make, random_batch: Make) -> None:
    options = {"bn_splits": 1, "momentum1": 0.9}
    msvq, ressl = tiny(MSVQ, momentum2=0.9, **options).double(), tiny(ReSSL, **options).double()
    ressl.student.load_state_dict(msvq.student.state_dict())
    for method in (msvq, ressl):
        for p in method.student.parameters():  # the teachers are elsewhere than the student
            p.data += 0.01 * torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view_as(p)
    ressl.teachers[0].network.load_state_dict(msvq.teachers[0].network.state_dict())
    msvq.queues["2"].load_state_dict(msvq.queues["1"].state_dict())
    ressl.queues["1"].load_state_dict(msvq.queues["1"].state_dict())
    x1, x2 = random_batch(ressl).views
    for method, views in ((msvq, (x1, x2, x2, x2)), (ressl, (x1, x2))):
        optimiser = torch.optim.SGD(method.student.parameters(), lr=0.1)
        for _ in range(2):
            optimiser.zero_grad()
            loss = method(Batch(views, torch.arange(16), 1.0)).value
            loss.backward()
            optimiser.step()
        method.last = loss.detach()
    torch.testing.assert_close(msvq.last, ressl.last)
    for part in ("student", "teachers.0.network", "queues.1"):
        for mine, theirs in zip(
            msvq.get_submodule(part).parameters(), ressl.get_submodule(part).parameters(), strict=True
        ):
            torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(msvq.queues["1"].keys, ressl.queues["1"].keys)
    torch.testing.assert_close(msvq.queues["2"].keys, ressl.queues["1"].keys)


@pytest.mark.parametrize("kind", FAMILY)
def test_following_before_or_after_the_step_gives_the_same_losses(
    kind: type[MSVQ], tiny: Make, random_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny(kind, bn_splits=4)
    second = copy.deepcopy(first)
    optimisers = [torch.optim.SGD(m.student.parameters(), lr=0.05) for m in (first, second)]
    follows = [teacher.ema_update for teacher in second.teachers]
    for teacher in second.teachers:
        monkeypatch.setattr(teacher, "ema_update", lambda student: None)
    for seed in range(4):
        losses = []
        for method, optimiser in zip((first, second), optimisers, strict=True):
            optimiser.zero_grad()
            loss = method(random_batch(method, seed=seed)).value
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        for follow in follows:
            follow(second.student)
        assert losses[0] == losses[1]


def test_dagger_has_batch_norm_in_all_three_projectors(tiny: Make) -> None:
    method = tiny(MSVQDagger)
    for network in (method.student, *(teacher.network for teacher in method.teachers)):
        assert isinstance(network.projector[1], nn.BatchNorm1d)
        assert network.projector[0].bias is None
    assert not any(isinstance(layer, nn.BatchNorm1d) for layer in tiny(MSVQ).student.projector)


def test_dagger_with_neutral_batch_norm_is_the_plain_head(tiny: Make) -> None:
    dagger, plain = tiny(MSVQDagger).student.projector.eval(), tiny(MSVQ).student.projector
    plain[0].weight.data.copy_(dagger[0].weight.data)
    plain[0].bias.data.zero_()
    plain[2].load_state_dict(dagger[3].state_dict())
    features = torch.randn(5, dagger[0].in_features)
    torch.testing.assert_close(dagger(features), plain(features), rtol=1e-4, atol=1e-5)  # eps aside


def test_initial_loss_has_the_size_the_specification_gives(on_embeddings: Make) -> None:
    generator = torch.Generator().manual_seed(3)
    z1, z2 = (torch.randn(256, 128, dtype=torch.float64, generator=generator) for _ in range(2))
    method = on_embeddings(ReSSL, dim=128, queue_size=4096)
    labels = torch.zeros(256, dtype=torch.int64)
    independent = copy.deepcopy(method)(Batch((z1, z2), labels, 1.0)).value.item()
    equal = copy.deepcopy(method)(Batch((z1, z1), labels, 1.0)).value.item()
    assert independent == pytest.approx(8.7, abs=0.1)
    assert equal == pytest.approx(6.8, abs=0.2)
    assert info_nce(z1, z2, method.queues["1"].keys, temp=0.2).item() == pytest.approx(8.4, abs=0.1)


def test_warm_start_fades_a_contrastive_term_out(on_embeddings: Make) -> None:
    method = on_embeddings(MSVQ, dim=DIM, queue_size=SIZE, warm_start=0.5)
    x, keys = embeddings(1, 2, 3, 4), method.queues["1"].keys.clone()
    contrast = info_nce(x[1], x[2], keys, temp=0.2)
    relational = step(copy.deepcopy(method), x, progress=1.0).value
    for progress, w in ((0.0, 1.0), (0.125, 0.75), (0.25, 0.5), (0.5, 0.0), (0.9, 0.0)):
        value = step(copy.deepcopy(method), x, progress=progress).value
        torch.testing.assert_close(value, (1 - w) * relational + w * contrast)


def test_warm_start_is_off_by_default(on_embeddings: Make) -> None:
    method, x = on_embeddings(MSVQ, dim=DIM, queue_size=SIZE), embeddings(1, 2, 3, 4)
    start, end = (step(copy.deepcopy(method), x, progress=p).value for p in (0.0, 1.0))
    assert torch.equal(start, end)


def test_teacher_views_are_weak_unless_asked(tiny: Make) -> None:
    assert tiny(MSVQ).views == ("strong", "weak", "weak", "weak")
    assert tiny(MSVQ, teacher_augmentation="strong").views == ("strong",) * 4
    assert tiny(MSVQX5).views == ("strong", *("weak",) * 4)
    assert tiny(ReSSL).views == ("strong", "weak")


def test_teachers_get_their_momentum(tiny: Make) -> None:
    method = tiny(MSVQ, momentum1=0.9, momentum2=0.5)
    assert [teacher.momentum for teacher in method.teachers] == [0.9, 0.5]


@pytest.mark.parametrize(
    ("kind", "views"),
    [(MSVQ, [2, 1]), (MSVQDagger, [2, 1]), (MSV, [2]), (MQ, [1, 1]), (MSVQX3, [1, 2]), (MSVQX5, [2, 2]), (ReSSL, [1])],
)
def test_teachers_get_their_views(kind: type[MSVQ], views: list[int], tiny: Make, random_batch: Make) -> None:
    method = tiny(kind)
    method(random_batch(method))
    counts = [teacher.network.backbone.bn1.num_batches_tracked.item() for teacher in method.teachers]
    assert counts == views  # of MSVQ: X2 and X3, then X4
    assert method.student.backbone.bn1.num_batches_tracked == 1


def test_the_paper_is_the_default() -> None:
    defaults = {name: default for name, (_, default) in METHODS["msvq"].hyperparameters().items()}
    assert defaults == {
        "student_temp": 0.1,
        "teacher_temp": 0.04,
        "momentum1": 0.99,
        "momentum2": 0.95,
        "queue_size": 4096,
        "hidden_dim": 2048,
        "output_dim": 128,
        "projector_layers": 2,
        "projector_norm": "none",
        "bn_splits": 8,
        "shuffle": True,
        "teacher_augmentation": "weak",
        "warm_start": 0.0,
    }
    assert "momentum2" not in METHODS["ressl"].hyperparameters()
    assert "momentum2" not in METHODS["msv"].hyperparameters()


def test_a_method_without_forward_says_so() -> None:
    with pytest.raises(TypeError, match="does not define forward"):
        Method().forward(Batch((), torch.zeros(0), 0.0))


@pytest.mark.parametrize("kind", FAMILY)
def test_the_losses_soft_labels_are_the_soft_labels_by_the_papers_names(kind: type[MSVQ], on_embeddings: Make) -> None:
    method = on_embeddings(kind, dim=DIM, queue_size=SIZE, teacher_temp=0.06)
    keys = {int(b): queue.keys.clone() for b, queue in method.queues.items()}
    x = embeddings(1, 2, 3, 4, 5)
    soft_labels = step(method, x).soft_labels
    assert [soft_label.name for soft_label in soft_labels] == [f"view{label.view}" for label in kind.soft_label_specs]
    for soft_label, label in zip(soft_labels, kind.soft_label_specs, strict=True):
        torch.testing.assert_close(soft_label.z, l2_normalize(x[label.view]))  # the teachers start as the identity
        assert torch.equal(soft_label.keys, keys[label.queue])
        assert soft_label.temp == 0.06
