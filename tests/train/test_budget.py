"""A run that fits the time there is: the pace is taken, the steps are fixed, and what cannot be is said."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import msvq
from msvq.config.budget import LADDER
from msvq.config.resolve import Flags
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.data.loader import Loader
from msvq.data.sources import open_dataset
from msvq.data.store import ImageDataset
from msvq.train.budget import Fitted, Pace, fit_to_budget, in_minutes, stages
from msvq.train.pretrain import open_trial
from msvq.train.trainer import Trainer

CPU = torch.device("cpu")
SMALL = ["data.limit=128", "data.size=16", "data.test_size=16", "train.batch_size=32", "method.hidden_dim=16"]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fitted]:
    """Fits a run on a few patterns to a number of seconds that does not pass."""

    def fit_run(
        seconds: float,
        *words: str,
        spent: Callable[[], float] = lambda: 0.0,
        small: Sequence[str] = SMALL,
        **named: Any,
    ) -> Fitted:
        flags = Flags(data="patterns", budget="1h", overrides=[*small, *words], **named)
        settings = flags.settings()
        data = open_dataset(settings.data)
        trial = partial(open_trial, data, CPU, flags.kept(settings))
        return fit_to_budget(settings, data, seconds, spent, keep=flags.named, trial=trial)

    return fit_run


def test_the_steps_are_those_that_the_pace_allows(fit: Callable[..., Fitted]) -> None:
    settings, pace, num_steps, *_ = fit(60.0, "backbone.width=4")
    assert settings.train.steps == num_steps
    assert [stage.size for stage, _ in pace.stages] == [8, 12]
    assert sum(stage.share for stage, _ in pace.stages) == pytest.approx(1)
    assert pace.steps_per_epoch == 4
    epochs = -(-num_steps // 4)
    looks = 1 + sum(epoch % settings.evaluate.every == 0 or epoch == epochs for epoch in range(1, epochs + 1))
    planned = num_steps * pace.step + looks * pace.look + pace.finish
    assert planned == pytest.approx(60.0, abs=2 * pace.look + pace.step)


def test_looks_that_are_named_are_paid_for(fit: Callable[..., Fitted]) -> None:
    settings, pace, num_steps, *_ = fit(60.0, "backbone.width=4", "evaluate.every=1")
    assert settings.evaluate.every == 1
    planned = num_steps * pace.step + (1 + num_steps / 4) * pace.look + pace.finish
    assert planned == pytest.approx(60.0, abs=2 * pace.look + pace.step)


def test_a_network_is_larger_where_it_still_makes_enough_steps(
    fit: Callable[..., Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By paces as they might be: a second for the first rung, ten for the next."""
    paces = {rung[:2]: 10.0**number for number, rung in enumerate(LADDER)}
    tried = []

    def imagined(trainer: object, data: ImageDataset, settings: Settings) -> Pace:
        tried.append((settings.backbone.name, settings.backbone.width))
        return Pace([(stages(trainer)[0]._replace(share=1.0), paces[tried[-1]])], 0.0001, 0.0, 4, busy=False)  # type: ignore[arg-type]

    monkeypatch.setattr("msvq.train.budget.measure_pace", imagined)
    names = [rung[:2] for rung in LADDER]
    needed = LADDER[1].least_steps * 10.0
    for seconds, chosen, seen in ((100.0, 0, 1), (0.9 * needed, 0, 2), (1.1 * needed, 1, 2)):
        tried.clear()
        backbone = fit(seconds).settings.backbone
        assert (backbone.name, backbone.width) == names[chosen]
        assert tried == names[:seen]


def test_time_for_less_than_an_epoch_is_refused(fit: Callable[..., Fitted]) -> None:
    with pytest.raises(BadInput, match=r"too short to see each of the 128 pictures once: give --budget \d+s or more"):
        fit(1.0, "backbone.width=4")


def test_what_is_spent_before_counts(fit: Callable[..., Fitted], monkeypatch: pytest.MonkeyPatch) -> None:
    def imagined(trainer: Trainer, data: ImageDataset, settings: Settings) -> Pace:
        clock.append(60.0)  # a minute for each network that is tried
        pace = 0.01 if settings.backbone.name == "resnet8" else 1.0
        return Pace([(stages(trainer)[0]._replace(share=1.0), pace)], 0.0001, 0.0, 4, busy=False)

    monkeypatch.setattr("msvq.train.budget.measure_pace", imagined)
    clock: list[float] = []
    fitted = fit(600.0, spent=lambda: sum(clock))
    assert len(clock) == 2 and fitted.settings.backbone.name == "resnet8"
    assert fitted.num_steps * fitted.pace.step == pytest.approx(480.0, abs=1)
    clock = [30.0]
    with pytest.raises(BadInput, match=r"give --budget 3m or more"):  # 150 s are gone by then
        fit(60.0, spent=lambda: 2 * sum(clock) - 30)


def test_pictures_that_have_to_be_waited_for_make_a_step_longer(
    fit: Callable[..., Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = Loader.epoch

    def slow(self: Loader, *place: Any, **more: Any) -> Iterator[Any]:
        for batch in epoch(self, *place, **more):
            time.sleep(0.2)
            yield batch

    monkeypatch.setattr(Loader, "epoch", slow)
    assert fit(600.0, "backbone.width=4").pace.step >= 0.2


def test_a_plan_promises_only_what_was_measured(fit: Callable[..., Fitted]) -> None:
    usual, named = fit(60.0, "train.seed=3", small=SMALL[:3]), fit(60.0, backbone="resnet14")
    other, optimiser = (
        fit(60.0, "method.queue_size=64", method="mocov2"),
        fit(60.0, "train.optimiser=sgd", small=SMALL[:3]),
    )
    assert any("the largest network" in line for line in usual.describe())
    assert any("% kNN on CIFAR-10" in line for line in usual.describe())
    for fitted in (named, other, optimiser):
        assert not any("% kNN on CIFAR-10" in line or "the largest" in line for line in fitted.describe())


def test_a_budget_that_is_named_as_too_short_is_named_with_one_that_is_not() -> None:
    assert [in_minutes(seconds) for seconds in (5, 60, 170, 3600)] == ["10s", "70s", "4m", "67m"]


def test_a_busy_machine_is_told(fit: Callable[..., Fitted]) -> None:
    fitted = fit(60.0, "backbone.width=4")
    busy = fitted._replace(pace=fitted.pace._replace(busy=True))
    assert any("busy" in line for line in busy.describe())
    assert not any("busy" in line for line in fitted._replace(pace=fitted.pace._replace(busy=False)).describe())


def test_steps_that_mostly_wait_for_a_processor_are_of_a_busy_machine(
    fit: Callable[..., Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train_step", lambda *_: time.sleep(0.4))
    assert fit(600.0, "backbone.width=4").pace.busy


def test_a_budget_trains_to_its_end_and_its_settings_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = msvq.pretrain(out=tmp_path / "run", data="patterns", budget="30s", overrides=[*SMALL, "backbone.width=4"])
    said = capsys.readouterr().out
    assert "plan: " in said
    steps = run.config.train.steps
    assert steps is not None
    assert run.metrics()[-1]["step"] == steps
    again = msvq.pretrain(out=tmp_path / "again", recipe=run.path / "config.yaml")
    untimed = [
        [{key: value for key, value in line.items() if key != "images_per_second"} for line in each.metrics()]
        for each in (run, again)
    ]
    assert untimed[0] == untimed[1]
    # The command in a job queue: what was fixed at the start counts.
    for recipe in (None, "fast"):
        msvq.pretrain(out=run.path, data="patterns", recipe=recipe, budget="30s", overrides=SMALL, auto_resume=True)
        said = capsys.readouterr().out
        assert "is finished already" in said
        assert f"note: --budget is for a new run; this one keeps its {steps:,} steps" in " ".join(said.split())
