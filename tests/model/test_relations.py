"""Relations without their matrices, against the matrices: exact for any size of queue and of piece."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from msvq.model import relations as module
from msvq.model.losses import info_nce, l2_normalize, similarity
from msvq.model.queue import Queue
from msvq.model.relations import Relation, by_rows, cross_entropy, entropy, relation, relations

N, DIM, SIZE = 6, 5, 37


def some(num: int, seed: int = 0) -> Tensor:
    return l2_normalize(torch.randn(num, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture(params=[1, N * 3, N * 10, 10**6])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How much of the matrix is held at a time: less than a column, some columns, all of it."""
    monkeypatch.setitem(module.PIECE, "cpu", request.param)
    held: int = request.param
    return held


def slow_cross_entropy(p: Tensor, s: Tensor) -> float:
    """By loops over plain numbers."""
    rows: zip[tuple[list[float], list[float]]] = zip(p.tolist(), s.tolist(), strict=True)
    return -sum(pj * math.log(sj) for a, b in rows for pj, sj in zip(a, b, strict=True)) / len(p)


def test_cross_entropy_and_entropy_by_loops(piece: int) -> None:
    z, q, keys = some(N, 1), some(N, 2), some(SIZE, 3)
    p, s = torch.softmax(z @ keys.T / 0.07, 1), torch.softmax(q @ keys.T / 0.2, 1)
    mine, theirs = relation(z, keys, 0.07), relation(q, keys, 0.2)
    assert cross_entropy(mine, theirs).item() == pytest.approx(slow_cross_entropy(p, s), rel=1e-12)
    assert entropy(mine).item() == pytest.approx(slow_cross_entropy(p, p), rel=1e-9)


def test_both_pieces_are_those_of_the_softmax(piece: int) -> None:
    z, keys = some(N, 1), some(SIZE, 3)
    for temp, found in zip((0.05, 0.5), relations(z, keys, 0.05, 0.5), strict=True):
        logits = z @ keys.T / temp
        torch.testing.assert_close(found.logsumexp, logits.logsumexp(1))
        torch.testing.assert_close(found.mean_key, logits.softmax(1) @ keys)
        assert found.temp == temp


def test_gradient_is_that_of_the_matrix(piece: int) -> None:
    keys, p = some(SIZE, 3), relation(some(N, 1), some(SIZE, 3), 0.05)
    dense = torch.softmax(some(N, 1) @ keys.T / 0.05, 1)
    x, y = (torch.randn(N, DIM, dtype=torch.float64) for _ in range(2))
    y.copy_(x)
    x.requires_grad_()
    y.requires_grad_()
    cross_entropy(p, relation(l2_normalize(x), keys, 0.1)).backward()
    F.cross_entropy(l2_normalize(y) @ keys.T / 0.1, dense).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_gradient_agrees_with_finite_differences(piece: int) -> None:
    keys, p = some(SIZE, 3), relation(some(N, 1), some(SIZE, 3), 0.05)

    def loss(x: Tensor) -> Tensor:
        first, second = relations(l2_normalize(x), keys, 0.1, 0.3)
        return cross_entropy(p, first) + 0.5 * second.logsumexp.sum()

    assert torch.autograd.gradcheck(loss, (torch.randn(N, DIM, dtype=torch.float64, requires_grad=True),))


def test_no_gradient_reaches_the_soft_label() -> None:
    x, y = some(N, 1).requires_grad_(), some(N, 2).requires_grad_()
    cross_entropy(relation(x, some(SIZE, 3), 0.1), relation(y, some(SIZE, 3), 0.1)).backward()
    assert x.grad is None
    assert y.grad is not None


@pytest.mark.parametrize("temp", [1e-3, 1e3])
def test_any_temperature_stays_finite(temp: float, piece: int) -> None:
    z, keys = some(N, 1).float(), some(SIZE, 3).float()
    found = relation(z, keys, temp)
    torch.testing.assert_close(found.logsumexp, (z @ keys.T / temp).logsumexp(1))
    assert torch.isfinite(found.mean_key).all()


def test_an_empty_queue_has_no_mass() -> None:
    found = relation(some(N, 1), some(0), 0.1)
    assert (found.logsumexp == float("-inf")).all()
    assert (found.mean_key == 0).all()


def test_entropy_of_equal_and_of_certain_rows() -> None:
    keys = torch.eye(8)
    assert entropy(relation(l2_normalize(torch.ones(2, 8)), keys, 0.1)).item() == pytest.approx(math.log(8))
    assert entropy(relation(keys, keys, 1e-3)).item() == pytest.approx(0)


def test_info_nce_is_cross_entropy_with_the_own_key_in_front(piece: int) -> None:
    q, k, keys = some(N, 1), some(N, 2), some(SIZE, 3)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ keys.T], 1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(N, dtype=torch.int64))
    torch.testing.assert_close(info_nce(3 * q, 2 * k, keys, temp=0.2), expected)


def test_relations_are_in_fp32_inside_autocast() -> None:
    z, keys = some(N, 1).float(), some(SIZE, 3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = relation(z, keys, 0.1)
    assert torch.equal(inside.logsumexp, relation(z, keys, 0.1).logsumexp)


def test_by_rows_gives_the_same_sum_and_gradient(piece: int) -> None:
    keys = some(SIZE, 3)

    def spread(a: Tensor, b: Tensor, keys: Tensor) -> Tensor:
        return ((a @ keys.T).softmax(1) * (b @ keys.T)).square().sum()

    x, y = some(N, 1).requires_grad_(), some(N, 1).requires_grad_()
    whole, pieces = spread(x, some(N, 2), keys), by_rows(spread, keys, y, some(N, 2))
    torch.testing.assert_close(pieces, whole)
    whole.backward()
    pieces.backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_nearest_keys_do_not_depend_on_the_piece(piece: int) -> None:
    queue, z = Queue(SIZE, DIM), some(N, 1).float()
    assert torch.equal(queue.nearest(z, 4), similarity(z, queue.keys).topk(4, dim=1).indices)


class Largest(TorchDispatchMode):
    """Sees every tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(made) if isinstance(one, Tensor)]
        self.most = max([self.most, *sizes])
        return made


def test_the_matrix_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.PIECE, "cpu", N * 100)
    z, keys = some(N, 1).requires_grad_(), some(10_000, 3)
    with Largest() as seen:  # type: ignore[no-untyped-call]
        found: Relation = relation(z, keys, 0.1)
        found.logsumexp.sum().backward()
    assert 0 < seen.most <= N * 100  # the matrix would be N * 10,000
    assert z.grad is not None
