"""kNN against loops, and its limits."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.patterns import make_patterns
from msvq.data.store import ImageSplit
from msvq.evaluate import knn
from msvq.evaluate.diagnostics.gallery import choose_queries
from msvq.evaluate.features import extract_features
from msvq.evaluate.knn import knn_accuracy, knn_predict, knn_scores, last_bank, nearest, nearest_others, suitable_k
from msvq.model import relations
from msvq.model.resnet import ResNet


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


@pytest.mark.parametrize(
    ("classes", "each", "k"),
    [(10, 5000, 200), (100, 500, 200), (200, 500, 200), (20, 128, 128), (10, 32, 32), (3, 1, 1)],
)
def test_as_many_as_a_class_has_vote_and_at_most_as_many_as_in_the_paper(classes: int, each: int, k: int) -> None:
    labels = np.arange(classes).repeat(each)
    assert suitable_k(np.concatenate([labels, np.full(1000, -1)])) == k


def reference_scores(bank: Tensor, labels: Tensor, queries: Tensor, *, k: int, temp: float) -> Tensor:
    """By sorting everything, in fp64; relative to the nearest."""
    a, b = (z.double() / z.double().norm(dim=1, keepdim=True) for z in (queries, bank))
    similarities, order = (a @ b.T).sort(dim=1, descending=True)
    weights = ((similarities[:, :k] - similarities[:, :1]) / temp).exp()
    votes = nn.functional.one_hot(labels[order[:, :k]], 10) * weights[..., None]
    total: Tensor = votes.sum(1)
    return total


@pytest.mark.parametrize(
    ("num", "asked", "k"),
    [
        *((1, 3, 1), (50, 3, 200), (64, 9, 64), (200, 20, 7)),  # k = N, N < k, groups only just not worth while
        *((32, 5, 1), (1000, 1, 1), (1003, 150, 1), (1003, 150, 31), (2007, 70, 62), (6401, 65, 200)),  # groups
    ],
)
@pytest.mark.parametrize("rows", [1, 64])
def test_votes_are_those_of_sorting_everything(
    num: int, asked: int, k: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn, "MIN_ROWS", rows)  # several chunks, the last one shorter
    monkeypatch.setattr(knn, "SIMILARITIES", 1)
    bank, labels, queries = torch.randn(num, 16), torch.randint(10, (num,)), torch.randn(asked, 16)
    expected = reference_scores(bank, labels, queries, k=k, temp=0.1)
    scores = knn_scores(bank, labels, queries, k=k, temp=0.1, num_classes=10)
    torch.testing.assert_close(scores, expected.float(), rtol=1e-4, atol=1e-5)
    voted = knn_predict(bank, labels, queries, k=k, temp=0.1, num_classes=10)
    assert torch.equal(voted, expected.argmax(1))


def test_padding_of_the_last_groups_is_no_neighbour() -> None:
    bank = -torch.rand(1001, 4) - 0.1  # every similarity is negative, so a zero would win
    labels, queries = torch.randint(10, (1001,)), torch.rand(7, 4) + 0.1
    expected = reference_scores(bank, labels, queries, k=20, temp=0.1)
    scores = knn_scores(bank, labels, queries, k=20, temp=0.1, num_classes=10)
    torch.testing.assert_close(scores, expected.float(), rtol=1e-4, atol=1e-5)


def test_equal_similarities_count_k_times() -> None:
    scores = knn_scores(torch.ones(1000, 4), torch.arange(1000) % 10, torch.ones(3, 4), k=20, temp=0.1, num_classes=10)
    assert scores.sum(1).tolist() == [20.0] * 3


def test_no_queries_no_classes() -> None:
    bank, labels = torch.randn(30, 4), torch.zeros(30, dtype=torch.int64)
    assert knn_predict(bank, labels, torch.zeros(0, 4), k=5, temp=0.1, num_classes=3).shape == (0,)


def test_similarities_are_fp32_inside_autocast_and_need_no_gradient() -> None:
    bank, labels, queries = torch.randn(500, 16), torch.randint(10, (500,)), torch.randn(40, 16)
    expected = knn_scores(bank, labels, queries, k=10, temp=0.1, num_classes=10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = knn_scores(bank.requires_grad_(), labels, queries, k=10, temp=0.1, num_classes=10)
    assert torch.equal(scores, expected) and not scores.requires_grad


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


def features_of(encoder: nn.Module, images: NDArray[np.uint8], precision: str = "fp32") -> Tensor:
    options: dict[str, Any] = {"size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3, "device": torch.device("cpu")}
    return extract_features(encoder, np.array_split(images, 4), precision=precision, **options)


def test_bf16_features_leave_knn_where_it_is() -> None:
    # Of 400 pictures one is 0.25 points, so 0.1 points cannot be seen here. Rounding turns the few pictures whose two
    # best classes are all but equal, either way: 8 of 400, 2 points, are allowed (seen: up to 4), and the features are
    # compared too.
    (bank, known), (test, truth) = make_patterns(1000, seed=0), make_patterns(400, seed=1)
    encoder = ResNet(width=4)
    network = nn.Sequential(encoder, nn.Linear(encoder.feature_dim, 10))
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for step in range(30):  # a little training, so that there is an accuracy to lose
        chosen = torch.arange(100) + step % 10 * 100
        view = torch.from_numpy(bank)[chosen].permute(0, 3, 1, 2) / 127.5 - 1
        loss = nn.functional.cross_entropy(network(view), torch.from_numpy(known)[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    accuracy, features = {}, {}
    for precision in ("fp32", "bf16"):
        features[precision] = features_of(encoder, test, precision)
        accuracy[precision] = knn_accuracy(
            features_of(encoder, bank, precision), features[precision], (known, truth), k=20, temp=0.1
        )
    assert features["bf16"].dtype == torch.float32
    assert not torch.equal(features["fp32"], features["bf16"])  # autocast did something
    assert nn.functional.cosine_similarity(features["fp32"], features["bf16"]).min() > 0.999
    assert accuracy["fp32"] > 30  # chance is 10
    assert abs(accuracy["fp32"] - accuracy["bf16"]) <= 100 * 8 / 400 + 1e-4


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_keeps_its_mode_when_a_batch_fails(training: bool) -> None:
    def batches() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros((2, 32, 32, 3), np.uint8)
        raise OSError("the disk is gone")

    encoder = ResNet(width=2).train(training)
    with pytest.raises(OSError, match="disk"):
        extract_features(encoder, batches(), size=32, mean=(0.5,) * 3, std=(0.25,) * 3, device=torch.device("cpu"))
    assert encoder.training is training


def test_queries_take_the_classes_in_turn() -> None:
    labels = torch.arange(100) % 5
    chosen = choose_queries(labels, 10)
    assert sorted(labels[chosen].tolist()) == sorted([0, 1, 2, 3, 4] * 2)
    assert torch.equal(chosen, choose_queries(labels, 10))


def test_nearest_comes_first() -> None:
    bank = torch.eye(4)
    query = torch.tensor([[0.1, 0.9, 0.5, 0.0]])
    assert nearest(bank, query, 3)[1].tolist() == [[1, 2, 0]]
    assert nearest(bank, query, 2, own=torch.tensor([1]))[1].tolist() == [[2, 0]]  # not the picture itself
    assert nearest(bank, query, 6, own=torch.tensor([1]))[1].tolist() == [[2, 0, 3]]  # nor to fill up


def test_neighbours_are_by_cosine_and_never_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "rows_at_once", lambda bank: 4)  # so that rows come in portions
    features = torch.randn(15, 4) * torch.rand(15, 1)
    cosines, found = nearest_others(features, 6)
    for row in range(15):
        slow = torch.nn.functional.cosine_similarity(features[row], features, dim=1)
        expected = sorted((i for i in range(15) if i != row), key=lambda i: -float(slow[i]))[:6]
        assert found[row].tolist() == expected
        torch.testing.assert_close(cosines[row], slow[expected])
    for few in (0, 1, 3):
        cosines, found = nearest_others(features[:few], 6)
        assert cosines.shape == found.shape == (few, max(0, few - 1))
    for odd in (torch.ones(9, 4), torch.full((9, 4), float("nan"))):
        cosines, found = nearest_others(odd, 6)
        assert cosines.isfinite().all() and not (found == torch.arange(9)[:, None]).any()


def test_neighbours_of_many_are_found_without_a_matrix_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    held, topk = list[int](), torch.Tensor.topk

    def counted(similarities: Tensor, k: int, dim: int) -> Any:
        held.append(similarities.numel())
        return topk(similarities, k, dim)

    monkeypatch.setattr(torch.Tensor, "topk", counted)
    nearest_others(torch.randn(3000, 4), 6)
    assert len(held) > 1 and max(held) <= relations.PIECE["cpu"]


def numbered(num: int) -> ImageSplit:
    """Pictures that hold their number, of four classes in turn."""
    images = np.zeros((num, 8, 8, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(num)
    return ImageSplit(images, np.arange(num, dtype=np.int64) % 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["bank", "queries"])
def test_of_features_that_are_not_finite_there_is_no_accuracy(value: float, part: str) -> None:
    bank, queries, known = torch.randn(20, 4), torch.randn(9, 4), np.arange(20, dtype=np.int64) % 4
    assert 0 <= knn_accuracy(bank, queries, (known, known[:9]), k=5, temp=0.1) <= 100
    (bank if part == "bank" else queries)[3, 2] = value
    assert math.isnan(knn_accuracy(bank, queries, (known, known[:9]), k=5, temp=0.1))


def test_more_pictures_vote_when_a_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = numbered(40)
    assert last_bank(bank, None) is bank
    assert last_bank(bank, 10) is bank
    monkeypatch.setattr(knn, "LAST_BANK", 20)
    assert last_bank(bank, None) is bank  # where nobody has asked for fewer
    assert len(last_bank(bank, 10)) == 20
    assert len(last_bank(bank, 30)) == 30  # never fewer than before
    kept = last_bank(bank, 10)
    assert (kept.take(range(20))[:, 0, 0, 0] % 4 == kept.labels).all()
