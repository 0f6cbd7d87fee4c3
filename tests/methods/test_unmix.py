"""Un-Mix: the mixture, its share, and the loss it makes of a base's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.methods import METHODS, Batch
from msvq.methods.unmix import UnMix, paste_box
from msvq.model.resnet import ResNet

Make = Callable[..., Any]
SMALL = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8, "bn_splits": 1, "shuffle": False}


def unmix(**options: Any) -> Any:
    base_options = {**SMALL, **options.pop("base_options", {})}
    return UnMix(ResNet(width=2), base_options=base_options, **options).double()


def pictures(num: int = 8, size: int = 12) -> Tensor:
    return torch.randn(num, 3, size, size, dtype=torch.float64)


def batch(*views: Tensor) -> Batch:
    return Batch(views, torch.arange(len(views[0])), 1.0)


def fix_share(method: Any, monkeypatch: pytest.MonkeyPatch, share: float, *, blend: bool = True) -> None:
    monkeypatch.setattr(method.random, "beta", lambda alpha: share)
    method.global_share = 1.0 if blend else 0.0


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_whole_share_is_the_picture_itself(monkeypatch: pytest.MonkeyPatch, symmetric: bool) -> None:
    method = unmix(symmetric=symmetric)
    fix_share(method, monkeypatch, 1.0)
    x1, x2 = pictures(), pictures()
    base = copy.deepcopy(method.base)
    base.ema_update(batch(x1, x2))
    k1, k2 = (copy.deepcopy(base).targets(batch(x2 if k == 1 else x1, x1 if k == 1 else x2)) for k in (1, 2))
    q1, q2 = copy.deepcopy(base).student(x1), copy.deepcopy(base).student(x2)

    def loss(q: Tensor, k: Any) -> Tensor:
        value: Tensor = base.compare(q, k).value
        return value

    expected = 2 * loss(q1, k2)
    if symmetric:
        expected = expected + loss(q2, k1) + loss(q1, k1)
    torch.testing.assert_close(method(batch(x1, x2)).value, expected)


@pytest.mark.parametrize("through", ["student", "whole"])
def test_the_loss_of_a_part_share(monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    """The mixture's loss against the batch counts by its share, against the reversed batch by the rest."""
    method = unmix(through=through)
    fix_share(method, monkeypatch, 0.3)
    x1, x2 = pictures(), pictures()
    base, both = copy.deepcopy(method.base), batch(x1, x2)
    if through == "whole":
        mixture = 0.3 * x2 + 0.7 * x2.flip(0)
        parts = [base(batch(x1, x)).value for x in (x2, mixture, mixture.flip(0))]
    else:
        base.ema_update(both)
        targets = base.targets(both)
        mixture = 0.3 * x1 + 0.7 * x1.flip(0)
        parts = [base.compare(base.student(x), targets).value for x in (x1, mixture, mixture.flip(0))]
    torch.testing.assert_close(method(both).value, parts[0] + 0.3 * parts[1] + 0.7 * parts[2])


def test_half_a_share_is_its_own_reversal(monkeypatch: pytest.MonkeyPatch) -> None:
    method = unmix()
    fix_share(method, monkeypatch, 0.5)
    share, mixture = method.mix(pictures())
    assert share == 0.5
    torch.testing.assert_close(mixture, mixture.flip(0))


@pytest.mark.parametrize("given", [0.0, 0.2, 0.7, 1.0])
def test_share_of_a_pasted_box_is_the_share_of_unchanged_pixels(monkeypatch: pytest.MonkeyPatch, given: float) -> None:
    method = unmix()
    fix_share(method, monkeypatch, given, blend=False)
    x = pictures()
    for _ in range(10):
        share, mixture = method.mix(x)
        unchanged = (mixture == x).all(1)
        assert share == pytest.approx(unchanged.double().mean().item())
        assert torch.equal(mixture.masked_select(~unchanged[:, None]), x.flip(0).masked_select(~unchanged[:, None]))
        assert 0 <= share <= 1


def test_boxes_are_clipped_and_have_the_specified_sides() -> None:
    assert paste_box(0.75, (32, 32), (0.5, 0.5)) == [(8, 24), (8, 24)]
    assert paste_box(0.75, (32, 16), (0.0, 0.99)) == [(0, 8), (11, 16)]
    assert paste_box(1.0, (32, 32), (0.5, 0.5)) == [(16, 16), (16, 16)]


def test_both_kinds_of_mixture_come_up_equally_often() -> None:
    method, x = unmix(), pictures()
    shares, blended = [], 0
    for _ in range(300):
        share, mixture = method.mix(x)
        shares.append(share)
        blended += int(not ((mixture == x) | (mixture == x.flip(0))).all())
    assert 110 < blended < 190
    assert 0.4 < sum(shares) / 300 < 0.68  # uniform, and clipped boxes leave more of the picture


@pytest.mark.parametrize("splits", [1, 8])
def test_reversing_embeddings_is_encoding_the_reversed_batch(splits: int) -> None:
    method = unmix(base_options={"bn_splits": splits})
    x = pictures(16)
    student = method.base.student
    torch.testing.assert_close(copy.deepcopy(student)(x).flip(0), copy.deepcopy(student)(x.flip(0)))


@pytest.mark.parametrize("base", ["mocov2", "msvq", "ressl", "byol", "msf", "cmsf", "mnn", "sce", "co2", "snclr"])
def test_it_wraps_any_method_with_a_teacher(base: str, random_batch: Make) -> None:
    options = {key: v for key, v in SMALL.items() if key in METHODS[base].hyperparameters()}
    method = UnMix(ResNet(width=2), base=base, base_options=options)
    passes: list[int] = []
    method.encoder.register_forward_hook(lambda *_: passes.append(1))
    loss = method(random_batch(method))
    loss.value.backward()
    assert torch.isfinite(loss.value)
    assert len(passes) == 2
    assert all(p.grad is not None for p in method.encoder.parameters())


def test_through_the_whole_step_the_base_runs_three_times(random_batch: Make) -> None:
    options = {"hidden_dim": 16, "output_dim": 8, "momentum": 0.5}
    method = UnMix(ResNet(width=2), base="byol", base_options=options, through="whole")
    teacher = method.base.teacher
    updates: list[int] = []
    ema_update = teacher.ema_update

    def counted(student: torch.nn.Module) -> None:
        updates.append(1)
        ema_update(student)

    teacher.ema_update = counted
    assert torch.isfinite(method(random_batch(method)).value)
    assert len(updates) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base": "simclr"}, "unknown base of unmix 'simclr'"),
        ({"base": "mocov3"}, r"did you mean 'mocov2'\?"),
        ({"base_options": {"tempp": 1}}, r"unknown setting method.base_options 'tempp'; did you mean 'temp'\?"),
        ({"base_options": {"momentum": 2}}, r"method.base_options.momentum: should be less than 1, not 2"),
        ({"base_options": {"symmetric": "mean"}}, "set method.symmetric instead"),
        ({"base": "co2", "symmetric": True}, "whose loss has one direction"),
        ({"base": "msvq", "symmetric": True}, "whose loss has one direction"),
        ({"through": "whole", "symmetric": True}, "set method.base_options.symmetric instead"),
        ({"base": "msf", "base_options": {"enqueue_first": True}, "symmetric": True}, "one direction.*symmetric=false"),
        ({"base": "msf", "base_options": {"enqueue_first": True}, "through": "whole"}, "one pass.*through=student"),
        ({"base": "cmsf", "base_options": {"second_target": "previous"}, "symmetric": True}, "symmetric=false"),
        ({"base": "msf", "base_options": {"k": 40, "queue_size": 32}}, "the method's k 40 is larger than"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        UnMix(ResNet(width=2), **options)


def test_the_base_is_completed_in_the_settings() -> None:
    options = UnMix.check_options({"base_options": {"queue_size": 64}})
    assert options["base_options"]["queue_size"] == 64
    assert options["base_options"]["temp"] == 0.1  # Un-Mix's own for MoCo
    assert options["base_options"].keys() == METHODS["mocov2"].hyperparameters().keys()
    assert UnMix.check_options({"through": "whole"})["base_options"]["temp"] == 0.1
    assert UnMix.check_options({"through": "whole", "base_options": {"temp": 0.2}})["base_options"]["temp"] == 0.2


def test_the_bases_momentum_schedule_goes_on() -> None:
    options = {"hidden_dim": 16, "output_dim": 8, "bn_splits": 1, "momentum": 0.9, "momentum_schedule": "cosine"}
    method = UnMix(ResNet(width=2), base="byol", base_options=options)
    x = torch.randn(8, 3, 8, 8)
    method(Batch((x, x), torch.arange(8), 1.0))
    assert method.base.teacher.momentum == pytest.approx(1.0)


def test_another_base_gets_the_data_sets_values_for_it() -> None:
    moco = resolve(recipe="stl10", method="unmix").method_options["base_options"]
    assert (moco["temp"], moco["momentum"], moco["queue_size"]) == (0.1, 0.996, 16384)
    for base in ("byol", "ressl", "msvq", "sce"):
        options = resolve(recipe="stl10", method="unmix", overrides=[f"method.base={base}"]).method_options
        expected = resolve(recipe="stl10", method=base).method_options
        assert options["base_options"] | {"symmetric": None} == expected | {"symmetric": None}
    told = resolve(recipe="demo", method="unmix", overrides=["method.base=sce", "method.base_options.temp=0.3"])
    assert told.method_options["base_options"]["temp"] == 0.3
