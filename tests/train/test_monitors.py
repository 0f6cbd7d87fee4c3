"""What is measured between epochs: kNN and the best encoder, the encoder's health, and the audit of soft labels."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.diagnostics.health import AnalyzeSettings
from msvq.evaluate.knn import EvaluateSettings
from msvq.methods.base import SoftLabel
from msvq.model.losses import l2_normalize
from msvq.train.monitors import AnalysisMonitor, KnnMonitor, is_due
from msvq.train.trainer import StepOutput


def test_it_is_measured_before_and_after() -> None:
    assert [epoch for epoch in range(8) if is_due(epoch, 3, 7)] == [0, 3, 6, 7]


@pytest.fixture
def monitor() -> KnnMonitor:
    """It takes a matrix for an encoder: a row is the feature of the picture with its number."""
    images = np.zeros((40, 8, 8, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(40)
    pictures = ImageSplit(images, np.arange(40, dtype=np.int64) % 4)
    data = ImageDataset("x", pictures, pictures, pictures, tuple("abcd"), (0.5,) * 3, (0.25,) * 3, 8, 8)

    def features(encoder: Any, some: ImageSplit) -> Tensor:
        found: Tensor = encoder[torch.from_numpy(some.take(range(len(some)))[:, 0, 0, 0].astype(np.int64))]
        return found

    return KnnMonitor(data, EvaluateSettings(knn_k=1), features=features)


def measured(monitor: KnnMonitor, encoder: Tensor, epoch: int, saved: list[float] | None = None) -> Any:
    bests = [] if saved is None else saved
    trainer: Any = SimpleNamespace(
        method=SimpleNamespace(encoder=encoder),
        epoch=epoch,
        settings=SimpleNamespace(epochs=3),
        save_best=lambda: bests.append(monitor.best_val),
    )
    return monitor.on_epoch_end(trainer)


def test_held_out_pictures_are_not_in_their_bank_and_the_best_stays(monitor: KnnMonitor) -> None:
    first = measured(monitor, torch.eye(40), 1)  # each is like itself alone
    assert first["knn_top1"] == first["knn_top1_best"] == 100
    assert first["knn_top1_val"] <= 50  # it would be 100 if a held-out picture found itself
    second = measured(monitor, torch.ones(40, 40), 2)
    assert second["knn_top1"] < second["knn_top1_best"] == 100


def test_features_that_are_no_numbers_are_never_the_best(monitor: KnnMonitor) -> None:
    bests: list[float] = []
    by_class = torch.eye(4)[torch.arange(40) % 4]
    broken = torch.full((40, 4), float("nan"))
    first = measured(monitor, broken, 1, bests)
    assert math.isnan(first["knn_top1"]) and math.isnan(first["knn_top1_val"])
    assert (first["knn_top1_best"], bests) == (0, [])
    assert measured(monitor, by_class, 2, bests)["knn_top1_best"] == 100
    third = measured(monitor, broken, 3, bests)
    assert math.isnan(third["knn_top1"])
    assert (third["knn_top1_best"], monitor.best_val, bests) == (100, 100, [100])


def test_an_audit_is_of_one_epoch() -> None:
    """A run that goes on with another cadence may leave part of an audit behind: it is not mixed with the next."""

    def watch(every: int) -> AnalysisMonitor:
        pictures = ImageSplit(np.zeros((8, 8, 8, 3), np.uint8), np.full(8, -1, np.int64))
        settings = AnalyzeSettings(batches=2)
        return AnalysisMonitor(pictures, settings, every=every, features=lambda encoder, some: torch.randn(8, 4))

    def soft_label() -> SoftLabel:
        return SoftLabel(
            "view2",
            l2_normalize(torch.randn(2, 4)),
            l2_normalize(torch.randn(6, 4)),
            torch.zeros(6, dtype=torch.int64),
            0.1,
        )

    def audited(monitor: AnalysisMonitor, step: int) -> int:
        """How many samples the audit is of after a step of two, counted from 0, with four in an epoch."""
        trainer: Any = SimpleNamespace(step=step + 1, epoch=step // 4 + 1, loader=range(4), total_steps=40)
        trainer.settings = SimpleNamespace(epochs=10)
        monitor.on_step(trainer, StepOutput(0.0, {}, [([soft_label()], torch.zeros(2, dtype=torch.int64))]))
        return int(monitor.audit.result()["num_samples"])

    first = watch(1)
    assert [audited(first, step) for step in range(8)] == [0, 0, 2, 4, 4, 4, 2, 4]  # the last two of each epoch
    assert audited(first, 14) == 2  # the fourth epoch's
    second = watch(3)  # the fourth is not looked at any more, the sixth is
    second.load_state_dict(first.state_dict())
    assert second.audit.result()["num_samples"] == 2
    assert audited(second, 15) == 2
    assert audited(second, 22) == 2
    assert audited(second, 23) == 4  # of the same epoch, it goes on
