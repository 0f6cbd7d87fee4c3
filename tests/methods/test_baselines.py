"""Every baseline: its loss against slow loops, and properties that it must have."""

import copy
import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.methods import Batch
from msvq.methods.byol import BYOL
from msvq.methods.cmsf import CMSF
from msvq.methods.co2 import CO2
from msvq.methods.mnn import MNN
from msvq.methods.mocov2 import MoCoV2
from msvq.methods.msf import MSF
from msvq.methods.msvq import ReSSL
from msvq.methods.nnclr import NNCLR
from msvq.methods.sce import SCE
from msvq.methods.simclr import SimCLR
from msvq.methods.simsiam import SimSiam
from msvq.methods.snclr import SNCLR
from msvq.methods.supervised import Supervised
from msvq.model.losses import (
    cross_view,
    info_nce,
    l2_normalize,
    multi_positive_nt_xent,
    negative_cosine,
    neighbour_contrast,
    nt_xent,
)
from msvq.model.resnet import ResNet

Make = Callable[..., Any]
N, DIM, SIZE = 5, 6, 12


def embeddings(num: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(N, DIM, dtype=torch.float64, generator=generator) for _ in range(num)]


def batch(*views: Tensor) -> Batch:
    return Batch(views, torch.arange(len(views[0])), 1.0)


def value(method: Any, *views: Tensor) -> float:
    """The loss of one step, leaving the method as it was."""
    return float(copy.deepcopy(method)(batch(*views)).value.detach())


def cosine(a: Tensor, b: Tensor) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return dot / math.hypot(*a.tolist()) / math.hypot(*b.tolist())


def slow_log_softmax(values: list[float], index: int) -> float:
    return values[index] - math.log(sum(math.exp(v) for v in values))


def slow_moco(q: Tensor, k: Tensor, keys: Tensor, temp: float) -> float:
    rows = [[cosine(q[i], k[i]) / temp, *(cosine(q[i], n) / temp for n in keys)] for i in range(len(q))]
    return -sum(slow_log_softmax(row, 0) for row in rows) / len(q)


def slow_distance(p: Tensor, group: list[Tensor]) -> float:
    return sum(2 - 2 * cosine(p, member) for member in group) / len(group)


def slow_nearest(z: Tensor, keys: Tensor, k: int) -> list[int]:
    return sorted(range(len(keys)), key=lambda j: -cosine(z, keys[j]))[:k]


class TestMoCoV2:
    def test_loss_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MoCoV2, dim=DIM, queue_size=SIZE), embeddings(2)
        assert value(method, x1, x2) == pytest.approx(slow_moco(x1, x2, method.queue.keys, 0.2))

    def test_symmetric_forms(self, on_embeddings: Make) -> None:
        x1, x2 = embeddings(2)
        method = on_embeddings(MoCoV2, dim=DIM, queue_size=SIZE)
        there = slow_moco(x1, x2, method.queue.keys, 0.2)
        back = slow_moco(x2, x1, method.queue.keys, 0.2)
        for form, expected, stored in (("mean", (there + back) / 2, N), ("sum", there + back, 2 * N)):
            method.symmetric = form
            stepped = copy.deepcopy(method)
            assert stepped(batch(x1, x2)).value.item() == pytest.approx(expected)
            assert stepped.queue.pointer == stored % SIZE
            torch.testing.assert_close(stepped.queue.keys[:N], l2_normalize(x2))
            if form == "sum":
                torch.testing.assert_close(stepped.queue.keys[N : 2 * N], l2_normalize(x1))

    def test_keys_become_negatives_only_afterwards(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MoCoV2, dim=DIM, queue_size=SIZE), embeddings(2)
        method(batch(x1, x2))
        torch.testing.assert_close(method.queue.keys[:N], l2_normalize(x2))

    def test_gradient_reaches_the_query_and_no_key(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MoCoV2, dim=DIM, queue_size=SIZE), embeddings(2)
        x1.requires_grad_()
        x2.requires_grad_()
        method(batch(x1, x2)).value.backward()
        assert x1.grad is not None
        assert x2.grad is None
        assert not method.queue.keys.requires_grad


class TestSimCLR:
    def test_nt_xent_by_loops(self, on_embeddings: Make) -> None:
        x1, x2 = embeddings(2)
        z, slow = torch.cat([x1, x2]), 0.0
        for a in range(2 * N):
            others = [b for b in range(2 * N) if b != a]
            row = [cosine(z[a], z[b]) / 0.2 for b in others]
            slow -= slow_log_softmax(row, others.index((a + N) % (2 * N))) / (2 * N)
        assert value(on_embeddings(SimCLR, dim=DIM), x1, x2) == pytest.approx(slow)

    def test_cross_view_by_loops(self, on_embeddings: Make) -> None:
        x1, x2 = embeddings(2)
        slow = 0.0
        for a, b in ((x1, x2), (x2, x1)):
            for i in range(N):
                slow -= slow_log_softmax([cosine(a[i], other) / 0.2 for other in b], i) / (2 * N)
        assert value(on_embeddings(SimCLR, dim=DIM, loss="cross-view"), x1, x2) == pytest.approx(slow)

    def test_four_views_by_loops(self, on_embeddings: Make) -> None:
        views, slow = embeddings(4), []
        for a, b in permutations(range(4), 2):
            for i in range(N):
                strangers = [cosine(views[a][i], view[j]) / 0.2 for view in views for j in range(N) if j != i]
                slow.append(-slow_log_softmax([cosine(views[a][i], views[b][i]) / 0.2, *strangers], 0))
        found = value(on_embeddings(SimCLR, dim=DIM, num_views=4), *views)
        assert found == pytest.approx(sum(slow) / len(slow))

    def test_several_views_are_nt_xent_where_they_are_two(self) -> None:
        x1, x2 = embeddings(2)
        both = multi_positive_nt_xent(torch.cat([x1, x2]), num_views=2, temp=0.2)
        assert both.item() == pytest.approx(nt_xent(x1, x2, temp=0.2).item())

    def test_limits(self) -> None:
        x1, x2 = embeddings(2)
        same = torch.ones(N, DIM)
        assert nt_xent(x1, x2, temp=0.2).item() == pytest.approx(nt_xent(x2, x1, temp=0.2).item())
        assert nt_xent(same, same, temp=0.2).item() == pytest.approx(math.log(2 * N - 1), rel=1e-6)
        assert cross_view(same, same, temp=0.2).item() == pytest.approx(math.log(N), rel=1e-6)
        assert nt_xent(x1[:1], x2[:1], temp=0.2).item() == pytest.approx(0)

    def test_gradient_flows_through_both_views(self, on_embeddings: Make) -> None:
        x1, x2 = (x.requires_grad_() for x in embeddings(2))
        on_embeddings(SimCLR, dim=DIM)(batch(x1, x2)).value.backward()
        assert x1.grad is not None
        assert x2.grad is not None


class TestBYOLAndSimSiam:
    def test_byol_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(BYOL, dim=DIM), embeddings(2)
        slow = sum(2 - 2 * cosine(x1[i], x2[i]) for i in range(N)) / N
        squared = (l2_normalize(x1) - l2_normalize(x2)).square().sum(1).mean().item()
        assert value(method, x1, x2) == pytest.approx(slow)
        assert slow == pytest.approx(squared)
        assert 0 <= slow <= 4
        assert value(method, x1, 3 * x1) == pytest.approx(0, abs=1e-12)
        assert value(method, x1, -x1) == pytest.approx(4)

    def test_byol_directions_are_averaged(self, tiny: Make, random_batch: Make) -> None:
        both = tiny(BYOL, bn_splits=1, shuffle=False).double()
        given = random_batch(both)
        expected = both_ways = 0.0
        for views in (given.views, given.views[::-1]):
            one = copy.deepcopy(both)
            one.symmetric = False
            expected += one(given._replace(views=views)).value.item() / 2
        both_ways = copy.deepcopy(both)(given).value.item()
        assert both_ways == pytest.approx(expected)

    def test_byol_gives_the_teacher_no_gradient(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(BYOL, dim=DIM, symmetric=False), embeddings(2)
        x2.requires_grad_()
        method(batch(x1, x2)).value.backward()
        assert x2.grad is None

    @pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
    def test_byol_momentum_may_rise_to_one(self, on_embeddings: Make, progress: float, momentum: float) -> None:
        method, views = on_embeddings(BYOL, dim=DIM, momentum=0.9, momentum_schedule="cosine"), embeddings(2)
        method(batch(*views)._replace(progress=progress))
        assert method.teacher.momentum == pytest.approx(momentum)

    def test_simsiam_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(SimSiam, dim=DIM), embeddings(2)
        slow = -sum(cosine(x1[i], x2[i]) for i in range(N)) / N
        assert value(method, x1, x2) == pytest.approx(slow)
        assert -1 <= slow <= 1
        byol = 2 + 2 * negative_cosine(x1, x2).item()
        assert slow == pytest.approx(byol / 2 - 1)

    def test_simsiam_target_stands_still(self) -> None:
        p, z = (x.requires_grad_() for x in embeddings(2))
        negative_cosine(p, z).backward()
        assert p.grad is not None
        assert z.grad is None

    def test_simsiam_options(self, tiny: Make) -> None:
        three = tiny(SimSiam, projector_layers=3, zero_init_residual=True)
        assert len([m for m in three.student.projector if isinstance(m, torch.nn.Linear)]) == 3
        assert three.student.projector[-1].weight is None
        assert (three.student.backbone.layer1[0].bn2.weight == 0).all()
        assert tiny(SimSiam).student.projector[-1].weight is not None


class TestMeanShift:
    def slow_msf(self, q: Tensor, z: Tensor, keys: Tensor, k: int) -> float:
        groups = [[z[i], *(keys[j] for j in slow_nearest(z[i], keys, k))] for i in range(N)]
        return sum(slow_distance(q[i], groups[i]) for i in range(N)) / N

    def test_msf_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MSF, dim=DIM, queue_size=SIZE, k=3), embeddings(2)
        keys = method.queue.keys
        there, back = self.slow_msf(x1, x2, keys, 3), self.slow_msf(x2, x1, keys, 3)
        assert value(method, x1, x2) == pytest.approx((there + back) / 2)
        method.symmetric = False
        assert value(method, x1, x2) == pytest.approx(there)

    def test_msf_without_neighbours_is_byol(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MSF, dim=DIM, queue_size=SIZE), embeddings(2)
        method.k = 0
        assert value(method, x1, x2) == pytest.approx(value(on_embeddings(BYOL, dim=DIM), x1, x2))

    def test_msf_enqueue_first_with_one_neighbour_is_one_direction_of_byol(self, on_embeddings: Make) -> None:
        method = on_embeddings(MSF, dim=DIM, queue_size=SIZE, k=1, enqueue_first=True, symmetric=False)
        x1, x2 = embeddings(2)
        byol = on_embeddings(BYOL, dim=DIM, symmetric=False)
        assert value(method, x1, x2) == pytest.approx(value(byol, x1, x2))
        method.k = 4
        found = method.targets(batch(x1, x2)).neighbours
        keys = method.queue.keys
        for i in range(N):  # four in all, the own target first
            torch.testing.assert_close(found[i], keys[slow_nearest(x2[i], keys, 4)])
            torch.testing.assert_close(found[i][0], l2_normalize(x2)[i])

    def test_cmsf_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2, x3) = on_embeddings(CMSF, dim=DIM, queue_size=SIZE, k=3, symmetric=False), embeddings(3)
        m, m2, slow = method.queue.keys, method.second_queue.keys, 0.0
        for i in range(N):
            unconstrained = [x2[i], *(m[j] for j in slow_nearest(x2[i], m, 3))]
            constrained = [x2[i], *(m[j] for j in slow_nearest(x3[i], m2, 3))]
            slow += (slow_distance(x1[i], unconstrained) + slow_distance(x1[i], constrained)) / 2 / N
        assert value(method, x1, x2, x3) == pytest.approx(slow)

    def test_cmsf_symmetric_swaps_the_first_two_views(self, on_embeddings: Make) -> None:
        method, (x1, x2, x3) = on_embeddings(CMSF, dim=DIM, queue_size=SIZE, k=3, symmetric=False), embeddings(3)
        expected = (value(method, x1, x2, x3) + value(method, x2, x1, x3)) / 2
        method.symmetric = True
        assert value(method, x1, x2, x3) == pytest.approx(expected)

    def test_cmsf_with_equal_views_and_queues_is_msf(self, on_embeddings: Make) -> None:
        cmsf = on_embeddings(CMSF, dim=DIM, queue_size=SIZE, k=3, symmetric=False)
        msf = on_embeddings(MSF, dim=DIM, queue_size=SIZE, k=3, symmetric=False)
        for queue in (cmsf.second_queue, msf.queue):
            queue.load_state_dict(cmsf.queue.state_dict())
        x1, x2 = embeddings(2)
        assert value(cmsf, x1, x2, x2) == pytest.approx(value(msf, x1, x2))

    def test_cmsf_second_view_changes_only_the_constrained_group(self, on_embeddings: Make) -> None:
        method, (x1, x2, x3) = on_embeddings(CMSF, dim=DIM, queue_size=SIZE, k=3), embeddings(3)
        first, second = method.targets(batch(x1, x2, x3)), method.targets(batch(x1, x2, -x3))
        assert torch.equal(first.unconstrained, second.unconstrained)
        assert not torch.equal(first.constrained, second.constrained)

    def test_cmsf_queues_hold_the_same_pictures(self, on_embeddings: Make) -> None:
        method, (x1, x2, x3) = on_embeddings(CMSF, dim=DIM, queue_size=SIZE), embeddings(3)
        method(batch(x1, x2, x3))
        torch.testing.assert_close(method.queue.keys[:N], l2_normalize(x2))
        torch.testing.assert_close(method.second_queue.keys[:N], l2_normalize(x3))
        assert torch.equal(method.queue.labels, method.second_queue.labels)

    def previous(self, on_embeddings: Make, **options: Any) -> Any:
        return on_embeddings(
            CMSF, dim=DIM, queue_size=SIZE, symmetric=False, second_target="previous", num_pictures=20, **options
        )

    def test_cmsf_of_the_previous_epoch_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = self.previous(on_embeddings, k=2, num_constrained=4), embeddings(2)
        where = torch.tensor([3, 1, 4, 15, 9])
        old = method.previous[where].clone()
        stepped = copy.deepcopy(method)
        loss = stepped(batch(x1, x2)._replace(indices=where)).value.item()
        m, m2, slow = stepped.queue.keys, stepped.second_queue.keys, 0.0  # stored first
        torch.testing.assert_close(m2[:N], old)
        for i in range(N):
            unconstrained = [m[j] for j in slow_nearest(x2[i], m, 2)]
            allowed = m[slow_nearest(old[i], m2, 4)]
            constrained = [allowed[j] for j in slow_nearest(x2[i], allowed, 2)]
            slow += (slow_distance(x1[i], unconstrained) + slow_distance(x1[i], constrained)) / 2 / N
        assert loss == pytest.approx(slow)
        torch.testing.assert_close(stepped.previous[where], l2_normalize(x2))  # for the next epoch

    def test_cmsf_without_a_constraint_has_equal_halves(self, on_embeddings: Make) -> None:
        method, (x1, x2) = self.previous(on_embeddings, k=3, num_constrained=SIZE), embeddings(2)
        targets = method.targets(batch(x1, x2)._replace(indices=torch.arange(N)))
        torch.testing.assert_close(targets.constrained, targets.unconstrained)

    def test_cmsf_of_the_previous_epoch_has_one_direction(self, tiny: Make) -> None:
        with pytest.raises(BadInput, match=r"set method.symmetric=false"):
            tiny(CMSF, second_target="previous")

    @pytest.mark.parametrize("kind", [MSF, CMSF, MNN])
    def test_gradient_reaches_the_query_alone(self, kind: Any, on_embeddings: Make) -> None:
        method = on_embeddings(kind, dim=DIM, queue_size=SIZE, symmetric=False)
        views = [x.requires_grad_() for x in embeddings(len(method.views))]
        method(batch(*views)).value.backward()
        assert views[0].grad is not None
        assert all(x.grad is None for x in views[1:])
        assert not method.queue.keys.requires_grad

    def test_msf_enqueue_first_has_one_direction(self, tiny: Make) -> None:
        with pytest.raises(BadInput, match=r"set method.symmetric=false"):
            tiny(MSF, enqueue_first=True)


def mixed(z: Tensor, n: Tensor, share: float) -> Tensor:
    return share * n + (1 - share) * z


class TestMNN:
    def slow(self, p: Tensor, z: Tensor, keys: Tensor, share: float) -> float:
        """One direction with k = 3, in the words of the paper."""
        total = 0.0
        for i in range(N):
            p_hat, z_hat = p[i] / p[i].norm(), z[i] / z[i].norm()
            total += 2 - 2 * float(p_hat @ z_hat)
            for j in slow_nearest(z[i], keys, 3):
                m = mixed(z_hat, keys[j] / keys[j].norm(), share)  # not normalised again
                total += (2 - 2 * float(p_hat @ m)) / 3
        return total / N

    def test_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MNN, dim=DIM, queue_size=SIZE, k=3), embeddings(2)
        method.predictor = torch.nn.Linear(DIM, DIM, bias=False).double()
        p1, p2 = (method.predictor(x).detach() for x in (x1, x2))
        for _ in range(2):  # the second queue holds embeddings of the first step
            keys, share = method.queue.keys, copy.deepcopy(method.random).uniform()
            there, back = self.slow(p1, x2, keys, share), self.slow(p2, x1, keys, share)
            assert 0 < share < 1
            assert method(batch(x1, x2)).value.item() == pytest.approx((there + back) / 2)  # the same λ both ways
        torch.testing.assert_close(method.queue.keys[:N], l2_normalize(x2))
        assert method.queue.pushed == 2 * N

    def test_one_direction_with_a_fixed_share(self, on_embeddings: Make) -> None:
        method = on_embeddings(MNN, dim=DIM, queue_size=SIZE, k=3, symmetric=False, neighbour_share=0.25)
        x1, x2 = embeddings(2)
        assert value(method, x1, x2) == pytest.approx(self.slow(x1, x2, method.queue.keys, 0.25))

    def test_limits(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(MNN, dim=DIM, queue_size=SIZE, k=3, symmetric=False), embeddings(2)
        byol = value(on_embeddings(BYOL, dim=DIM, symmetric=False), x1, x2)
        msf = on_embeddings(MSF, dim=DIM, queue_size=SIZE, k=3, symmetric=False)
        msf.queue.load_state_dict(method.queue.state_dict())
        method.neighbour_share = 0.0  # targets alone
        assert value(method, x1, x2) == pytest.approx(2 * byol)
        method.neighbour_share = 1.0  # neighbours alone: MSF's mean over k + 1, with another weight
        assert value(method, x1, x2) == pytest.approx(byol + (4 * value(msf, x1, x2) - byol) / 3)

    def test_the_parts_of_a_batch_have_one_share(self, on_embeddings: Make) -> None:
        method, views, shares = on_embeddings(MNN, dim=DIM, queue_size=SIZE, k=3), batch(*embeddings(2)), []
        for teachers, queues in ((False, True), (True, True), (False, False)):  # two parts, and the next step
            method.defer_updates(teachers=teachers, queues=queues)
            method(views)
            shares.append(method.share)
        assert shares[0] == shares[1] != shares[2]

    def test_renormalised_mixtures_are_of_embeddings_at_their_own_lengths(self, on_embeddings: Make) -> None:
        method = on_embeddings(MNN, dim=DIM, queue_size=N, k=3, symmetric=False, renormalise=True, neighbour_share=0.4)
        x1, x2, old = embeddings(3)
        old = old * torch.arange(1.0, N + 1)[:, None]
        method(batch(x1, old))
        slow = 0.0
        for i in range(N):
            near = [old[j] for j in slow_nearest(x2[i], old, 3)]
            slow += 2 - 2 * cosine(x1[i], x2[i]) + slow_distance(x1[i], [mixed(x2[i], n, 0.4) for n in near])
        assert value(method, x1, x2) == pytest.approx(slow / N)

    def test_a_share_is_drawn_for_each_step(self, on_embeddings: Make) -> None:
        method, views = on_embeddings(MNN, dim=DIM, queue_size=SIZE), embeddings(2)
        shares = []
        for _ in range(200):
            method.ema_update(batch(*views))
            shares.append(method.share)
        assert 0 <= min(shares) < 0.1 < 0.9 < max(shares) < 1
        assert 0.4 < sum(shares) / 200 < 0.6


class TestNNCLR:
    def test_by_loops(self, on_embeddings: Make) -> None:
        for k in (1, 3):
            method, (x1, x2) = on_embeddings(NNCLR, dim=DIM, queue_size=SIZE, k=k), embeddings(2)
            keys, slow = method.queue.keys, 0.0
            for p, z in ((x1, x2), (x2, x1)):
                found = [[keys[j] for j in slow_nearest(z[i], keys, k)] for i in range(N)]
                everyone = [n for group in found for n in group]
                for i in range(N):
                    for position, n in enumerate(found[i]):
                        slow -= slow_log_softmax([cosine(n, other) / 0.2 for other in p], i) / (4 * N)
                        row = [cosine(p[i], other) / 0.2 for other in everyone]
                        slow -= slow_log_softmax(row, i * k + position) / (4 * N)
            assert value(method, x1, x2) == pytest.approx(slow)

    def test_a_queue_of_the_batch_itself_is_cross_view_contrast(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(NNCLR, dim=DIM, queue_size=N), embeddings(2)
        method.queue.push(x2, torch.zeros(N, dtype=torch.int64))
        torch.testing.assert_close(method.compare(x1, x2), cross_view(x1, x2, temp=0.2))

    def test_original_form_has_one_term(self, on_embeddings: Make) -> None:
        p, n = embeddings(2)
        one = neighbour_contrast(p, l2_normalize(n)[:, None], temp=0.2, both_ways=False).item()
        slow = -sum(slow_log_softmax([cosine(n[i], other) / 0.2 for other in p], i) for i in range(N)) / N
        assert one == pytest.approx(slow)
        method = on_embeddings(NNCLR, dim=DIM, queue_size=SIZE, both_ways=False)
        keys, slow = method.queue.keys, 0.0
        for p, z in (embeddings(2), embeddings(2)[::-1]):
            for i in range(N):
                found = keys[slow_nearest(z[i], keys, 1)[0]]
                slow -= slow_log_softmax([cosine(found, other) / 0.2 for other in p], i) / (2 * N)
        assert value(method, *embeddings(2)) == pytest.approx(slow)

    def test_neighbours_are_of_the_embedding_and_logits_of_the_prediction(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(NNCLR, dim=DIM, queue_size=SIZE, both_ways=False), embeddings(2)
        method.predictor = torch.nn.Linear(DIM, DIM, bias=False).double()
        keys, slow = method.queue.keys, 0.0
        for x, z in ((x1, x2), (x2, x1)):
            p = method.predictor(x).detach()
            for i in range(N):
                found = keys[slow_nearest(z[i], keys, 1)[0]]
                slow -= slow_log_softmax([cosine(found, other) / 0.2 for other in p], i) / (2 * N)
        assert value(method, x1, x2) == pytest.approx(slow)

    def test_gradient_flows_through_the_prediction_alone(self, on_embeddings: Make) -> None:
        method, (p, z) = on_embeddings(NNCLR, dim=DIM, queue_size=SIZE), embeddings(2)
        p.requires_grad_()
        z.requires_grad_()
        method.compare(p, z).backward()
        assert p.grad is not None
        assert z.grad is None


class TestSNCLR:
    def slow(self, p: Tensor, z: Tensor, k: Tensor, neighbours: Tensor, temp: float) -> float:
        flat = [*k, *(n for group in neighbours for n in group)]
        num = neighbours.shape[1]
        total = 0.0
        for i in range(N):
            row = [cosine(p[i], c) / temp for c in flat]
            total -= slow_log_softmax(row, i)
            similarities = [cosine(z[i], n) for n in neighbours[i]]
            for j in range(num):
                weight = math.exp(slow_log_softmax(similarities, j))
                total -= weight * slow_log_softmax(row, N + i * num + j)
        return total / N

    def test_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, k=3, symmetric=False), embeddings(2)
        keys = method.queue.keys
        neighbours = torch.stack([keys[slow_nearest(x2[i], keys, 3)] for i in range(N)])
        assert value(method, x1, x2) == pytest.approx(self.slow(x1, x1, x2, neighbours, 0.2))
        method.predictor = torch.nn.Linear(DIM, DIM, bias=False).double()  # labels of the embedding, logits of its own
        p = method.predictor(x1).detach()
        assert value(method, x1, x2) == pytest.approx(self.slow(p, x1, x2, neighbours, 0.2))

    def test_authors_scale_is_twice_the_temperature_of_the_sum(self, on_embeddings: Make) -> None:
        x1, x2 = embeddings(2)
        for symmetric, factor in ((True, 4 * 0.2), (False, 2 * 0.2)):
            plain = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, symmetric=symmetric)
            scaled = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, symmetric=symmetric, scale_by_temp=True)
            scaled.queue.load_state_dict(plain.queue.state_dict())
            assert value(scaled, x1, x2) == pytest.approx(factor * value(plain, x1, x2))

    def test_labels(self, on_embeddings: Make) -> None:
        method, (x1, _) = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, k=4), embeddings(2)
        neighbours = l2_normalize(torch.randn(N * 4, DIM, dtype=torch.float64)).view(N, 4, DIM)
        a = method.soft_labels(x1, neighbours)
        torch.testing.assert_close(a.sum(1), torch.ones(N, dtype=torch.float64))  # beside the own key's 1
        assert (a.max(1).values / a.min(1).values <= math.e**2).all()
        method.threshold = True
        kept = method.soft_labels(x1, neighbours)
        assert torch.equal(kept > 0, a > 1 / 4)

    def test_gradient_also_flows_through_the_labels_unless_detached(self, on_embeddings: Make) -> None:
        method, (x1, _) = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, k=4), embeddings(2)
        neighbours = l2_normalize(torch.randn(N * 4, DIM, dtype=torch.float64)).view(N, 4, DIM)
        weights = torch.randn(N, 4, dtype=torch.float64)
        (method.soft_labels(x1.requires_grad_(), neighbours) * weights).sum().backward()
        assert x1.grad is not None
        assert x1.grad.abs().sum() > 0
        method.detach_labels = True
        assert not method.soft_labels(x1, neighbours).requires_grad

    def test_without_neighbours_it_is_contrast_over_the_batch(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(SNCLR, dim=DIM, queue_size=SIZE, symmetric=False), embeddings(2)
        method.k = 0
        rows = [slow_log_softmax([cosine(x1[i], k) / 0.2 for k in x2], i) for i in range(N)]
        assert value(method, x1, x2) == pytest.approx(-sum(rows) / N)


class TestSCE:
    def slow(self, q: Tensor, k: Tensor, keys: Tensor, *, share: float, masked: bool) -> float:
        total = 0.0
        for i in range(N):
            relations = [] if masked else [0.0]
            relations += [cosine(k[i], n) / 0.05 for n in keys]
            s = [math.exp(slow_log_softmax(relations, j)) for j in range(len(relations))]
            own = 0.0 if masked else s.pop(0)
            w = [share + (1 - share) * own, *((1 - share) * weight for weight in s)]
            assert sum(w) == pytest.approx(1)
            row = [cosine(q[i], k[i]) / 0.1, *(cosine(q[i], n) / 0.1 for n in keys)]
            total -= sum(weight * slow_log_softmax(row, j) for j, weight in enumerate(w)) / N
        return total

    @pytest.mark.parametrize("masked", [True, False])
    def test_by_loops(self, on_embeddings: Make, masked: bool) -> None:
        method = on_embeddings(SCE, dim=DIM, queue_size=SIZE, coefficient=0.3, symmetric=False, mask_own_key=masked)
        x1, x2 = embeddings(2)
        slow = self.slow(x1, x2, method.queue.keys, share=0.3, masked=masked)
        assert value(method, x1, x2) == pytest.approx(slow)

    def test_symmetric_is_the_mean_of_both_directions(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(SCE, dim=DIM, queue_size=SIZE), embeddings(2)
        keys = method.queue.keys
        there, back = (self.slow(*pair, keys, share=0.5, masked=True) for pair in ((x1, x2), (x2, x1)))
        assert value(method, x1, x2) == pytest.approx((there + back) / 2)

    def test_all_own_key_is_moco(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(SCE, dim=DIM, queue_size=SIZE, coefficient=1.0, symmetric=False), embeddings(2)
        assert value(method, x1, x2) == pytest.approx(slow_moco(x1, x2, method.queue.keys, 0.1))

    def test_it_decomposes_into_moco_ressl_and_a_ceiling(self, on_embeddings: Make) -> None:
        share = 0.3
        method = on_embeddings(SCE, dim=DIM, queue_size=SIZE, coefficient=share, symmetric=False)
        ressl = on_embeddings(ReSSL, dim=DIM, queue_size=SIZE, student_temp=0.1, teacher_temp=0.05)
        ressl.queues["1"].load_state_dict(method.queue.state_dict())
        x1, x2 = embeddings(2)
        keys = method.queue.keys
        negatives = (l2_normalize(x1) @ keys.T / 0.1).exp().sum(1)
        positive = ((l2_normalize(x1) * l2_normalize(x2)).sum(1) / 0.1).exp()
        ceiling = -(negatives / (positive + negatives)).log().mean().item()
        moco = info_nce(x1, x2, keys, temp=0.1).item()
        expected = share * moco + (1 - share) * value(ressl, x1, x2) + (1 - share) * ceiling
        assert value(method, x1, x2) == pytest.approx(expected)

    def test_zero_logit_form_tends_to_the_masked_one(self, on_embeddings: Make) -> None:
        masked = on_embeddings(SCE, dim=DIM, queue_size=SIZE, teacher_temp=1e-3, symmetric=False)
        zero = copy.deepcopy(masked)
        zero.mask_own_key = False
        x1, x2 = embeddings(2)
        assert value(zero, x1, x2) == pytest.approx(value(masked, x1, x2), rel=1e-6)


class TestCO2:
    def slow_consistency(self, q: Tensor, k: Tensor, keys: Tensor) -> float:
        total = 0.0
        for i in range(N):
            rows = [[cosine(z[i], n) / 0.05 for n in keys] for z in (q, k)]
            log_q, log_k = ([slow_log_softmax(row, j) for j in range(len(keys))] for row in rows)
            total += sum(math.exp(a) * (a - b) for a, b in zip(log_k, log_q, strict=True)) / N / 2
            total += sum(math.exp(b) * (b - a) for a, b in zip(log_k, log_q, strict=True)) / N / 2
        return total

    def test_by_loops(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(CO2, dim=DIM, queue_size=SIZE, alpha=0.7), embeddings(2)
        keys = method.queue.keys
        slow = slow_moco(x1, x2, keys, 0.2) + 0.7 * self.slow_consistency(x1, x2, keys)
        assert value(method, x1, x2) == pytest.approx(slow)

    def test_without_weight_it_is_moco(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(CO2, dim=DIM, queue_size=SIZE, alpha=0.0), embeddings(2)
        assert value(method, x1, x2) == pytest.approx(slow_moco(x1, x2, method.queue.keys, 0.2))

    def consistency(self, method: Any, q: Tensor, k: Tensor) -> float:
        return float(copy.deepcopy(method)(batch(q, k)).logs["consistency"])

    def test_the_term_is_zero_for_equals_symmetric_and_positive(self, on_embeddings: Make) -> None:
        method, (x1, x2) = on_embeddings(CO2, dim=DIM, queue_size=SIZE), embeddings(2)
        assert self.consistency(method, x1, x1) == pytest.approx(0, abs=1e-12)
        assert self.consistency(method, x1, x2) == pytest.approx(self.consistency(method, x2, x1))
        assert self.consistency(method, x1, x2) > 0

    def test_the_term_has_gradient(self, on_embeddings: Make) -> None:
        x1, x2 = embeddings(2)
        grads = []
        for alpha in (0.0, 1.0):
            method = on_embeddings(CO2, dim=DIM, queue_size=SIZE, alpha=alpha)
            torch.manual_seed(4)
            method.queue.keys = l2_normalize(torch.randn(SIZE, DIM, dtype=torch.float64))
            q, k = x1.clone().requires_grad_(), x2.clone().requires_grad_()
            method(batch(q, k)).value.backward()
            assert k.grad is None
            assert q.grad is not None
            grads.append(q.grad)
        assert not torch.allclose(grads[0], grads[1])

    def test_its_kl_with_entropy_is_ressl(self, on_embeddings: Make) -> None:
        ressl = on_embeddings(ReSSL, dim=DIM, queue_size=SIZE, student_temp=0.05, teacher_temp=0.05)
        x1, x2 = embeddings(2)
        log_q, log_k = (torch.log_softmax(l2_normalize(x) @ ressl.queues["1"].keys.T / 0.05, 1) for x in (x1, x2))
        kl = (log_k.exp() * (log_k - log_q)).sum(1).mean()
        entropy = -(log_k.exp() * log_k).sum(1).mean()
        assert value(ressl, x1, x2) == pytest.approx((kl + entropy).item())


class TestSupervised:
    def test_loss_is_cross_entropy_of_the_labels(self, tiny: Make, random_batch: Make) -> None:
        method = tiny(Supervised)
        given = random_batch(method)
        logits = copy.deepcopy(method).student(given.views[0])
        pairs = zip(logits.tolist(), given.labels.tolist(), strict=True)
        slow = -sum(slow_log_softmax(row, label) for row, label in pairs) / 16
        assert method(given).value.item() == pytest.approx(slow, rel=1e-5)

    def test_without_labels_it_is_refused(self) -> None:
        with pytest.raises(BadInput, match="supervised needs labels"):
            Supervised(ResNet(width=1))


@pytest.mark.parametrize("kind", [MSF, CMSF, NNCLR, SNCLR])
def test_more_neighbours_than_the_queue_holds_are_refused(kind: Any, tiny: Make) -> None:
    with pytest.raises(BadInput, match="the method's k 40 is larger than its queue_size 32"):
        tiny(kind, k=40)
