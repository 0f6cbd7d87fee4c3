"""The optimisers: everything that learns in groups whose rate the trainer sets, with their state from the beginning."""

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.methods.base import Method

FUSED = ("cpu", "cuda", "mps", "xpu")  # where PyTorch updates all parameters in one kernel
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's a, b and c: few steps take singular values near 1, none to 1


def make_optimiser(
    method: Method, name: str = "sgd", *, weight_decay: float, decay_norm_and_bias: bool
) -> torch.optim.Optimizer:
    """An optimiser over everything that learns, the student's parameters alone.

    The paper's code decays batch-norm weights and biases too; `decay_norm_and_bias=False` spares them. Groups of what
    the method wants at a constant rate are marked so.
    """
    learning = [p for p in method.parameters() if p.requires_grad]
    constant = {id(p) for module in method.constant_rate for p in module.parameters()}
    spared = {id(p) for p in learning if p.ndim <= 1 and not decay_norm_and_bias}
    groups: list[dict[str, Any]] = []
    for fixed, spare in itertools.product((False, True), repeat=2):
        chosen = [p for p in learning if (id(p) in constant, id(p) in spared) == (fixed, spare)]
        if chosen:
            decay = 0.0 if spare else weight_decay
            groups.append({"params": chosen, "weight_decay": decay, "constant_rate": fixed})

    fused = all(p.device.type in FUSED for p in learning)
    optimiser: torch.optim.Optimizer
    if name == "sgd":
        optimiser = torch.optim.SGD(groups, lr=0.0, momentum=0.9, fused=fused)
    elif name == "adamw":
        optimiser = torch.optim.AdamW(groups, lr=0.0, fused=fused)
    elif name == "lars":
        optimiser = MatrixOptimizer(groups, update_lars)
    else:
        optimiser = MatrixOptimizer(groups, update_muon, vector_rate=0.3)  # of Muon's 0.1 it makes 0.03

    # PyTorch makes the state in the first step. Here it is there before, so that a checkpoint can be compared with it,
    # and because fused SGD reads momentum that was never written where fp16's scaler leaves out the first step.
    for p in learning:
        averages = ("exp_avg", "exp_avg_sq") if name == "adamw" else ("momentum_buffer",)
        optimiser.state[p] = {key: torch.zeros_like(p) for key in averages}
        if name == "adamw":
            optimiser.state[p]["step"] = torch.zeros((), device=p.device if fused else "cpu")
    return optimiser


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take the averages of a saved state that is built like the optimiser's; all else follows from the settings."""
    optimiser.load_state_dict({**state, "param_groups": optimiser.state_dict()["param_groups"]})
    lay_out_averages(optimiser)


def lay_out_averages(optimiser: torch.optim.Optimizer) -> None:
    """Let averages lie in memory as their parameters do; the layout differs between devices, and with compiling.

    Fused kernels go through both side by side: a processor's takes for granted that they lie alike, a card's insists.
    """
    for p, averages in optimiser.state.items():
        for key, value in averages.items():
            if value.shape == p.shape and value.stride() != p.stride():
                averages[key] = torch.empty_like(p).copy_(value)


def check_optimiser(method: Method, name: str) -> None:
    """Raise if a method has nothing that the optimiser is for."""
    if name == "muon" and not any(p.requires_grad and p.ndim > 1 for p in method.parameters()):
        what = f"{type(method).__name__} learns none"
        raise BadInput(f"muon is for matrices and convolutions, and {what}; choose another train.optimiser")


# --- what PyTorch does not have, or not for convolutions


class MatrixOptimizer(torch.optim.Optimizer):
    """Matrices and convolutions by a rule of their own; norms and biases by SGD with momentum.

    `update(params, grads, momenta, lr, weight_decay)` changes matrices and their momenta in place. `vector_rate`: the
    rate of the rest, in rates of the matrices.
    """

    def __init__(self, groups: list[dict[str, Any]], update: Callable[..., None], *, vector_rate: float = 1.0) -> None:
        super().__init__(groups, {"lr": 0.0})
        self.update, self.vector_rate = update, vector_rate

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all groups."""
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for is_matrix in (True, False):
                params = [p for p in group["params"] if p.grad is not None and (p.ndim > 1) == is_matrix]
                grads = [p.grad for p in params]
                momenta = [self.state[p]["momentum_buffer"] for p in params]
                if params and is_matrix:
                    self.update(params, grads, momenta, lr, decay)
                elif params:
                    _descend(params, torch._foreach_add(grads, params, alpha=decay), momenta, self.vector_rate * lr)


def _descend(params: list[Tensor], updates: tuple[Tensor, ...], momenta: list[Tensor], lr: float) -> None:
    """SGD with momentum 0.9."""
    torch._foreach_mul_(momenta, 0.9)
    torch._foreach_add_(momenta, updates)
    torch._foreach_add_(params, momenta, alpha=-lr)


def update_lars(
    params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], lr: float, weight_decay: float
) -> None:
    """SGD where each step is a thousandth as long as the matrix (You et al., 2017), as in SimCLR and BYOL."""
    updates = torch._foreach_add(grads, params, alpha=weight_decay)
    sizes, lengths = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, updates))
    ratios = torch.where((sizes > 0) & (lengths > 0), 1e-3 * sizes / lengths, 1.0)
    torch._foreach_mul_(updates, list(ratios.unbind()))
    _descend(params, updates, momenta, lr)


def update_muon(
    params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], lr: float, weight_decay: float
) -> None:
    """Nesterov's momentum, its singular values set near 1 (Jordan et al., 2024). A convolution has a row per output."""
    torch._foreach_lerp_(momenta, grads, 0.05)
    updates = torch._foreach_lerp(grads, momenta, 0.95)
    torch._foreach_mul_(params, 1 - lr * weight_decay)
    by_shape = defaultdict(list)  # those of a shape are one batch
    for p, update in zip(params, updates, strict=True):
        # Channels last, as they are in memory: the order of columns does not matter.
        by_shape[p.movedim(1, -1).shape].append((p, update.movedim(1, -1).flatten(1)))
    for shape, pairs in by_shape.items():
        directions = orthogonalize(torch.stack([matrix for _, matrix in pairs]))
        scale = max(1, directions.shape[1] / directions.shape[2]) ** 0.5
        for (p, _), direction in zip(pairs, directions, strict=True):
            p.add_(direction.view(shape).movedim(-1, 1), alpha=-lr * scale)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Matrices [N, rows, columns] with the same singular vectors, and singular values near 1 unless they were near 0.

    Newton-Schulz: X becomes (aI + bG + cG²) X five times, where G = XXᵀ. All these factors are polynomials of the first
    G, so that G goes from step to step without X, which in most layers has many more columns than rows.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalize(matrices.mT).mT
    x = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=1e-7)
    gram = x @ x.mT
    factor = product = _quintic(gram)
    for _ in range(4):
        gram = factor @ gram @ factor
        factor = _quintic(gram)
        product = factor @ product
    return torch.bmm(product, x)


def _quintic(gram: Tensor) -> Tensor:
    a, b, c = NEWTON_SCHULZ
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor
