"""The watch for a collapse: what was measured in real runs, and toy runs that are trained here."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from msvq.data.store import ImageSplit
from msvq.evaluate.diagnostics.collapse import Verdict, watch_for_collapse
from msvq.evaluate.diagnostics.health import measure_health
from msvq.methods import METHODS, Batch, Method
from msvq.methods.base import Loss
from msvq.model.heads import projector
from msvq.model.losses import l2_normalize
from msvq.model.teacher import Backbone, Network

Numbers = tuple[float, float, float, float]  # spread and rank of the features, and of the embeddings

UNTRAINED: Numbers = (0.116, 18.1, 0.100, 12.1)
UNTRAINED_SIMSIAM: Numbers = (0.116, 18.1, 0.108, 19.7)
UNTRAINED_NARROW: Numbers = (0.080, 6.8, 0.083, 7.5)

# As measured on `patterns` (see the module's docstring), one after the other.
SOUND: dict[str, list[Numbers]] = {
    "msvq": [UNTRAINED, (0.545, 42.0, 0.314, 4.8), (0.575, 39.9, 0.412, 4.8)],
    "msvq, young": [UNTRAINED, (0.312, 55.8, 0.210, 31.0), (0.324, 57.2, 0.172, 25.2), (0.307, 55.6, 0.160, 23.6)],
    "msvq without warm_start": [UNTRAINED, (0.320, 56.4, 0.072, 8.8), (0.323, 56.5, 0.075, 8.9)],
    "ressl": [UNTRAINED, (0.562, 38.1, 0.332, 4.4), (0.556, 39.4, 0.368, 4.6)],
    "mocov2": [UNTRAINED, (0.584, 23.7, 0.278, 2.7), (0.573, 31.1, 0.369, 3.3)],
    "mocov2, narrow": [
        UNTRAINED_NARROW,
        (0.535, 13.6, 0.073, 1.7),
        (0.569, 13.3, 0.134, 1.9),
        (0.589, 12.8, 0.199, 2.1),
    ],
    "simclr": [UNTRAINED, (0.652, 22.3, 0.942, 14.2), (0.665, 23.2, 0.989, 14.5)],
    "simclr, base_lr 10": [UNTRAINED, (0.581, 9.9, 0.683, 6.1), (0.627, 10.3, 0.847, 6.7)],
    "byol": [UNTRAINED, (0.394, 43.2, 0.797, 23.0), (0.415, 41.5, 0.826, 21.4)],
    "simsiam": [
        UNTRAINED_SIMSIAM,
        (0.202, 35.9, 0.347, 72.7),
        (0.529, 18.3, 0.909, 30.1),
        (0.547, 15.0, 0.884, 22.6),
        (0.513, 18.0, 0.811, 29.2),
    ],
    "supervised": [(0.116, 18.1, 0.129, 3.2), (0.375, 17.3, 0.539, 2.7), (0.645, 25.3, 0.913, 3.2)],
    "supervised, two classes": [(0.116, 18.1, 0.13, 1.4), (0.5, 12.0, 0.9, 1.05)],
}
COLLAPSED: dict[str, list[Numbers]] = {
    "byol without predictor": [UNTRAINED_NARROW, (0.613, 9.5, 0.027, 1.8), (0.617, 9.2, 0.023, 1.7)],
    "simsiam without stop-gradient": [(0.080, 6.8, 0.080, 8.3), (0.210, 7.3, 0.048, 2.3)],
    "its end": [(0.080, 6.8, 0.080, 8.3), (0.210, 7.3, 0.048, 2.3), (0.162, 4.0, 0.090, 2.1)],
    "msvq, base_lr 10": [UNTRAINED, (0.291, 11.7, 0.006, 1.1), (0.489, 11.8, 0.014, 1.1)],
    "mocov2, base_lr 10": [UNTRAINED, (0.229, 6.1, 0.017, 1.2), (0.514, 2.3, 0.120, 1.1)],
    "byol, base_lr 10": [UNTRAINED, (0.573, 1.4, 0.233, 1.0)],
    "msvq, base_lr 30": [UNTRAINED, (0.0006, 1.0, 0.0, 1.0), (0.071, 2.1, 0.0004, 1.0)],
    "simsiam, base_lr 30": [UNTRAINED_SIMSIAM, (0.003, 1.1, 0.0003, 1.0)],
    "trained on one picture": [UNTRAINED, (0.286, 59.5, 0.014, 2.2)],
    "a constant encoder": [UNTRAINED, (0.0, 1.0, 0.0, 1.0)],
    "a constant encoder throughout": [(0.0, 1.0, 0.0, 1.0), (0.0, 1.0, 0.0, 1.0)],
    "one line": [UNTRAINED, (0.99, 1.02, 0.99, 1.02)],
}
COLLAPSING: dict[str, list[Numbers]] = {
    "byol without predictor": [UNTRAINED, (0.431, 32.5, 0.101, 5.0), (0.452, 30.6, 0.096, 4.4)],
    "simsiam without stop-gradient": [UNTRAINED_SIMSIAM, (0.342, 22.8, 0.327, 14.5), (0.319, 18.7, 0.206, 8.4)],
    "msvq without warm_start, large rate": [
        (0.080, 6.8, 0.083, 7.5),
        (0.322, 27.0, 0.030, 3.0),
        (0.327, 27.4, 0.030, 2.9),
    ],
    "with a larger rate": [UNTRAINED_SIMSIAM, (0.489, 8.5, 0.665, 7.9), (0.463, 6.0, 0.476, 3.8)],
    "byol, base_lr 10": [UNTRAINED, (0.573, 1.4, 0.233, 1.0), (0.425, 5.8, 0.226, 1.5)],
}


def lines(numbers: list[Numbers]) -> list[dict[str, Any]]:
    """As in the log."""
    names = ("feature_spread", "rank", "embedding_spread", "embedding_rank")
    return [
        {"kind": "eval", "epoch": epoch, **dict(zip(names, values, strict=True))}
        for epoch, values in enumerate(numbers)
    ]


def alarm(history: list[dict[str, Any]]) -> Verdict:
    judged = watch_for_collapse(history)
    assert judged is not None
    return judged


def state(history: list[dict[str, Any]]) -> str | None:
    judged = watch_for_collapse(history)
    return None if judged is None else judged.state


@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarm_on_sound_runs_at_any_time(name: str) -> None:
    history = lines(SOUND[name])
    for end in range(2, len(history)):
        assert state(history[:end]) in (None, "unknown"), end
    assert watch_for_collapse(history) is None


@pytest.mark.parametrize("name", COLLAPSED)
def test_collapsed_runs_are_recognised(name: str) -> None:
    judged = alarm(lines(COLLAPSED[name]))
    assert judged.state == "collapsed" and judged.advice


@pytest.mark.parametrize("name", COLLAPSING)
def test_collapsing_runs_are_recognised(name: str) -> None:
    judged = alarm(lines(COLLAPSING[name]))
    assert (
        judged.state == "collapsing" and "rank" in judged.sentence and any("base_lr" in line for line in judged.advice)
    )


def test_too_early_to_judge() -> None:
    assert state([]) == "unknown"
    assert state(lines([UNTRAINED])) == "unknown"
    assert state([{"knn_top1": 30.0}, {"knn_top1": 40.0}]) == "unknown"
    assert state([{"rank": None}, {"rank": None, "feature_spread": None}]) == "unknown"


def test_what_is_not_a_number_is_broken() -> None:
    nan = float("nan")
    for broken in (nan, math.inf):
        judged = alarm(lines([UNTRAINED, (0.5, broken, 0.5, 5.0)]))
        assert judged.state == "collapsed" and "base_lr" in judged.advice[0] and "fp32" in judged.advice[1]
    for values in ((nan,) * 4, UNTRAINED):  # nor does one that is over crash anything
        assert watch_for_collapse(lines([values, (nan,) * 4, (0.5, 30.0, 0.5, 5.0)])) is None


def test_advice_depends_on_what_is_seen() -> None:
    same_from_the_start = alarm(lines(COLLAPSED["a constant encoder throughout"]))
    assert len(same_from_the_start.advice) == 1 and "msvq doctor" in same_from_the_start.advice[0]
    assert "direction" in alarm(lines(COLLAPSED["one line"])).sentence


def test_a_log_without_spread_or_embeddings_is_judged_by_what_it_has() -> None:
    untrained = {"feature_std": 0.0092, "rank": 18.1}
    assert watch_for_collapse([untrained, {"feature_std": 0.045, "rank": 40.0}]) is None
    assert state([untrained, {"feature_std": 0.00002, "rank": 1.0}]) == "collapsed"
    assert state([{"rank": 18.1}, {"rank": 1.1}]) == "collapsed"
    assert watch_for_collapse([{}, {"rank": 12.0, "feature_spread": 0.4}]) is None


SMALL: dict[str, Any] = {"hidden_dim": 64, "output_dim": 32}
QUEUE: dict[str, Any] = {**SMALL, "queue_size": 256, "bn_splits": 2}


class OnlyAgree(Method):
    """Two views shall agree, and nothing keeps all pictures from agreeing: what predictor and stop-gradient prevent."""

    def __init__(self, backbone: Backbone, *, hidden_dim: int = 64, output_dim: int = 32) -> None:
        super().__init__()
        self.student = Network(backbone, projector(backbone.feature_dim, hidden_dim, output_dim))
        self.views = ("strong", "strong")

    def forward(self, batch: Batch) -> Loss:
        z1, z2 = (l2_normalize(self.student(x)) for x in batch.views)
        return Loss(-(z1 * z2).sum(1).mean())


class SmallBackbone(nn.Sequential):
    """Pictures [N, 3, 12, 12] to features [N, 48]: quick enough for a test, and built like the real one."""

    feature_dim = 48

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for num_in, num_out in ((3, 12), (12, 24), (24, 48)):
            layers += [nn.Conv2d(num_in, num_out, 3, 2, 1, bias=False), nn.BatchNorm2d(num_out), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Toy:
    """Small pictures of stripes, views that shift and fade them, and a few steps of plain SGD."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        angle, phase = torch.rand(400, 1, 1) * math.pi, torch.rand(400, 1, 1) * 6
        y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
        waves = torch.sin(x * angle.cos() + y * angle.sin() + phase)
        self.x = waves[:, None] * torch.randn(400, 3, 1, 1) + 0.5 * torch.randn(400, 3, 1, 1)
        self.pictures = ImageSplit(np.zeros((400, 12, 12, 3), np.uint8), np.full(400, -1, np.int64))

    def view(self, x: Tensor) -> Tensor:
        x = torch.roll(x, (int(torch.randint(12, ())), int(torch.randint(12, ()))), (2, 3))
        return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.2 * torch.randn_like(x)

    @torch.no_grad()
    def features(self, encoder: nn.Module, pictures: ImageSplit) -> Tensor:
        encoder.eval()
        found: Tensor = encoder(self.x)
        encoder.train()
        return found

    def train(self, kind: type[Method], *, rate: float, steps: int = 40, **options: Any) -> list[dict[str, float]]:
        """Three measurements: untrained, halfway, at the end."""
        method = kind(SmallBackbone(), **options)
        measure = partial(measure_health, method, pictures=self.pictures, features=self.features)
        learning = [parameter for parameter in method.parameters() if parameter.requires_grad]
        optimiser = torch.optim.SGD(learning, lr=rate, momentum=0.9, weight_decay=5e-4)
        history = [measure()]
        for step in range(steps):
            x = self.x[torch.randint(400, (64,))]
            batch = Batch(tuple(self.view(x) for _ in method.views), torch.full((64,), -1), step / steps)
            optimiser.zero_grad()
            method(batch).value.backward()
            optimiser.step()
            if (step + 1) % (steps // 2) == 0:
                history.append(measure())
        return history


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simsiam", {**SMALL, "predictor_dim": 16}),
        ("simclr", SMALL),
        ("byol", {**SMALL, "bn_splits": 2}),
        ("mocov2", QUEUE),
        ("msvq", {**QUEUE, "warm_start": 0.5}),
    ],
)
def test_a_sound_toy_run_raises_no_alarm(name: str, options: dict[str, Any]) -> None:
    history = Toy().train(METHODS[name], rate=0.05, **options)
    assert [state(history[:end]) for end in (2, 3)] == [None, None], history


def test_toy_runs_that_collapse_are_called_so() -> None:
    nothing_to_keep_apart = Toy().train(OnlyAgree, rate=1.0, **SMALL)
    too_fast = Toy().train(METHODS["msvq"], rate=5.0, **QUEUE)
    for history in (nothing_to_keep_apart, too_fast):
        assert state(history) == "collapsed", history
