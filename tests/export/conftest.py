"""Runs to export: an untrained encoder with everything a run leaves behind, made in a moment."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msvq
from msvq.config.resolve import resolve
from msvq.core.files import write_text
from msvq.data.sources import open_dataset
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.whitening import Whitening
from msvq.runs.encoder import LoadedEncoder, load_run_encoder, save_encoder

MakeRun = Callable[..., msvq.Run]


def lively(network: nn.Module) -> nn.Module:
    """A network whose batch norms have seen something: with means 0 and deviations 1, mistakes would not show."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator) * 0.1)
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
        if isinstance(module, Whitening):
            module.fit(torch.randn(2 * len(module.bias), len(module.bias), generator=generator))
    return network.eval()


def make_run(path: Path, *, name: str | None = None, **backbone: Any) -> msvq.Run:
    """A run as it is after training; `name`: of its data."""
    overrides = ["data.limit=40", "data.size=16", "data.test_size=32", "backbone.name=resnet18", "backbone.stem=small"]
    overrides += [f"backbone.{key}={value}" for key, value in backbone.items()]
    settings = resolve(data="patterns", overrides=overrides)
    data = open_dataset(settings.data)
    data = replace(data, name=name or data.name)
    write_text(path / "config.yaml", settings.to_yaml())
    known = {"mean": data.mean, "std": data.std, "data": data.name, "msvq": "0.1.0"}
    write_text(path / "environment.json", json.dumps(known))
    write_text(
        path / "metrics.jsonl", json.dumps({"kind": "eval", "step": 7, "epoch": 1, "knn_top1_val": 31.25}) + "\n"
    )
    encoder = lively(make_backbone(settings.backbone, data.size))
    save_encoder(path, encoder, settings, data)
    return msvq.load(path)


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return make_run(tmp_path_factory.mktemp("narrow"), width=4)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return make_run(tmp_path_factory.mktemp("wide"), width=64)


@pytest.fixture
def subject_of(narrow: msvq.Run) -> Callable[..., LoadedEncoder]:
    """A subject with another network than the run's, as a backbone of that name would be."""

    def make(encoder: nn.Module, **backbone: Any) -> LoadedEncoder:
        subject = load_run_encoder(narrow, "last")
        lively(encoder).requires_grad_(False)
        with torch.inference_mode():
            features = encoder(torch.zeros(1, 3, subject.size, subject.size))
        dim = int(features.shape[1])
        return replace(subject, network=encoder, backbone=BackboneSettings(**backbone), feature_dim=dim)

    return make
