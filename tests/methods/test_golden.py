"""Ten steps of each method in fp64: a refactor that changes a loss changes this file.

After an intended change: pytest tests/methods/test_golden.py --update-golden, and say why in the commit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from msvq.core.runtime import warmup_cosine
from msvq.methods import METHODS
from msvq.train.optim import make_optimiser

GOLDEN = Path(__file__).with_name("golden.json")
Make = Callable[..., Any]


def ten_losses(method: Any, random_batch: Make) -> list[float]:
    method = method.double()
    optimiser, losses = make_optimiser(method, weight_decay=5e-4, decay_norm_and_bias=True), []
    for step in range(10):
        for group in optimiser.param_groups:
            group["lr"] = warmup_cosine(step, base_lr=0.06, warmup_steps=3, total_steps=10)
        optimiser.zero_grad()
        loss = method(random_batch(method, seed=step, progress=step / 10)).value
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", METHODS)
def test_ten_steps_give_the_golden_losses(
    name: str, tiny: Make, random_batch: Make, request: pytest.FixtureRequest
) -> None:
    losses = ten_losses(tiny(METHODS[name]), random_batch)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-golden"):
        golden[name] = losses
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(golden[name]), rtol=1e-6, atol=1e-9)
