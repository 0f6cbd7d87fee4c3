"""Depth, norm and sizes of the projector: options of every method that has one, by one mechanism."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from msvq.config.describe import describe_keywords
from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.methods import METHODS
from msvq.methods.keywords import KEYWORDS
from msvq.model.heads import projector

Make = Callable[..., Any]
WITH_PROJECTOR = [name for name in METHODS if name not in ("supervised", "unmix")]  # a classifier; another method's
OPTIONS = {"projector_layers", "projector_norm", "hidden_dim", "output_dim"}


def layers(head: nn.Module) -> str:
    """A letter for each layer."""
    letters = {nn.Linear: "L", nn.BatchNorm1d: "N", nn.ReLU: "R"}
    return "".join(letters[type(layer)] for layer in head.children())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "LRL"),
        ({"norm": "hidden"}, "LNRL"),
        ({"norm": "all"}, "LNRLN"),
        ({"layers": 1}, "L"),
        ({"layers": 1, "norm": "all"}, "LN"),
        ({"layers": 4, "norm": "hidden"}, "LNRLNRLNRL"),
    ],
)
def test_layers_come_in_order(options: dict[str, Any], expected: str) -> None:
    head = projector(12, 7, 5, **options)
    assert layers(head) == expected
    linear = [layer for layer in head if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == [12, *[7] * (len(linear) - 1)]
    assert linear[-1].out_features == 5


@pytest.mark.parametrize("name", WITH_PROJECTOR)
def test_every_method_with_a_projector_takes_its_shape(name: str, tiny: Make, random_batch: Make) -> None:
    assert METHODS[name].hyperparameters().keys() >= OPTIONS
    method = tiny(METHODS[name], projector_layers=3, projector_norm="hidden")
    assert layers(method.student.projector) == "LNRLNRL"
    plain = tiny(METHODS[name], projector_layers=1, projector_norm="none")
    assert layers(plain.student.projector) == "L"
    method(random_batch(method)).value.backward()


def test_a_wrapped_method_has_them_too(tiny: Make) -> None:
    options = {"projector_layers": 3, "projector_norm": "all", "hidden_dim": 16, "output_dim": 8, "queue_size": 32}
    assert layers(tiny(METHODS["unmix"], base_options=options).student.projector) == "LNRLNRLN"


def test_settings_check_them_and_say_a_members_own_norm() -> None:
    found = {name: resolve(data="patterns", method=name).method["projector_norm"] for name in ("msvq", "msvq-dagger")}
    assert found == {"msvq": "none", "msvq-dagger": "hidden"}
    for wrong in ("projector_norm=some", "projector_layers=0"):
        with pytest.raises(BadInput, match=wrong.partition("=")[0]):
            resolve(data="patterns", overrides=[f"method.{wrong}"])


def test_every_keyword_is_described() -> None:
    rows = {row.path: row for row in describe_keywords()}
    assert {path.removeprefix("method.") for path in rows} == KEYWORDS.keys()
    assert rows["method.projector_norm"].values == "`none` or `hidden` or `all`"
    assert rows["method.projector_layers"].default == "`2`; `3`: nnclr, snclr"
