"""Each loss against a slow, obvious reference."""

import math

import pytest
import torch
from torch import Tensor

from msvq.model.losses import info_nce, l2_normalize, similarity


def slow_cosine(a: Tensor, b: Tensor) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a)) / math.sqrt(sum(float(y) ** 2 for y in b))


def test_similarity_by_loops() -> None:
    z, keys = torch.randn(3, 4, dtype=torch.float64), l2_normalize(torch.randn(5, 4, dtype=torch.float64))
    slow = torch.tensor([[slow_cosine(a, b) for b in keys] for a in z], dtype=torch.float64)
    torch.testing.assert_close(similarity(z, keys), slow)


def test_info_nce_by_loops() -> None:
    q, k, n = (torch.randn(3, 4, dtype=torch.float64) for _ in range(3))
    slow = 0.0
    for i in range(3):
        positive = math.exp(slow_cosine(q[i], k[i]) / 0.2)
        negatives = sum(math.exp(slow_cosine(q[i], n[j]) / 0.2) for j in range(3))
        slow -= math.log(positive / (positive + negatives)) / 3
    assert info_nce(q, k, l2_normalize(n), temp=0.2).item() == pytest.approx(slow, rel=1e-12)


def test_info_nce_without_negatives_is_zero() -> None:
    q, k = torch.randn(3, 4), torch.randn(3, 4)
    assert info_nce(q, k, torch.zeros(0, 4), temp=0.2).item() == 0


def test_info_nce_reaches_the_query_alone() -> None:
    q, k = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    info_nce(q, k, l2_normalize(torch.randn(5, 4)), temp=0.2).backward()
    assert q.grad is not None
    assert k.grad is None


def test_losses_are_in_fp32_even_inside_autocast() -> None:
    z, keys = torch.randn(4, 8), l2_normalize(torch.randn(16, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = similarity(z, keys)
        loss = info_nce(z.bfloat16(), z.bfloat16(), keys, temp=0.2)
    assert inside.dtype == torch.float32
    assert loss.dtype == torch.float32
    assert torch.equal(inside, similarity(z, keys))
