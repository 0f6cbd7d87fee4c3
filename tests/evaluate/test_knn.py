"""kNN against loops, and its limits (methods.md 2.1)."""

import math

import pytest
import torch
from torch import nn

from msvq.evaluate.features import extract_features
from msvq.evaluate.knn import knn_predict
from msvq.evaluate.neighbours import choose_queries, nearest
from msvq.model.backbones import ResNet


def slow_knn(bank: list[list[float]], labels: list[int], query: list[float], k: int, temp: float) -> int:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    found = sorted(((cosine(query, item), label) for item, label in zip(bank, labels, strict=True)), reverse=True)
    scores = [0.0] * 4
    for similarity, label in found[:k]:
        scores[label] += math.exp(similarity / temp)
    return scores.index(max(scores))


@pytest.mark.parametrize("k", [1, 5, 30, 60])
def test_votes_are_the_loops(k: int) -> None:
    bank, labels, queries = torch.randn(60, 5), torch.randint(4, (60,)), torch.randn(25, 5)
    slow = [slow_knn(bank.tolist(), labels.tolist(), q, k, 0.1) for q in queries.tolist()]
    assert knn_predict(bank, labels, queries, k=k, temp=0.1, num_classes=4).tolist() == slow


def test_a_cold_vote_for_a_duplicate_is_its_own_label() -> None:
    bank, labels = torch.randn(50, 8), torch.randint(4, (50,))
    assert torch.equal(knn_predict(bank, labels, bank, k=50, temp=1e-3, num_classes=4), labels)


def test_a_hot_vote_of_all_is_the_majority() -> None:
    bank, labels = torch.randn(50, 8), torch.tensor([1] * 20 + [0, 2, 3] * 10)
    voted = knn_predict(bank, labels, torch.randn(9, 8), k=50, temp=1e6, num_classes=4)
    assert voted.tolist() == [1] * 9


def test_scale_of_features_and_more_neighbours_than_there_are_do_not_matter() -> None:
    bank, labels, queries = torch.randn(30, 5), torch.randint(4, (30,)), torch.randn(9, 5)
    expected = knn_predict(bank, labels, queries, k=30, temp=0.1, num_classes=4)
    assert torch.equal(knn_predict(bank * 7, labels, queries * 0.1, k=30, temp=0.1, num_classes=4), expected)
    assert torch.equal(knn_predict(bank, labels, queries, k=200, temp=0.1, num_classes=4), expected)


def test_features_do_not_depend_on_batch_size_and_leave_the_encoder_alone() -> None:
    encoder: nn.Module = ResNet(width=2)
    images = torch.randint(256, (20, 32, 32, 3), dtype=torch.uint8).numpy()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    whole, parts = (
        extract_features(
            encoder,
            (images[start : start + size] for start in range(0, 20, size)),
            size=32,
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            device=torch.device("cpu"),
        )
        for size in (20, 7)
    )
    torch.testing.assert_close(whole, parts)
    assert encoder.training
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())


def test_queries_take_the_classes_in_turn() -> None:
    labels = torch.arange(100) % 5
    chosen = choose_queries(labels, 10)
    assert sorted(labels[chosen].tolist()) == sorted([0, 1, 2, 3, 4] * 2)
    assert torch.equal(chosen, choose_queries(labels, 10))


def test_nearest_comes_first() -> None:
    bank = torch.eye(4)
    query = torch.tensor([[0.1, 0.9, 0.5, 0.0]])
    assert nearest(bank, query, 3).tolist() == [[1, 2, 0]]
    assert nearest(bank, query, 2, own=torch.tensor([1])).tolist() == [[2, 0]]  # not the picture itself
