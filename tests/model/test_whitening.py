"""The layer that whitens features: against a slow reference, in and out of training, and through every door."""

import copy
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pretended_device import NAME, pretended_device

import msvq
from msvq.config.build import build_method
from msvq.core.errors import BadInput
from msvq.data.sources import open_dataset
from msvq.evaluate.diagnostics.health import measure_health
from msvq.evaluate.features import feature_function, fit_whitening
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.whitening import RIDGE, Whitened, Whitening, without_whitening
from msvq.runs.checkpoint import load_checkpoint
from msvq.runs.encoder import load_run_encoder

OVERRIDES = ["train.batch_size=16", "backbone.width=8", "method.hidden_dim=16", "method.output_dim=8", "train.epochs=2"]


def correlated(num: int = 200, dim: int = 6) -> torch.Tensor:
    return torch.randn(num, dim) @ torch.randn(dim, dim) + 3 * torch.randn(dim)


def test_it_is_the_inverse_root_of_the_covariance_by_loops() -> None:
    features = correlated().double()
    layer = Whitening(6).double()
    layer.fit(features)
    num, dim = features.shape
    mean = [sum(float(row[i]) for row in features) / num for i in range(dim)]
    covariance = np.array(
        [
            [sum((float(r[i]) - mean[i]) * (float(r[j]) - mean[j]) for r in features) / num for j in range(dim)]
            for i in range(dim)
        ]
    )
    ridged = covariance + RIDGE * np.trace(covariance) / dim * np.eye(dim)
    weight = layer.weight.numpy()
    assert np.allclose(weight, weight.T)
    assert np.allclose(weight @ ridged @ weight, np.eye(dim))
    assert np.allclose(layer(features).numpy(), (features.numpy() - mean) @ weight)


def test_features_end_up_centred_and_of_like_variance_in_all_directions() -> None:
    features = correlated(1000)
    layer = Whitening(6)
    layer.fit(features)
    white = layer(features)
    covariance = white.T @ white / len(white)
    assert white.mean(0).abs().max() < 1e-4
    before = torch.linalg.eigvalsh(torch.cov(features.T))
    after = torch.linalg.eigvalsh(covariance)
    assert after[-1] / after[0] < before[-1] / before[0] / 3


def test_it_can_be_undone() -> None:
    features, layer = correlated(), Whitening(6)
    layer.fit(features)
    torch.testing.assert_close(layer.undo(layer(features)).float(), features, rtol=1e-3, atol=1e-3)


def test_it_can_be_undone_where_the_layer_is_on_a_device_without_doubles() -> None:
    """Features come from a file, and the network is where it computes."""
    features, layer = correlated(), Whitening(6)
    layer.fit(features)
    whitened = layer(features)
    with pretended_device(lacks=(torch.float64,)):
        torch.testing.assert_close(layer.to(NAME).undo(whitened).float(), features, rtol=1e-3, atol=1e-3)


def test_a_checkpoint_between_two_looks_has_the_layer_of_its_own_features(tmp_path: Path) -> None:
    def stop(line: Mapping[str, Any]) -> None:
        if line["step"] == 9:
            raise ValueError("enough")

    options = [*OVERRIDES, "data.limit=160", "backbone.whiten=true", "evaluate.every=99", "train.log_every=1"]
    with pytest.raises(ValueError, match="enough"):
        msvq.pretrain(out=tmp_path / "run", method="simclr", precision="fp32", overrides=options, callbacks=[stop])
    encoder = msvq.load(tmp_path / "run").encoder
    assert isinstance(encoder, Whitened)
    data = open_dataset(msvq.load(tmp_path / "run").config.data)
    fresh = copy.deepcopy(encoder)
    fresh.whitening = Whitening(encoder.feature_dim)
    fit_whitening(fresh, feature_function(data, torch.device("cpu"), "fp32"), data.train)
    torch.testing.assert_close(encoder.whitening.weight, fresh.whitening.weight)
    torch.testing.assert_close(encoder.whitening.bias, fresh.whitening.bias)


def test_a_run_that_is_stopped_is_saved_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        if fits:
            raise BadInput("the pictures are gone")
        fits.append(None)  # the first look, before the first step

    fits: list[None] = []
    monkeypatch.setattr("msvq.train.monitors.fit_whitening", broken)
    options = [*OVERRIDES, "data.limit=160", "backbone.whiten=true", "evaluate.every=99", "train.log_every=1"]

    def stop(line: Mapping[str, Any]) -> None:
        if line["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(BadInput, match="the pictures are gone"):
        msvq.pretrain(out=tmp_path / "run", method="simclr", precision="fp32", overrides=options, callbacks=[stop])
    state = load_checkpoint(tmp_path / "run" / "checkpoints", print)
    assert state["step"] == 3


@pytest.mark.parametrize("features", [torch.ones(10, 4), torch.full((10, 4), torch.nan), torch.zeros(0, 4)])
def test_what_cannot_be_whitened_leaves_it_as_it_is(features: torch.Tensor) -> None:
    layer = Whitening(4)
    layer.fit(features)
    assert torch.equal(layer.weight, torch.eye(4)) and not layer.bias.any()


def test_fewer_pictures_than_features_do_no_harm() -> None:
    features = correlated(5, 40)
    layer = Whitening(40)
    layer.fit(features)
    assert layer(features).isfinite().all() and layer.weight.abs().max() < 10 / features.std()


def test_whitening_in_bf16_is_in_fp32() -> None:
    layer, features = Whitening(6), correlated()
    layer.fit(features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(features), layer.float()(features)) and layer(features).dtype == torch.float32


def test_a_method_trains_the_backbone_as_if_it_were_not_there() -> None:
    plain, whitened = (
        make_backbone(BackboneSettings(name="resnet8", width=4, whiten=whiten), 16) for whiten in (False, True)
    )
    assert isinstance(whitened, Whitened) and whitened.feature_dim == plain.feature_dim
    without_whitening(whitened).load_state_dict(plain.state_dict())
    whitened.whitening.fit(torch.randn(50, plain.feature_dim))
    pictures = torch.randn(4, 3, 16, 16)
    assert torch.equal(whitened.train()(pictures), plain.train()(pictures))
    features = plain.eval()(pictures)
    assert torch.equal(whitened.eval()(pictures), whitened.whitening(features))
    whitened.fixed = True
    assert not torch.allclose(whitened.train()(pictures), copy.deepcopy(plain).train()(pictures))
    assert not list(whitened.whitening.parameters())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    """A short run whose encoder ends in a whitening."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("whitened")
    np.savez(folder / "pictures.npz", images=rng.integers(0, 256, (64, 16, 16, 3), np.uint8))
    return msvq.pretrain(data=folder / "pictures.npz", recipe="fast", overrides=OVERRIDES, out=folder / "run")


def test_a_run_fits_it_to_its_own_pictures(run: msvq.Run) -> None:
    encoder = load_run_encoder(run)
    assert run.config.backbone.whiten and isinstance(encoder.network, Whitened) and encoder.network.fixed
    with np.load(run.path.parent / "pictures.npz") as arrays:
        images = arrays["images"]
    white = torch.from_numpy(run.embed(images))
    assert white.mean(0).abs().max() < 0.1  # it was fitted to features in bf16
    fitted, encoder.network.whitening = encoder.network.whitening, Whitening(encoder.feature_dim)
    assert torch.allclose(fitted(torch.from_numpy(encoder(images))), white, atol=1e-3)


def test_health_is_of_the_features_before_it(run: msvq.Run) -> None:
    method = build_method(run.config, 16)
    seen = []

    def features(encoder: torch.nn.Module, pictures: Any) -> torch.Tensor:
        seen.append(encoder)
        return torch.randn(20, 64)

    measure_health(method, pictures=open_dataset(run.config.data).train, features=features)
    assert seen == [method.encoder.network]


def test_a_run_can_start_from_one_that_has_it(run: msvq.Run, tmp_path: Path) -> None:
    data = run.path.parent / "pictures.npz"
    again = msvq.pretrain(data=data, recipe="fast", overrides=OVERRIDES, init=run.path, out=tmp_path / "again")
    assert again.environment()["init"]["prefix"] == "network."
