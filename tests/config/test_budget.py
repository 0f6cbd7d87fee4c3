"""What a budget of time chooses from, and what it leaves alone."""

from typing import Any

import pytest
import torch

from msvq.config.budget import (
    CAREFUL,
    CROPS,
    EXPECTED,
    LADDER,
    choices,
    expectation,
    fix_length,
    limit_looks,
    limit_warmup,
    parse_budget,
)
from msvq.config.resolve import Flags, resolve
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.data.sources import open_dataset
from msvq.train.pretrain import prepare

FAST = resolve(recipe="fast")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5 h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0m", "-5m", "ten minutes", "10m30s", "infm", "1e3s"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="is not a time; give one such as 90s, 10m or 2h"):
        parse_budget(text)


@pytest.mark.parametrize("length", [{"epochs": 3}, {"overrides": ["train.epochs=3"]}, {"overrides": ["train.steps=9"]}])
def test_a_budget_and_another_length_are_refused(length: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"--budget and train.(epochs|steps) both say how long a run is"):
        Flags(data="patterns", budget="10m", **length).settings()


@pytest.mark.parametrize(
    ("flags", "seconds", "recipe"),
    [
        ({"data": "./photos"}, 1200, "fast"),
        ({"data": "./photos", "budget": "90s"}, 90, "fast"),
        ({"data": "cifar10", "budget": "90s"}, 90, "fast"),
        ({"recipe": "fast"}, 1200, "fast"),
        ({"data": "./photos", "epochs": 3}, None, "folder"),
        ({"data": "./photos", "overrides": ["train.steps=3"]}, None, "folder"),
        ({"data": "./photos", "recipe": "folder"}, None, "folder"),
        ({"data": "cifar10"}, None, "cifar10"),
        ({}, None, "demo"),
        ({"data": "cifar10", "recipe": "cifar10", "budget": "2h"}, 7200, "cifar10"),
    ],
)
def test_a_folder_has_a_budget_unless_its_length_or_recipe_is_named(
    flags: dict[str, Any], seconds: float | None, recipe: str
) -> None:
    told = Flags(**flags)
    assert told.seconds == seconds
    assert told.settings().train.base_lr == resolve(recipe=recipe).train.base_lr
    assert told.settings().method == resolve(recipe=recipe).method


def test_networks_grow_and_so_do_crops() -> None:
    found = choices(FAST, 3600, (64, 64), keep=())
    assert [(s.backbone.name, s.backbone.width) for s, _ in found] == [(rung.name, rung.width) for rung in LADDER]
    assert [least for _, least in found] == sorted(rung.least_steps for rung in LADDER)
    assert found[0].least_steps == 0
    for settings, _ in found:
        assert settings.train.resolution == [(share, int(64 * part)) for share, part in CROPS]
    large = choices(FAST, 3600, (64, 96), keep=())[0].settings
    assert large.train.resolution == [(0.0, 48), (0.5, 64)]  # never larger than data.size


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({"backbone": "resnet18"}, {"backbone.name": "resnet18"}),
        ({"overrides": ["backbone.width=48"]}, {"backbone.width": 48}),
        ({"overrides": ["train.resolution=null"]}, {"train.resolution": None}),
        ({"backbone": "timm:test_vit"}, {"backbone.name": "timm:test_vit", "train.optimiser": "adamw"}),
        (
            {"backbone": "timm:test_vit", "overrides": ["train.optimiser=lars"]},
            {"backbone.name": "timm:test_vit", "train.optimiser": "lars", "train.base_lr": 0.3},
        ),
        (
            {"backbone": "timm:test_vit", "overrides": ["train.base_lr=0.002"]},
            {"backbone.name": "timm:test_vit", "train.optimiser": "adamw", "train.base_lr": 0.002},
        ),
        ({"recipe": "cifar10"}, {"backbone.name": "resnet18", "backbone.width": 64, "train.resolution": None}),
        ({"method": "msvq"}, {"method": "msvq"}),
    ],
)
def test_what_is_named_stays(flags: dict[str, Any], kept: dict[str, Any]) -> None:
    told = Flags(data="cifar10", budget="1h", **flags)
    found = choices(told.settings(), 3600, (32, 32), keep=told.named)
    assert len(found) == (1 if any(key.startswith("backbone") for key in kept) else len(LADDER))
    for settings, _ in found:
        for path, value in kept.items():
            section, _, key = path.partition(".")
            there = settings.method_name if section == "method" else getattr(getattr(settings, section), key)
            assert there == value
        assert Settings.parse(settings.model_dump(mode="json")) == settings  # as config.yaml will be read


def test_a_rate_that_the_other_optimiser_cannot_mean_is_refused() -> None:
    told = Flags(data="cifar10", budget="1h", backbone="timm:test_vit", overrides=["train.base_lr=0.05"])
    with pytest.raises(BadInput, match=r"base_lr of adamw is at most 0\.02"):
        choices(told.settings(), 3600, (32, 32), keep=told.named)


def test_crops_of_tiny_pictures_are_crops_still() -> None:
    assert choices(FAST, 3600, (8, 8), keep=())[0].settings.train.resolution == [(0.0, 8), (0.5, 8)]


def test_the_warm_up_of_a_run_of_few_steps_is_a_tenth_of_it() -> None:
    steps = resolve(data="cifar10", overrides=["train.steps=1000"])
    assert steps.train.warmup_epochs == 5
    assert limit_warmup(steps, 195).train.warmup_epochs == pytest.approx(100 / 195, abs=1e-4)
    assert limit_warmup(steps, 10).train.warmup_epochs == 5


def test_a_run_whose_steps_are_taken_back_keeps_its_warm_up() -> None:
    assert limit_warmup(resolve(data="cifar10", overrides=["train.steps=null"]), 195).train.warmup_epochs == 5


@pytest.mark.parametrize(("options", "every"), [({"epochs": 455}, 23), ({"overrides": ["train.steps=1820"]}, 23)])
def test_a_long_run_of_few_pictures_is_looked_at_a_few_times(options: dict[str, Any], every: int) -> None:
    small = ["backbone.width=2", "data.limit=64", "train.batch_size=16", "method.queue_size=16", "evaluate.every=5"]
    settings = resolve(data="patterns", **{**options, "overrides": [*small, *options.get("overrides", [])]})
    data = open_dataset(settings.data)
    own, *_ = prepare(settings, data, torch.device("cpu"), keep=[])
    assert (own.train.epochs, own.evaluate.every) == (455, every)
    named, *_ = prepare(settings, data, torch.device("cpu"), keep=["evaluate.every"])
    papers, *_ = prepare(settings, data, torch.device("cpu"), keep=None)
    assert named.evaluate.every == papers.evaluate.every == 5
    assert limit_looks(resolve(data="patterns", epochs=2)).evaluate.every == resolve(data="patterns").evaluate.every


@pytest.mark.parametrize("network", ["resnet18", "timm:test_vit"])
def test_trained_weights_go_on_at_a_lower_rate(network: str) -> None:
    rates = {}
    for start in (None, "runs/a", "timm:test_vit@random"):
        told = Flags(data="cifar10", budget="1h", backbone=network, init=start)
        ((found, _),) = choices(told.settings(), 3600, (32, 32), keep=told.named)
        rates[start] = found.train.base_lr
    assert rates["runs/a"] == pytest.approx(CAREFUL * rates[None])
    assert rates["timm:test_vit@random"] == rates[None]  # they know nothing
    told = Flags(data="cifar10", budget="1h", init="runs/a", overrides=["train.base_lr=0.07"])
    assert choices(told.settings(), 3600, (32, 32), keep=told.named)[0].settings.train.base_lr == 0.07


def test_a_budget_whitens_also_what_goes_on_from_a_network_that_does_not() -> None:
    told = Flags(data="cifar10", budget="1h", init="cifar10-msvq-narrow")
    network = told.settings().backbone
    assert (network.name, network.width, network.whiten) == ("resnet18", 16, True)
    again = told.settings(base=told.settings().model_dump(mode="json")).backbone  # as when it is resumed
    assert again == network
    assert not Flags(data="cifar10", epochs=3, init="cifar10-msvq-narrow").settings().backbone.whiten


def test_a_short_run_is_looked_at_less_closely() -> None:
    short, long = (choices(FAST, seconds, (32, 32), keep=())[0].settings for seconds in (60, 3600))
    assert short.analyze.map < long.analyze.map
    named = choices(FAST, 60, (32, 32), keep={"analyze.map"})[0].settings
    assert named.analyze.map == long.analyze.map


@pytest.mark.parametrize(("steps", "per_epoch", "looks"), [(5000, 700, 4), (5000, 1, 20), (800, 781, 1)])
def test_the_length_is_steps_and_the_looks_are_as_many_as_wanted(steps: int, per_epoch: int, looks: int) -> None:
    fixed = fix_length(FAST, steps, per_epoch, looks=looks, keep=())
    assert fixed.train.steps == steps
    assert fixed.train.warmup_epochs * per_epoch == pytest.approx(0.1 * steps, rel=0.01)
    epochs = -(-steps // per_epoch)
    assert 1 <= sum(epoch % fixed.evaluate.every == 0 or epoch == epochs for epoch in range(1, epochs + 1)) <= looks + 1
    assert fix_length(FAST, steps, per_epoch, looks=looks, keep={"evaluate.every"}).evaluate == FAST.evaluate


def test_what_to_expect_is_that_of_the_most_steps_that_were_measured_and_reached() -> None:
    (first, percent), (last, most) = EXPECTED[0], EXPECTED[-1]
    assert expectation(last + 1) == f"{last:,} steps gave {most} % kNN on CIFAR-10; other pictures differ"
    assert expectation(first - 1).startswith(f"{first:,} steps gave {percent} % kNN on CIFAR-10, so little")
