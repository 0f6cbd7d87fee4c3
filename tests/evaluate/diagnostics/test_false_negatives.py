"""The audit of the soft labels, against slow loops."""

import io
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from msvq.evaluate.diagnostics.false_negatives import Audit, top_entries, worst_pairs
from msvq.methods.base import SoftLabel
from msvq.model import relations
from msvq.model.losses import l2_normalize

N, Q, D, CLASSES = 12, 40, 6, 3


def make_soft_labels(
    *names: str, num: int = N, size: int = Q, temp: float = 0.1, seed: int = 0
) -> tuple[SoftLabel, ...]:
    """Random soft labels; odd and even ones have a queue each, whose slots agree in their labels, some without."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    labels[torch.rand(size, generator=generator) < 0.2] = -1
    queues = [l2_normalize(torch.randn(size, D, generator=generator)) for _ in range(2)]
    return tuple(
        SoftLabel(name, l2_normalize(torch.randn(num, D, generator=generator)), queues[i % 2], labels, temp)
        for i, name in enumerate(names)
    )


def make_labels(num: int = N, seed: int = 1) -> Tensor:
    labels = torch.randint(CLASSES, (num,), generator=torch.Generator().manual_seed(seed))
    labels[:2] = -1
    return labels


def distribution(soft_label: SoftLabel, row: int) -> list[float]:
    logits = [float(soft_label.z[row].double() @ key.double()) / soft_label.temp for key in soft_label.keys]
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def plain_entropy(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def slow_audit(soft_labels: tuple[SoftLabel, ...], labels: Tensor) -> dict[str, Any]:
    """`Audit.result`, sample by sample and entry by entry."""
    found: dict[str, list[int]] = {name: [] for name in (*(soft_label.name for soft_label in soft_labels), "all")}
    mass: dict[str, list[float]] = {name: [] for name in found}
    entropy: dict[str, list[float]] = {name: [] for name in found}
    classes, pushed, shares, divergences = [], [], [], []
    key_labels = soft_labels[0].labels.tolist()
    for row, label in enumerate(labels.tolist()):
        soft = {soft_label.name: distribution(soft_label, row) for soft_label in soft_labels}
        for name, p in soft.items():
            entropy[name].append(plain_entropy(p))
        mean = [sum(values) / len(soft) for values in zip(*soft.values(), strict=True)]
        entropy["all"].append(plain_entropy(mean))
        for i, p in enumerate(soft.values()):
            for q in list(soft.values())[i + 1 :]:
                middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
                divergences.append(plain_entropy(middle) - (plain_entropy(p) + plain_entropy(q)) / 2)
        if label == -1:
            continue
        classes.append(label)
        union: set[int] = set()
        for name, p in soft.items():
            top = sorted(range(len(p)), key=lambda slot: -p[slot])[:5]
            matching = {slot for slot in top if key_labels[slot] == label}
            union |= matching
            found[name].append(len(matching))
            mass[name].append(sum(x for x, other in zip(p, key_labels, strict=True) if other == label))
        found["all"].append(len(union))
        mass["all"].append(sum(x for x, other in zip(mean, key_labels, strict=True) if other == label))
        pushed.append(key_labels.count(label))
        shares.append(key_labels.count(label) / sum(other >= 0 for other in key_labels))

    def average(values: list[Any]) -> float:
        return float(sum(values) / len(values))

    def of_class(values: list[Any], label: int) -> float:
        return average([value for value, own in zip(values, classes, strict=True) if own == label])

    return {
        **{n: {"found": average(found[n]), "mass": average(mass[n]), "entropy": average(entropy[n])} for n in found},
        "one_hot": {"found": 0.0, "mass": 0.0, "entropy": 0.0, "pushed_away": average(pushed)},
        "same_class_share": average(shares),
        "disagreement": average(divergences) if divergences else None,
        "num_samples": len(labels),
        "num_labelled": len(classes),
        "by_class": {
            str(label): {
                "samples": classes.count(label),
                "found": {name: of_class(found[name], label) for name in found},
                "mass": {name: of_class(mass[name], label) for name in found},
            }
            for label in sorted(set(classes))
        },
    }


def audited(*batches: tuple[tuple[SoftLabel, ...], Tensor]) -> dict[str, Any]:
    audit = Audit()
    for soft_labels, labels in batches:
        audit.add(soft_labels, labels)
    return audit.result()


def flat(result: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested results as one level of numbers, to be compared; -1 stands for None."""
    numbers: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            numbers |= flat(value, f"{prefix}{key}.")
        else:
            numbers[prefix + key] = -1 if value is None else value
    return numbers


@pytest.mark.parametrize("names", [("view2",), ("view2", "view3"), ("view2", "view3", "view4")])
def test_the_audit_is_what_slow_loops_count(names: tuple[str, ...]) -> None:
    soft_labels, labels = make_soft_labels(*names), make_labels()
    expected = flat(slow_audit(soft_labels, labels))
    assert flat(audited((soft_labels, labels))) == pytest.approx(expected, rel=1e-4)
    assert expected["all.found"] > 0 and expected["all.mass"] > 0


def test_batches_are_averaged_sample_by_sample() -> None:
    first = make_soft_labels("view2", "view3", num=12), make_labels(12)
    second = make_soft_labels("view2", "view3", num=5), make_labels(5, seed=9)
    both = tuple(a._replace(z=torch.cat([a.z, b.z])) for a, b in zip(first[0], second[0], strict=True))
    expected = flat(audited((both, torch.cat([first[1], second[1]]))))
    assert flat(audited(first, second)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_the_count(seed: int) -> None:
    soft_labels = make_soft_labels("view2", "view3", "view4", num=30, seed=seed)
    result = audited((soft_labels, make_labels(30)))
    views = [result[name]["found"] for name in ("view2", "view3", "view4")]
    assert all(0 <= found <= 5 for found in views)
    assert max(views) <= result["all"]["found"] <= sum(views)
    for of_class in result["by_class"].values():
        each = [of_class["found"][name] for name in ("view2", "view3", "view4")]
        assert max(each) <= of_class["found"]["all"] <= sum(each)
    assert all(0 <= result[name]["mass"] <= 1 for name in ("view2", "view3", "view4", "all"))
    assert all(0 <= result[name]["entropy"] <= math.log(Q) for name in ("view2", "view3", "view4", "all"))
    assert 0 <= result["disagreement"] <= math.log(2)


def test_identical_views_find_together_what_one_finds() -> None:
    (soft_label,) = make_soft_labels("view2")
    result = audited(
        ((soft_label, soft_label._replace(name="view3"), soft_label._replace(name="view4")), make_labels())
    )
    assert result["all"] == pytest.approx(result["view2"]) and result["view4"] == result["view2"]
    assert result["disagreement"] == pytest.approx(0, abs=1e-6)


def test_a_single_soft_label_is_all() -> None:
    result = audited((make_soft_labels("view2"), make_labels()))
    assert result["all"] == result["view2"]
    assert result["disagreement"] is None


def test_unknown_labels_never_match() -> None:
    soft_labels = make_soft_labels("view2", "view3")
    empty = tuple(
        soft_label._replace(labels=torch.full((Q,), -1)) for soft_label in soft_labels
    )  # as before anything is stored
    result = audited((empty, make_labels()))
    assert result["all"]["found"] == result["view2"]["mass"] == result["one_hot"]["pushed_away"] == 0
    assert result["same_class_share"] is None
    unlabelled = audited((soft_labels, torch.full((N,), -1)), (empty, torch.full((N,), -1)))
    assert unlabelled["view2"]["found"] is unlabelled["all"]["mass"] is None
    assert unlabelled["num_samples"] == 2 * N and unlabelled["num_labelled"] == 0 and unlabelled["by_class"] == {}
    assert unlabelled["view2"]["entropy"] == pytest.approx(result["view2"]["entropy"])
    assert unlabelled["disagreement"] == pytest.approx(result["disagreement"])


def test_a_perfect_soft_label() -> None:
    keys = torch.eye(8).repeat_interleave(2, 0)  # two entries of each of eight classes
    soft_label = SoftLabel("view2", torch.eye(8), keys, torch.arange(8).repeat_interleave(2), 0.01)
    result = audited(((soft_label,), torch.arange(8)))
    assert result["view2"] == pytest.approx({"found": 2, "mass": 1, "entropy": math.log(2)})
    assert result["one_hot"]["pushed_away"] == 2
    assert result["same_class_share"] == pytest.approx(1 / 8)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    soft_labels, labels = make_soft_labels("view2", "view3", "view4"), make_labels()
    whole, top, worst = (
        audited((soft_labels, labels)),
        top_entries(soft_labels[0]),
        worst_pairs(soft_labels[0], labels, 4),
    )
    monkeypatch.setitem(relations.PIECE, "cpu", 3 * Q + 1)
    assert relations.rows_at_once(soft_labels[0].keys) == 3
    assert flat(audited((soft_labels, labels))) == pytest.approx(flat(whole))
    assert torch.equal(top_entries(soft_labels[0])[0], top[0])
    assert [pair[:2] for pair in worst_pairs(soft_labels[0], labels, 4)] == [pair[:2] for pair in worst]


def test_a_long_queue_is_never_held_as_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(z: Tensor, keys: Tensor) -> Tensor:
        seen.append(len(z))
        return z @ keys.T

    monkeypatch.setattr("msvq.evaluate.diagnostics.false_negatives.similarity", watched)
    soft_labels = make_soft_labels("view2", "view3", num=40, size=65_536)
    assert audited((soft_labels, make_labels(40)))["num_samples"] == 40
    assert max(seen) * 65_536 <= 2**20 and sum(seen) == 2 * 40


def test_the_state_survives_a_save_in_the_middle() -> None:
    first, second = (
        (make_soft_labels("view2", "view3"), make_labels()),
        (make_soft_labels("view2", "view3", seed=5), make_labels()),
    )
    audit, resumed = Audit(), Audit()
    audit.add(*first)
    file = io.BytesIO()
    torch.save(audit.state_dict(), file)
    audit.add(*second)  # must not change what was saved
    file.seek(0)
    resumed.add(*second)  # is forgotten
    resumed.load_state_dict(torch.load(file, weights_only=True))
    resumed.add(*second)
    assert resumed.result() == audit.result() == audited(first, second)
    audit.reset()
    assert audit.result() == Audit().result()


def test_results_are_json_and_an_empty_audit_has_no_soft_label() -> None:
    assert "view2" in json.loads(json.dumps(audited((make_soft_labels("view2"), make_labels())), allow_nan=False))
    empty = json.loads(json.dumps(audited(((), make_labels())), allow_nan=False))
    assert "all" not in empty and empty["num_samples"] == 0 and empty["disagreement"] is None


def test_odd_queues_do_not_crash() -> None:
    small = make_soft_labels("view2", size=3)
    result = audited((small, make_labels()))
    assert result["view2"]["found"] == pytest.approx(slow_audit(small, make_labels())["view2"]["found"])
    assert top_entries(small[0])[0].shape == (N, 3)
    long, other, short = *make_soft_labels("view2", "view3"), make_soft_labels("view4", size=7)[0]
    mixed = audited(((short, long, other), make_labels()))
    pair = audited(((long, other), make_labels()))
    assert mixed["all"] == pytest.approx(pair["all"]) and mixed["disagreement"] == pytest.approx(pair["disagreement"])
    assert mixed["view4"]["found"] is not None


def test_nothing_is_learned_from_and_precision_is_full() -> None:
    soft_labels = make_soft_labels("view2", "view3")
    halved = tuple(s._replace(z=s.z.bfloat16().requires_grad_()) for s in soft_labels)
    exact = tuple(s._replace(z=s.z.bfloat16().float()) for s in soft_labels)
    with torch.autocast("cpu", torch.bfloat16):
        result = audited((halved, make_labels()))
        slots, weights = top_entries(halved[0])
    assert flat(result) == pytest.approx(flat(audited((exact, make_labels()))), rel=1e-5)
    assert weights.dtype == torch.float32 and not weights.requires_grad
    assert torch.equal(slots, top_entries(exact[0])[0])


def test_top_entries_are_the_heaviest() -> None:
    (soft_label,) = make_soft_labels("view2")
    slots, weights = top_entries(soft_label, 4)
    for row in range(N):
        p = distribution(soft_label, row)
        expected = sorted(range(Q), key=lambda slot: -p[slot])[:4]
        assert slots[row].tolist() == expected
        assert weights[row].tolist() == pytest.approx([p[slot] for slot in expected], rel=1e-4)


def test_worst_pairs_are_the_heaviest_of_different_classes() -> None:
    (soft_label,), labels = make_soft_labels("view2"), make_labels()
    candidates = []
    for row, label in enumerate(labels.tolist()):
        p = distribution(soft_label, row)
        wrong = [
            slot for slot, other in enumerate(soft_label.labels.tolist()) if -1 not in (label, other) and label != other
        ]
        if wrong:
            slot = max(wrong, key=lambda slot: p[slot])
            candidates.append((row, slot, p[slot]))
    expected = sorted(candidates, key=lambda pair: -pair[2])
    found = worst_pairs(soft_label, labels, 5)
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected[:5]]
    assert [pair[2] for pair in found] == pytest.approx([pair[2] for pair in expected[:5]], rel=1e-4)
    assert len(worst_pairs(soft_label, labels, 100)) == N - 2
    assert worst_pairs(soft_label, torch.full((N,), -1), 5) == []
