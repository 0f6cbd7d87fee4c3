"""docs/deviations.md names settings; each of them exists."""

import re
from pathlib import Path

import pytest

from msvq.config.resolve import resolve
from msvq.core.schema import assign, parse_assignment
from msvq.evaluate.protocols import PROTOCOLS
from msvq.methods import METHODS

PAGE = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text(encoding="utf-8")
ROWS = {int(row.split("|")[1]): row for row in PAGE.splitlines() if re.match(r"\| \d+ \|", row)}


def settings_in(text: str) -> list[str]:
    return re.findall(r"--set ([\w.]+=[^\s`]+)", text)


def test_every_item_of_the_specification_is_there() -> None:
    assert list(ROWS) == list(range(1, 28))


@pytest.mark.parametrize("recipe", ["cifar10", "cifar100", "stl10", "tinyimagenet"])
def test_what_is_said_to_get_the_other_is_accepted(recipe: str) -> None:
    for number, row in ROWS.items():
        found = settings_in(row)
        if number == 20:
            kind = PROTOCOLS["linear"].settings
            values = kind().model_dump(mode="json")
            for text in found:
                assign(values, *parse_assignment(text))
            assert kind.model_validate(values) != kind()
        elif found:
            resolve(recipe=recipe, overrides=found)
    for method in re.findall(r"`--method ([\w-]+)`", PAGE):
        assert method in METHODS


def test_what_is_said_to_be_here_is_in_the_recipes() -> None:
    options = {name: resolve(recipe=name).method_options for name in ("cifar10", "cifar100", "stl10", "tinyimagenet")}
    for name, block in options.items():
        large = name in ("stl10", "tinyimagenet")
        assert (block["bn_splits"], block["shuffle"], block["student_temp"]) == (8, True, 0.1)
        assert block["teacher_temp"] == (0.03 if name == "cifar100" else 0.04)
        assert block["momentum1"] == (0.996 if large else 0.99)
        assert block["momentum2"] == {"cifar10": 0.95, "cifar100": 0.93}.get(name, 0.99)
        assert block["queue_size"] == (16384 if large else 4096)
        assert (block["teacher_augmentation"], block["warm_start"]) == ("weak", 0.0)
        settings = resolve(recipe=name)
        assert settings.backbone.stem == ("small-pool" if large else "small")
        assert (settings.train.base_lr, settings.train.batch_size, settings.train.warmup_epochs) == (0.06, 256, 5)
        assert (settings.train.weight_decay, settings.train.decay_norm_and_bias) == (5e-4, True)
        assert settings.augment.weak.flip == 0.9
    assert resolve(recipe="stl10").data.test_size == 96
