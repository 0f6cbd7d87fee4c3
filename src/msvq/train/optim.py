"""The optimiser, and its state in a checkpoint."""

from typing import Any

import torch

from msvq.methods.base import Method


def make_optimiser(
    method: Method, *, weight_decay: float, decay_norm_and_bias: bool, scaled: bool = False
) -> torch.optim.SGD:
    """SGD with momentum 0.9 over everything that learns, the student's parameters alone.

    The paper's code decays batch-norm weights and biases too; `decay_norm_and_bias=False` spares them. Groups of what
    the method wants at a constant rate are marked so. `scaled`: its gradients come through a loss scaler.
    """
    learning = [p for p in method.parameters() if p.requires_grad]
    constant = {id(p) for module in method.constant_rate for p in module.parameters()}
    groups: list[dict[str, Any]] = []
    for fixed in (False, True):
        for spared in (False, True):
            chosen = [
                p
                for p in learning
                if (id(p) in constant) is fixed and (p.ndim <= 1 and not decay_norm_and_bias) is spared
            ]
            if chosen:
                decay = 0.0 if spared else weight_decay
                groups.append({"params": chosen, "weight_decay": decay, "constant_rate": fixed})
    # One kernel for all, but not where a scaler may leave out the first step: PyTorch's then reads momentum that
    # was never written.
    fused = not scaled and all(p.device.type in ("cpu", "cuda") for p in learning)
    return torch.optim.SGD(groups, lr=0.0, momentum=0.9, fused=fused)


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take the momentum of a saved state; everything else follows from the settings. Raises if it does not fit."""
    optimiser.load_state_dict({**state, "param_groups": optimiser.state_dict()["param_groups"]})
    for group in optimiser.param_groups if optimiser.state else ():
        for p in group["params"]:
            momentum = optimiser.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            if momentum.shape != p.shape or momentum.dtype != p.dtype:
                raise ValueError(f"momentum of {list(momentum.shape)} for {list(p.shape)}")
