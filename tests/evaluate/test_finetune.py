"""Fine-tuning: what learns, what is frozen, how long, and that the given encoder stays as it is."""

import copy
from typing import Any, Literal

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
from msvq.evaluate.features import EvalContext
from msvq.evaluate.finetune import FinetuneSettings, finetune, learning_part
from msvq.evaluate.linear import SEED, Classifier
from msvq.model.backbones import BackboneSettings
from msvq.model.norm import SplitBatchNorm2d, split_batch_norm
from msvq.model.resnet import ResNet

CPU = torch.device("cpu")


def stripes(num: int, *, seed: int) -> ImageSplit:
    """Noisy stripes, upright or lying, at any phase: fresh features do not tell them by their colour."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num, dtype=np.int64) % 2
    wave = np.sin(np.arange(16) * np.pi / 2 + rng.uniform(0, 2 * np.pi, (num, 1)))
    plane = np.where(labels[:, None, None] == 0, wave[:, None, :], wave[:, :, None])
    images = 128 + 80 * plane[..., None] + rng.normal(0, 20, (num, 16, 16, 3))
    return ImageSplit(images.clip(0, 255).astype(np.uint8), labels)


def striped(num: int = 60, num_test: int = 40) -> ImageDataset:
    bank, test = stripes(num, seed=0), stripes(num_test, seed=1)
    return ImageDataset("stripes", bank, bank, test, ("upright", "lying"), (0.5,) * 3, (0.25,) * 3, 16, 16)


def tiny() -> ResNet:
    return ResNet((1, 1, 1, 1), width=4)


def tune(encoder: nn.Module, data: ImageDataset, rows: Any = None, **options: Any) -> Classifier:
    scratch, seed, precision = (options.pop(*o) for o in (("scratch", False), ("seed", SEED), ("precision", "fp32")))
    settings = FinetuneSettings(**{"epochs": 2, "min_steps": 1, "batch_size": 16, **options})
    context = EvalContext(encoder, BackboneSettings(), data, CPU, precision, Display())
    return finetune(context, settings, rows, seed, scratch=scratch)


@pytest.mark.parametrize(
    ("num", "epochs"), [(2, 1000), (256, 1000), (257, 500), (500, 500), (5000, 50), (50_000, 30), (100_000, 30)]
)
def test_few_labels_get_enough_steps(num: int, epochs: int) -> None:
    settings = FinetuneSettings()
    assert settings.num_epochs(num) == epochs
    assert epochs * -(-num // settings.batch_size) >= settings.min_steps


def test_the_whole_network_learns_an_easy_case() -> None:
    result = tune(tiny(), striped(), epochs=25, scratch=True)
    assert result.last.top1 > 90
    assert result.losses[-1] < 0.5 * result.losses[0]
    assert (result.num_train, result.num_test, result.steps) == (60, 40, 25 * 4)


@pytest.mark.parametrize("depth", ["all", "last"])
def test_the_encoder_given_is_left_as_it_is_bit_for_bit(depth: str) -> None:
    encoder = tiny().eval().requires_grad_(False)  # as a run hands it over
    encoder.layer2.train()
    modes = [part.training for part in encoder.modules()]
    before = copy.deepcopy(encoder.state_dict())
    result = tune(encoder, striped(), depth=depth)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert [part.training for part in encoder.modules()] == modes
    assert not any(p.requires_grad for p in encoder.parameters())
    assert result.encoder is not encoder and not result.encoder.training


def test_dropout_is_drawn_from_the_seed_and_leaves_the_global_state() -> None:
    encoder, found = nn.Sequential(tiny(), nn.Dropout(0.5)), []
    for seed in (0, 0, 1):
        torch.rand(3)  # as whatever came before may have drawn
        before = torch.get_rng_state()
        found.append(tune(encoder, striped(32), seed=seed).losses)
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1] != found[2]


def test_at_depth_last_only_the_last_stage_changes() -> None:
    encoder = tiny()
    tuned = tune(encoder, striped(), depth="last").encoder.state_dict()
    for name, before in encoder.state_dict().items():
        assert torch.equal(before, tuned[name]) is not name.startswith("layer4."), name


def test_at_depth_all_everything_changes() -> None:
    encoder = tiny()
    tuned = tune(encoder, striped(), depth="all").encoder.state_dict()
    assert not [name for name, before in encoder.state_dict().items() if torch.equal(before, tuned[name])]


@pytest.mark.parametrize("depth", ["all", "last"])
def test_what_learns_is_in_train_mode_and_nothing_else(depth: Literal["all", "last"]) -> None:
    network = tiny()
    learning_part(network, depth)
    for name, part in network.named_modules():
        expected = depth == "all" or name.startswith("layer4")
        assert part.training is expected
        assert all(p.requires_grad is expected for p in part.parameters(recurse=False))


def test_rates_of_head_and_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[list[float]] = []
    step = torch.optim.SGD.step

    def watched(self: torch.optim.SGD, *args: Any) -> Any:
        rates.append([group["lr"] for group in self.param_groups])
        assert all(group["nesterov"] and group["momentum"] == 0.9 for group in self.param_groups)
        assert all(group["weight_decay"] == 5e-4 for group in self.param_groups)
        return step(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    for scratch, peak in ((False, 0.01), (True, 0.1)):
        rates.clear()
        tune(tiny(), striped(32), epochs=2, scratch=scratch)  # four steps
        falling = [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]
        np.testing.assert_allclose(rates, [[peak * share, 0.1 * share] for share in falling])


def test_split_batch_norm_becomes_ordinary_for_batches_of_any_size() -> None:
    plain = tiny()
    split = copy.deepcopy(plain)
    split_batch_norm(split, 8)
    data = striped(21)  # batches of 11 and 10: no multiples of eight
    ours, expected = (tune(encoder, data) for encoder in (split, plain))
    assert isinstance(split.bn1, SplitBatchNorm2d) and split.bn1.splits == 8
    assert ours.losses == pytest.approx(expected.losses, rel=1e-5)
    assert ours.last == expected.last
    other = expected.encoder.state_dict()
    for name, value in ours.encoder.state_dict().items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


SIZES: list[int] = []


class Watched(ResNet):
    """Writes down how many pictures it is trained on at a time."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            SIZES.append(len(x))
        return super().forward(x)


def test_no_batch_is_a_single_left_over_picture() -> None:
    SIZES.clear()
    tune(Watched((1, 1, 1, 1), width=2), striped(33), epochs=1)
    assert SIZES == [11, 11, 11]  # not 16, 16 and 1
    SIZES.clear()
    result = tune(Watched((1, 1, 1, 1), width=2), striped(5), epochs=1, min_steps=4, batch_size=2)
    assert SIZES == [3, 2, 3, 2]  # not 2, 2 and 1
    assert result.steps == 4


def test_the_size_of_test_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, data = tiny(), striped()
    whole = tune(encoder, data)
    monkeypatch.setattr(features, "AT_ONCE", 7)
    assert tune(encoder, data).last == whole.last


def test_the_seed_decides() -> None:
    encoder, data = tiny(), striped()
    first, again, other = (tune(encoder, data, seed=seed) for seed in (3, 3, 4))
    assert first.losses == again.losses != other.losses
    assert torch.equal(first.head.weight, again.head.weight)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_half_precision_it_learns_too(precision: str) -> None:
    result = tune(tiny(), striped(), epochs=4, precision=precision)
    assert result.losses[-1] < result.losses[0]
    assert all(p.dtype == torch.float32 for p in result.encoder.parameters())


def test_two_pictures_are_enough_to_run() -> None:
    result = tune(tiny(), striped(), np.array([0, 1]))
    assert result.num_train == 2


def test_what_cannot_be_fine_tuned_is_said() -> None:
    data = striped()
    with pytest.raises(BadInput, match="layer4"):
        tune(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), data, depth="last")
    with pytest.raises(BadInput, match="one class"):
        tune(tiny(), data, np.array([0, 2, 4]))
    empty = data.test.slice(0, 0)
    with pytest.raises(BadInput, match="no labelled test picture"):
        tune(tiny(), ImageDataset("stripes", data.labelled, data.labelled, empty, (), data.mean, data.std, 16, 16))
    with pytest.raises(BadInput, match=r"cannot take crops of 8 pixels .*; --set view.scale=1"):
        tune(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), data, view=ViewSettings(scale=0.5))
    with pytest.raises(BadInput, match="lower learning rate"):
        tune(tiny(), data, lr_head=1e18, epochs=20)


def test_epochs_that_min_steps_overrules_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    context = EvalContext(
        ResNet((1, 1, 1, 1), width=2), BackboneSettings(), striped(5), CPU, "fp32", Display(Console(width=200))
    )
    finetune(context, FinetuneSettings(epochs=1, min_steps=4, batch_size=2), None, 0)
    assert "2 epochs instead of 1, for at least 4 steps (--set min_steps=1" in capsys.readouterr().out
    finetune(context, FinetuneSettings(epochs=1, min_steps=1, batch_size=2), None, 0)
    assert "instead of" not in capsys.readouterr().out
