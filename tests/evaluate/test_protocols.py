"""What the frozen protocols say of features, without a network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.report.fixtures import make_run
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.runtime import OutOfMemory
from msvq.core.schema import Section
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate import protocols
from msvq.evaluate.features import EvalContext
from msvq.evaluate.finetune import FinetuneSettings
from msvq.evaluate.knn import KnnSettings
from msvq.evaluate.linear import LinearSettings
from msvq.evaluate.protocols import evaluate_knn, run_protocol
from msvq.model.backbones import BackboneSettings
from msvq.report.page import write_report

NUM = 24
VOTE = KnnSettings(k=3)


def subject(bank: Tensor, test: Tensor) -> EvalContext:
    """Of features of pictures of four classes in turn."""
    pictures = ImageSplit(np.zeros((NUM, 8, 8, 3), np.uint8), np.arange(NUM, dtype=np.int64) % 4)
    data = ImageDataset("four", pictures, pictures, pictures, tuple("abcd"), (0.5,) * 3, (0.25,) * 3, 8, 8)
    cpu = torch.device("cpu")
    return EvalContext(nn.Identity(), BackboneSettings(), data, cpu, "fp32", Display(), cached=(bank, test))


def features() -> Tensor:
    return torch.eye(4)[torch.arange(NUM) % 4]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_knn_of_features_that_are_not_finite_is_refused(part: int, value: float) -> None:
    both = features(), features()
    both[part][5, 1] = value
    with pytest.raises(BadInput, match="the features are not all finite"):
        evaluate_knn(subject(*both), VOTE, None, 0)


@pytest.mark.parametrize(
    ("protocol", "settings", "lower"),
    [("linear_evaluation", LinearSettings(), "batch_size or size"), ("finetune", FinetuneSettings(), "batch_size")],
)
def test_too_little_memory_is_told_with_what_to_lower(
    monkeypatch: pytest.MonkeyPatch, protocol: str, settings: Section, lower: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4680000000000 bytes")

    monkeypatch.setattr(protocols, protocol, fail)
    name = "linear" if protocol == "linear_evaluation" else protocol
    with pytest.raises(BadInput, match=f"256 pictures does not fit into the memory of cpu; lower {lower} with --set"):
        run_protocol(name, subject(features(), features()), settings, {}, checkpoint="last", step=1)


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_an_encoder_that_needs_too_much_memory_is_not_called_unfit(protocol: str) -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.empty(10**15)

    settings = LinearSettings() if protocol == "linear" else FinetuneSettings()
    large = replace(subject(features(), features()), encoder=Large())
    with pytest.raises(OutOfMemory, match="does not fit into the memory of cpu"):
        run_protocol(protocol, large, settings, {}, checkpoint="last", step=1)


def test_a_matrix_of_very_many_classes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MOST_CONFUSED", 4)
    found = evaluate_knn(subject(features(), features()), VOTE, None, 0)
    assert found["confusion"] == (6 * np.eye(4, dtype=int)).tolist()
    monkeypatch.setattr(protocols, "MOST_CONFUSED", 3)
    without = evaluate_knn(subject(features(), features()), VOTE, None, 0)
    assert without == {key: value for key, value in found.items() if key != "confusion"}
    assert without["class_names"] == list("abcd")


def test_a_result_without_a_matrix_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MOST_CONFUSED", 3)
    run = make_run(tmp_path / "run", names=tuple("abcd"))
    found = run_protocol("knn", subject(features(), features()), VOTE, {}, checkpoint="last", step=1)
    assert found.save(run / "eval") == run / "eval" / "knn.json"
    page = write_report(run, figures=False).read_text()
    assert "Which classes are confused?" not in page
    assert "<td>100.0 ± " in page
