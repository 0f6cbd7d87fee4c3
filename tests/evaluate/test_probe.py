"""The probe against scikit-learn, and its limits."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.evaluate import probe as module
from msvq.evaluate.probe import LogisticFit, ProbeSettings, Standardise, objective, probe

Labelled = tuple[Tensor, NDArray[np.int64]]


def clouds(num: int, *, seed: int, classes: int = 4, dim: int = 12, spread: float = 1.0) -> Labelled:
    """Correlated, uncentred features of overlapping classes, the same for every seed but the draws."""
    fixed, generator = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    centres, mix = torch.randn(classes, dim, generator=fixed), torch.randn(dim, dim, generator=fixed)
    labels = torch.arange(num) % classes
    features = (centres[labels] + spread * torch.randn(num, dim, generator=generator)) @ mix + 5
    return features, labels.numpy()


@pytest.mark.parametrize(("strength", "spread"), [(1, 2), (1e-2, 2), (1e-4, 2), (1e-2, 0.3)])  # the last: separable
def test_the_minimum_is_scikit_learns(strength: float, spread: float) -> None:
    features, labels = clouds(200, seed=0, spread=spread)
    x, y = Standardise.of(features)(features.double()), torch.from_numpy(labels)
    fit = LogisticFit(x, y, 4)
    assert fit.fit(strength, tolerance=1e-7, max_iterations=500)
    reference = LogisticRegression(C=1 / (strength * len(x)), tol=1e-9, max_iter=20_000).fit(x.numpy(), labels)
    theirs = torch.from_numpy(np.vstack([reference.coef_.T, reference.intercept_]))
    ours, best = (float(objective(theta, x, y, strength)[0]) for theta in (fit.theta, theirs))
    assert ours == pytest.approx(best, rel=1e-6)
    torch.testing.assert_close(fit.theta[:-1], theirs[:-1], rtol=1e-2, atol=1e-3)
    other, _ = clouds(500, seed=1, spread=spread)
    predicted = fit.logits(Standardise.of(features)(other.double())).argmax(1)
    x_other = Standardise.of(features)(other.double()).numpy()
    assert (predicted.numpy() == reference.predict(x_other)).all()


def test_the_gradient_is_the_objectives() -> None:
    x, y = torch.randn(15, 3, dtype=torch.float64), torch.randint(4, (15,))
    theta = torch.randn(4, 4, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(
        lambda t: torch.nn.functional.cross_entropy(x @ t[:-1] + t[-1], y) + 0.15 * t[:-1].square().sum(), theta
    )
    value, gradient = objective(theta, x, y, 0.3)
    torch.testing.assert_close(gradient, expected)
    direct = torch.nn.functional.cross_entropy(x @ theta[:-1] + theta[-1], y) + 0.15 * theta[:-1].square().sum()
    torch.testing.assert_close(value, direct)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, test = clouds(300, seed=0, spread=2), clouds(200, seed=1, spread=2)
    whole = probe(*bank, *test)
    monkeypatch.setattr(module, "NUMBERS", 12 * 7)  # seven rows at a time
    parts = probe(*bank, *test)
    assert parts == whole


def test_the_probe_takes_the_strength_that_validates_best() -> None:
    bank, test = clouds(120, seed=0, spread=3), clouds(400, seed=1, spread=3)
    result = probe(*bank, *test)
    assert set(result.validation) == set(ProbeSettings().strengths)
    assert result.validation[result.strength] == max(result.validation.values())
    assert result.converged
    assert result.num_train == 120 and result.num_test == 400
    alone = probe(*bank, *test, settings=ProbeSettings(strengths=(result.strength,)))
    assert alone.scores == result.scores  # the refit does not depend on how the strength was found


def test_an_easy_case_is_solved_and_top5_covers_fewer_classes() -> None:
    result = probe(*clouds(200, seed=0, spread=0.1), *clouds(200, seed=1, spread=0.1))
    assert result.scores == (100.0, 100.0)


def test_the_probe_is_deterministic_and_leaves_its_input_alone() -> None:
    (features, labels), test = clouds(120, seed=0), clouds(50, seed=1)
    before = features.clone()
    assert probe(features, labels, *test, seed=4) == probe(features, labels, *test, seed=4)
    assert torch.equal(features, before)


def test_scale_shift_and_constant_dimensions_do_not_matter() -> None:
    (bank, known), (test, truth) = clouds(200, seed=0, spread=2), clouds(200, seed=1, spread=2)
    expected = probe(bank, known, test, truth)
    padded = [torch.cat([part * 100 + 7, torch.full((len(part), 2), 0.1)], 1) for part in (bank, test)]
    padded[1][:, -1] = 1e6  # constant in the bank, so what the test pictures have there is unknown
    found = probe(padded[0], known, padded[1], truth)
    assert found.strength == expected.strength
    assert found.scores.top1 == pytest.approx(expected.scores.top1, abs=0.51)  # one picture, by rounding


def test_standardised_features_have_mean_0_and_deviation_1() -> None:
    features, _ = clouds(100, seed=0)
    x = Standardise.of(features)(features.double())
    torch.testing.assert_close(x.mean(0), torch.zeros(12, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(12, dtype=torch.float64))


def test_rows_without_a_label_are_left_out() -> None:
    (bank, known), (test, truth) = clouds(100, seed=0), clouds(80, seed=1)
    expected = probe(bank, known, test, truth)
    noise, unknown = torch.randn(30, 12) * 50, np.full(30, -1, np.int64)
    found = probe(
        torch.cat([bank, noise]), np.concatenate([known, unknown]), torch.cat([test, noise]), np.append(truth, unknown)
    )
    assert found == expected


def test_a_class_that_the_bank_does_not_hold_is_never_right() -> None:
    (bank, known), (test, truth) = clouds(200, seed=0, spread=0.1), clouds(200, seed=1, spread=0.1)
    known_rows = known != 2
    found = probe(bank[known_rows], known[known_rows], test, truth)
    assert found.scores == (75.0, 75.0)


def test_one_picture_of_each_class_falls_back_to_the_stated_strength() -> None:
    (bank, known), test = clouds(4, seed=0, spread=0.1), clouds(100, seed=1, spread=0.1)
    result = probe(bank, known, *test)
    assert result.strength == ProbeSettings().fallback
    assert result.validation == {}
    assert result.scores.top1 == 100


def test_what_cannot_be_learned_is_said() -> None:
    (bank, known), test = clouds(40, seed=0), clouds(20, seed=1)
    with pytest.raises(BadInput, match="no labelled picture"):
        probe(bank, np.full(40, -1, np.int64), *test)
    with pytest.raises(BadInput, match="one class"):
        probe(bank, np.zeros(40, np.int64), *test)
    with pytest.raises(BadInput, match="test"):
        probe(bank, known, test[0], np.full(20, -1, np.int64))
    with pytest.raises(BadInput, match="not all finite"):
        probe(bank.index_fill(0, torch.tensor([3]), float("nan")), known, *test)
