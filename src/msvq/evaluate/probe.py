"""The probe: L2-regularised multinomial logistic regression on features that are computed once.

Minimises  mean cross entropy + strength / 2 |W|²  over W [d, C] and biases [C], which are not penalised
(scikit-learn's C is 1 / (strength * N)). Each dimension is standardised by the mean and deviation of the pictures
that are learned from.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le, Lt, MinLen
from numpy import int64
from numpy.typing import NDArray
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.core.schema import Section
from msvq.evaluate.features import NOT_FINITE, Scores, scores
from msvq.evaluate.labels import held_out, usable_rows

NUMBERS = 2**18  # features read at once: the second product finds them in the cache
HISTORY = 20  # steps that L-BFGS remembers
CONSTANT = 1e-6  # a deviation below this share of the mean is rounding of fp32 features

Strength = Annotated[float, Gt(0), Le(1e6)]


class ProbeSettings(Section):
    """`strengths` are tried from the strongest to the weakest, each fit beginning where the last one ended.

    The one with the highest top-1 on a held-out share of each class is taken; of equals, the one with the least cross
    entropy there. Where no class has two pictures nothing can be held out, and `fallback` is taken.
    """

    strengths: Annotated[tuple[Strength, ...], MinLen(1)] = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1  # share of each class on which the strength is chosen
    fallback: Strength = 0.1
    max_iterations: Annotated[int, Ge(1)] = 500  # of a fit
    tolerance: Annotated[float, Gt(0)] = 1e-6  # largest entry of the gradient, preconditioned, at the end
    selection_tolerance: Annotated[float, Gt(0)] = 1e-4  # the same while a strength is chosen


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy on the test pictures, and how the strength was chosen."""

    scores: Scores
    strength: float
    validation: dict[float, float]  # top-1 in percent on the held-out part, for each strength; empty: `fallback`
    num_train: int
    num_test: int
    converged: bool  # whether the last fit reached `tolerance` within `max_iterations`
    guesses: NDArray[int64] = field(compare=False, repr=False)  # the class that each test picture is taken for


@dataclass(frozen=True)
class Standardise:
    """(x - mean) * scale, where a constant dimension has the scale 0."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Standardise":
        """By the mean and deviation of features [N, d]."""
        variance, mean = torch.var_mean(features.double(), 0, correction=0)
        varies = variance.sqrt() > CONSTANT * mean.abs()
        return cls(mean, torch.where(varies, variance.rsqrt(), 0.0))

    def __call__(self, features: Tensor) -> Tensor:
        """[N, d], as exact as `features`."""
        return (features - self.mean.to(features.dtype)).mul_(self.scale.to(features.dtype))


def objective(theta: Tensor, x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Value and gradient at theta [d + 1, C], the biases its last row, for x [N, d] and classes y [N]."""
    weight, bias = theta[:-1], theta[-1]
    value, gradient = strength / 2 * weight.double().square().sum(), torch.zeros_like(theta)
    rows = max(1, NUMBERS // x.shape[1])
    for part, classes in zip(x.split(rows), y[:, None].split(rows), strict=True):
        log_p = torch.log_softmax(torch.addmm(bias, part, weight), 1)
        value -= log_p.gather(1, classes).sum(dtype=torch.float64) / len(x)
        error = log_p.exp_().scatter_add_(1, classes, log_p.new_full((1, 1), -1.0).expand_as(classes))
        gradient[:-1].addmm_(part.T, error, alpha=1 / len(x))
        gradient[-1] += error.sum(0) / len(x)
    gradient[:-1] += strength * weight
    return value, gradient


class LogisticFit:
    """Fits of one set of pictures, x [N, d] and classes y [N], for several strengths.

    x in fp64 for a fit to the end: near the minimum the value changes by less than fp32 resolves, and the line search
    loses its way. In fp32, in half the time, for one that is near enough to tell strengths apart.

    Features are correlated, which plain L-BFGS pays for with thousands of iterations. So it runs on v where W = U s v:
    U holds the eigenvectors of the features' covariance, s² = 1 / (eigenvalue / C + strength), about the inverse of
    the curvature along them where no class is certain yet.
    """

    def __init__(self, x: Tensor, y: Tensor, num_classes: int) -> None:
        self.x, self.y = x, y
        self.theta = x.new_zeros(x.shape[1] + 1, num_classes)
        self.spectrum, self.basis = torch.linalg.eigh(x.T @ x / len(x))

    def fit(self, strength: float, *, tolerance: float, max_iterations: int) -> bool:
        """Move `theta` to the minimum from where it is; whether it got there."""
        num_classes = self.theta.shape[1]
        scale = (self.spectrum.clamp(min=0) / num_classes + strength).rsqrt()[:, None]
        bias_scale = num_classes**0.5
        v = torch.cat([self.basis.T @ self.theta[:-1] / scale, self.theta[-1:] / bias_scale]).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [v],
            max_iter=max_iterations,
            tolerance_grad=tolerance,
            max_eval=2 * max_iterations,
            tolerance_change=0.0,  # ends where the value stands still to the last digit
            history_size=HISTORY,
            line_search_fn="strong_wolfe",
        )

        def theta() -> Tensor:
            return torch.cat([self.basis @ (scale * v[:-1]), bias_scale * v[-1:]])

        @torch.no_grad()
        def closure() -> Tensor:
            value, gradient = objective(theta(), self.x, self.y, strength)
            v.grad = torch.cat([scale * (self.basis.T @ gradient[:-1]), bias_scale * gradient[-1:]])
            return value

        optimiser.step(closure)
        with torch.no_grad():
            self.theta = theta()
            closure()
        assert v.grad is not None
        return bool(v.grad.abs().max() <= tolerance)

    def logits(self, x: Tensor) -> Tensor:
        """[M, C] of standardised features [M, d]."""
        return torch.addmm(self.theta[-1], x, self.theta[:-1])


def probe(
    bank_features: Tensor,
    bank_labels: NDArray[int64],
    test_features: Tensor,
    test_labels: NDArray[int64],
    *,
    settings: ProbeSettings | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Learn from features [N, d] with labels [N], test on [M, d] with [M]; rows labelled -1 are left out.

    Classes that the bank does not hold cannot be named: their test pictures count as wrong.
    """
    settings = settings or ProbeSettings()
    rows, test_rows = usable_rows(bank_labels), np.flatnonzero(test_labels >= 0)
    classes, known = np.unique(bank_labels[rows], return_inverse=True)
    places = np.searchsorted(classes, test_labels[test_rows]).clip(max=len(classes) - 1)
    truth = torch.from_numpy(np.where(classes[places] == test_labels[test_rows], places, -1))
    bank, test, y = bank_features[rows].cpu(), test_features[test_rows].cpu(), torch.from_numpy(known)
    if not (bank.isfinite().all() and test.isfinite().all()):
        raise BadInput(NOT_FINITE)

    strength, validation, start = _choose(bank, y, len(classes), settings, seed)
    bank, test = bank.double(), test.double()
    standardise = Standardise.of(bank)
    final = LogisticFit(standardise(bank), y, len(classes))
    if start is not None:
        final.theta = start
    converged = final.fit(strength, tolerance=settings.tolerance, max_iterations=settings.max_iterations)
    logits = final.logits(standardise(test))
    guesses = classes[logits.argmax(1).numpy()]
    return ProbeResult(scores(logits, truth), strength, validation, len(rows), len(test_rows), converged, guesses)


def _choose(
    bank: Tensor, y: Tensor, num_classes: int, settings: ProbeSettings, seed: int
) -> tuple[float, dict[float, float], Tensor | None]:
    """The best strength, each one's top-1 on the held-out part, and the weights that the best led to."""
    rest, held = (torch.from_numpy(part) for part in held_out(y.numpy(), settings.held_out, seed))
    if not len(held):
        return settings.fallback, {}, None
    bank = bank.float()
    standardise = Standardise.of(bank[rest])
    fit, held_x = LogisticFit(standardise(bank[rest]), y[rest], num_classes), standardise(bank[held])
    validation: dict[float, float] = {}
    candidates = []
    for strength in sorted(settings.strengths, reverse=True):
        fit.fit(strength, tolerance=settings.selection_tolerance, max_iterations=settings.max_iterations)
        logits = fit.logits(held_x)
        validation[strength] = scores(logits, y[held]).top1
        candidates.append(
            (-validation[strength], float(F.cross_entropy(logits, y[held])), strength, fit.theta.double())
        )
    _, _, best, theta = min(candidates, key=lambda candidate: candidate[:2])
    return best, validation, theta
