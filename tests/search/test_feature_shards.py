"""Features in shards: what is finished is kept when memory runs out."""

from pathlib import Path

import pytest
import torch
from tests.search.conftest import NUM, Says
from torch import Tensor

import msvq
from msvq.core.files import indexes
from msvq.model.resnet import ResNet
from msvq.search import feature_shards


def test_finished_parts_are_kept_when_memory_runs_out(
    says: Says, small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CHUNK", 4), ("SHARD_SIZE", 8)):
        monkeypatch.setattr(feature_shards, name, value)
    batches, real = [0], ResNet.forward

    def runs_out(self: ResNet, x: Tensor) -> Tensor:
        batches[0] += 1
        if batches[0] == 3:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
        return real(self, x)

    words = ("embed", small_run.path, "--data", photos, "--out", photos.parent / "e.npz", "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(ResNet, "forward", runs_out)
        code, said, error = says(*words, "--batch-size", 8)
    assert (code, said) == (2, "")
    assert error.strip().endswith("8 pictures at a time do not fit into the memory of cpu; free some")
    assert len(error.strip().splitlines()) == 1
    kept = sorted(path.name for path in indexes().glob("*/.parts/*.npz"))
    assert kept == ["000000.npz", "000001.npz"]
    code, said, error = says(*words, "--batch-size", 4)
    assert code == 0
    assert f"continuing: 16 of {NUM + 2} pictures are done already" in error
    assert f"{NUM} pictures" in said
    assert not list(indexes().glob("*/.parts"))
