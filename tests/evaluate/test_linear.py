"""Linear evaluation: the protocol, the frozen backbone, an easy case."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.augment import ViewSettings
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate import features
from msvq.evaluate import linear as module
from msvq.evaluate.features import EvalContext, Scores
from msvq.evaluate.labels import stratified
from msvq.evaluate.linear import Classifier, LinearSettings, linear_evaluation, new_head
from msvq.evaluate.protocols import PROTOCOLS
from msvq.model.backbones import BackboneSettings
from msvq.model.resnet import ResNet

CPU = torch.device("cpu")
COLOURS = np.array([(250, 10, 10), (10, 250, 10), (10, 10, 250)])


def coloured(num: int, *, seed: int, size: int = 16, classes: Sequence[int] = (0, 1, 2)) -> ImageSplit:
    """Noisy pictures of three colours."""
    rng = np.random.default_rng(seed)
    labels = np.asarray(classes, np.int64)[np.arange(num) % len(classes)]
    images = COLOURS[labels][:, None, None] + rng.normal(0, 25, (num, size, size, 3))
    return ImageSplit(images.clip(0, 255).astype(np.uint8), labels)


def colours(num: int = 60, *, num_test: int = 45, test_size: int = 16) -> ImageDataset:
    bank, test = coloured(num, seed=0), coloured(num_test, seed=1, size=test_size)
    return ImageDataset("colours", bank, bank, test, ("red", "green", "blue"), (0.4,) * 3, (0.3,) * 3, 16, test_size)


def tiny() -> ResNet:
    return ResNet((1, 1, 1, 1), width=4)


def judged(encoder: nn.Module, data: ImageDataset, display: Display | None = None) -> EvalContext:
    return EvalContext(encoder, BackboneSettings(), data, CPU, "fp32", display or Display())


def evaluate(encoder: nn.Module, data: ImageDataset, rows: Any = None, *, seed: int = 0, **settings: Any) -> Classifier:
    chosen = LinearSettings(**{"epochs": 3, "batch_size": 16, **settings})
    return linear_evaluation(judged(encoder, data), chosen, rows, seed)


def test_sizes_that_differ_are_told_and_can_be_made_equal() -> None:
    said = io.StringIO()
    display, data = Display(Console(file=said, width=500)), colours(test_size=24)
    linear_evaluation(judged(tiny(), data, display), LinearSettings(epochs=1, batch_size=16), None, 0)
    assert "learns on crops of 16 px" in said.getvalue() and "--set size=24" in said.getvalue()
    said.truncate(0)
    seen: list[int] = []
    encoder = tiny()
    encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[-1]))
    linear_evaluation(judged(encoder, data, display), LinearSettings(epochs=1, size=24), None, 0)
    assert set(seen) == {24} and "learns on crops" not in said.getvalue()


def test_the_defaults_are_the_papers() -> None:
    settings = LinearSettings()
    assert (settings.epochs, settings.batch_size, settings.weight_decay) == (100, 256, 0)
    assert settings.view.crop_area == (0.08, 1.0) and settings.view.flip == 0.5
    assert (settings.view.jitter_p, settings.view.grey_p, settings.view.blur_p) == (0, 0, 0)
    assert module.SEED == PROTOCOLS["linear"].first_seed == 1337


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 1.0), (4900, (1 + 0.5**0.5) / 2), (9800, 0.5), (19599, (math.pi / 19600 / 2) ** 2)]
)
def test_the_rate_is_a_cosine_per_iteration_without_warm_up(step: int, rate: float) -> None:
    found = LinearSettings().learning_rate(step, steps_per_epoch=196)  # CIFAR-10: 195 whole batches and a part
    assert found == pytest.approx(rate)
    assert LinearSettings(lr=0.3).learning_rate(step, steps_per_epoch=196) == pytest.approx(0.3 * rate)


@pytest.mark.parametrize(("epoch", "rate"), [(0, 30), (59, 30), (60, 3), (79, 3), (80, 0.3), (99, 0.3)])
def test_the_step_schedule_falls_at_60_and_80(epoch: int, rate: float) -> None:
    settings = LinearSettings(schedule="step")
    for step in (epoch * 7, epoch * 7 + 6):
        assert settings.learning_rate(step, steps_per_epoch=7) == pytest.approx(rate)
    assert LinearSettings(schedule="step", lr=10).learning_rate(0, steps_per_epoch=7) == 10
    ten = LinearSettings(schedule="step", epochs=10)
    rates = [ten.learning_rate(epoch, steps_per_epoch=1) for epoch in range(10)]
    assert rates == pytest.approx([30] * 6 + [3] * 2 + [0.3] * 2)


def test_the_classifier_starts_small_and_from_its_seed() -> None:
    state = torch.get_rng_state()
    head = new_head(512, 100, seed=1337, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert abs(head.weight.mean().item()) < 2e-4
    assert not head.bias.any()
    assert torch.equal(head.weight, new_head(512, 100, seed=1337, device=CPU).weight)
    assert not torch.equal(head.weight, new_head(512, 100, seed=1, device=CPU).weight)


def test_an_easy_case_is_separated() -> None:
    result = evaluate(tiny(), colours(), epochs=12)
    assert result.last.top1 > 95
    assert result.last.top5 == 100
    assert len(result.epochs) == len(result.losses) == 12
    assert result.losses[-1] < result.losses[0]
    assert (result.num_train, result.num_test) == (60, 45)


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_is_left_as_it_is_bit_for_bit(training: bool) -> None:
    encoder = tiny().train(training)
    encoder.layer1.eval()  # a mode of its own
    modes = [part.training for part in encoder.modules()]
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    evaluate(encoder, colours())
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert [part.training for part in encoder.modules()] == modes
    assert all(p.requires_grad and p.grad is None for p in encoder.parameters())


SEEN: list[tuple[bool, bool, tuple[int, ...]]] = []


class Watched(ResNet):
    """Writes down in which mode it is asked for features, and of what."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append((self.bn1.training, torch.is_grad_enabled(), tuple(x.shape)))
        return super().forward(x)


def test_the_backbone_is_in_eval_mode_and_needs_no_gradient_while_the_classifier_learns() -> None:
    SEEN.clear()
    evaluate(Watched((1, 1, 1, 1), width=4), colours(40, num_test=10, test_size=24), epochs=2)
    assert {(mode, gradient) for mode, gradient, _ in SEEN} == {(False, False)}
    # A try on two black pictures; test pictures once, at their own size; then crops at the training size, the last
    # partial batch with them.
    epoch = [(16, 3, 16, 16), (16, 3, 16, 16), (8, 3, 16, 16)]
    assert [shape for *_, shape in SEEN] == [(2, 3, 16, 16), (10, 3, 24, 24), *epoch, *epoch]


class Flat(nn.Module):
    """Every picture has the feature 2, whatever it is: normalised, it would be 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_full((len(x), 1), 2.0)


def test_steps_are_nesterovs_by_hand() -> None:
    data = colours(6)
    result = evaluate(Flat(), data, epochs=3, batch_size=6, weight_decay=0.1, lr=0.7)
    start = new_head(1, 3, seed=0, device=CPU)
    weight, bias = start.weight.detach()[:, 0].double(), torch.zeros(3, dtype=torch.float64)
    velocity = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    for step in range(3):
        rate = 0.35 * (1 + math.cos(math.pi * step / 3))
        error = (2 * weight + bias).softmax(0) - 1 / 3  # two pictures of each of the three classes
        for number, (parameter, feature) in enumerate(((weight, 2.0), (bias, 1.0))):
            gradient = feature * error + 0.1 * parameter
            velocity[number] = 0.9 * velocity[number] + gradient
            parameter -= rate * (gradient + 0.9 * velocity[number])
    torch.testing.assert_close(result.head.weight[:, 0].detach(), weight.float())
    torch.testing.assert_close(result.head.bias.detach(), bias.float())


def test_the_size_of_test_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, data = tiny(), colours()
    whole = evaluate(encoder, data)
    monkeypatch.setattr(features, "AT_ONCE", 7)
    parts = evaluate(encoder, data)
    assert parts.epochs == whole.epochs
    assert torch.equal(parts.head.weight, whole.head.weight)


def test_the_seed_decides_and_the_global_state_does_not() -> None:
    encoder, data = tiny(), colours()
    first = evaluate(encoder, data, seed=3)
    torch.manual_seed(77)
    assert torch.equal(evaluate(encoder, data, seed=3).head.weight, first.head.weight)
    assert not torch.equal(evaluate(encoder, data, seed=4).head.weight, first.head.weight)


def test_only_the_given_rows_are_learned_from() -> None:
    encoder, data = tiny(), colours()
    rows = stratified(data.labelled.labels, 0.3, seed=0)
    result = evaluate(encoder, data, rows)
    assert result.num_train == len(rows) == 18
    spoilt = data.labelled.take(np.arange(60))
    spoilt[np.setdiff1d(np.arange(60), rows)] = 0
    bank = ImageSplit(spoilt, data.labelled.labels)
    other = ImageDataset("colours", bank, bank, data.test, data.class_names, data.mean, data.std, 16, 16)
    assert torch.equal(evaluate(encoder, other, rows).head.weight, result.head.weight)


def test_the_best_epoch_is_the_first_of_the_highest() -> None:
    epochs = tuple(Scores(top1, 100.0) for top1 in (10.0, 30.0, 30.0, 20.0))
    result = Classifier(epochs, (0.0,) * 4, 1, 1, 4, nn.Identity(), nn.Linear(1, 1), np.zeros(1, np.int64))
    assert (result.best_epoch, result.best.top1, result.last.top1) == (2, 30.0, 20.0)


def test_what_cannot_be_evaluated_is_said() -> None:
    data, encoder = colours(), tiny()
    empty = data.test.slice(0, 0)
    unlabelled = ImageDataset("colours", data.labelled, empty, empty, (), data.mean, data.std, 16, 16)
    with pytest.raises(BadInput, match="no labelled picture"):
        evaluate(encoder, unlabelled)
    with pytest.raises(BadInput, match="no labelled picture"):
        evaluate(encoder, data, np.zeros(0, np.int64))
    with pytest.raises(BadInput, match="one class"):
        evaluate(encoder, data, np.flatnonzero(data.labelled.labels == 1))
    untested = ImageDataset("colours", data.labelled, data.labelled, empty, (), data.mean, data.std, 16, 16)
    with pytest.raises(BadInput, match="test"):
        evaluate(encoder, untested)
    for change in ({"size": 8}, {"view": ViewSettings(scale=0.5)}):
        with pytest.raises(BadInput, match=r"cannot take crops of 8 pixels .*; --set size=N and view.scale"):
            evaluate(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), data, **change)
    broken = tiny()
    nn.init.constant_(broken.conv1.weight, float("nan"))
    with pytest.raises(BadInput, match="not all finite"):
        evaluate(broken, data)
