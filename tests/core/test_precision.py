"""Devices and number formats."""

import pytest
import torch

from msvq.core.errors import BadInput
from msvq.core.runtime import autocast, resolve_device, resolve_precision

CPU = torch.device("cpu")


def test_auto_takes_what_is_there() -> None:
    there = torch.accelerator.current_accelerator(check_available=True)
    assert resolve_device("auto").type == ("cpu" if there is None else there.type)


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "meta"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(BadInput, match="auto"):
        resolve_device(name)


@pytest.mark.parametrize("native", [True, False])
def test_auto_precision_is_bf16_where_native(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msvq.core.runtime.cpu_has_bf16", lambda: native)
    assert resolve_precision("auto", CPU) == ("bf16" if native else "fp32")
    assert resolve_precision("fp32", CPU) == "fp32"
    assert resolve_precision("bf16", CPU) == "bf16"


def test_autocast_computes_in_bf16_when_asked() -> None:
    a = torch.randn(4, 4)
    with autocast(CPU, "bf16"):
        assert (a @ a).dtype == torch.bfloat16
    with autocast(CPU, "fp32"):
        assert (a @ a).dtype == torch.float32
