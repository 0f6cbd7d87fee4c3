"""How similar an embedding is to the entries of a queue, as a softmax that is never written out.

Of P = softmax(ẑ·K/τ) over a queue K [Q, d], a cross entropy needs two things only: log Σ_j exp(ẑ·k_j/τ), and the mean
key Σ_j P_j k_j, for Σ_j P_j (q̂·k_j) is q̂ times the mean key. Both add up over pieces of the queue, so no matrix
[N, Q] is held, neither for the loss nor for its gradient, and the result is exact for a queue of any size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

PIECE = {"cpu": 2**20}  # entries of [N, Q] that are held at a time: what a processor's cache holds
PIECE_ELSEWHERE = 2**25


class Relation(NamedTuple):
    """P = softmax(z·K/τ), row by row."""

    z: Tensor  # unit embeddings [N, d]
    temp: float  # τ
    logsumexp: Tensor  # [N], log Σ_j exp(z·k_j/τ); a gradient reaches z through it
    mean_key: Tensor  # [N, d], Σ_j P_j k_j, without gradient


def relation(z: Tensor, keys: Tensor, temp: float) -> Relation:
    """P of unit embeddings z [N, d] over unit keys [Q, d]."""
    return relations(z, keys, temp)[0]


def relations(z: Tensor, keys: Tensor, *temps: float) -> list[Relation]:
    """P at several temperatures, which share the cosines."""
    with torch.autocast(z.device.type, enabled=False):
        parts: tuple[Tensor, ...] = _OnlineSoftmax.apply(z, keys, temps)
    return [Relation(z, temp, parts[2 * i], parts[2 * i + 1]) for i, temp in enumerate(temps)]


def cross_entropy(p: Relation, s: Relation) -> Tensor:
    """H(p, s) = -1/N Σ_i Σ_j p_ij log s_ij of two relations to the same keys; no gradient reaches p."""
    return (s.logsumexp - (s.z * p.mean_key).sum(1) / s.temp).mean()


def entropy(p: Relation) -> Tensor:
    """H(p, p); H(p, s) less this is KL(p || s)."""
    return cross_entropy(p, p)


def by_rows(function: Callable[..., Tensor], keys: Tensor, *embeddings: Tensor) -> Tensor:
    """The sum of `function`(rows of each of the embeddings [N, d], keys [Q, d]) over pieces of the batch.

    For losses that need the matrix [N, Q]: each piece is computed again in the backward pass, so that one is held.
    """
    rows = rows_at_once(keys)
    pieces = zip(*(z.split(rows) for z in embeddings), strict=True)
    if rows >= len(embeddings[0]):
        return function(*embeddings, keys)
    return torch.stack([checkpoint(function, *piece, keys, use_reentrant=False) for piece in pieces]).sum()


def rows_at_once(keys: Tensor) -> int:
    """How many rows of cosines [N, Q] with these keys are held at a time."""
    return max(1, _piece(keys.device) // max(1, len(keys)))


def _piece(device: torch.device) -> int:
    return PIECE.get(device.type, PIECE_ELSEWHERE)


def _at_once(ctx: Any, z: Tensor, keys: Tensor, temps: tuple[float, ...]) -> tuple[Tensor, ...]:
    """The same where the whole matrix [N, Q] may be held, in few kernels."""
    cosines, found = z @ keys.T, []
    for temp in temps:
        log_p = torch.log_softmax(cosines / temp, 1)
        log_sum = torch.sub(cosines[:, 0] / temp, log_p[:, 0])
        found += [log_sum, log_p.exp_() @ keys]
    ctx.save_for_backward(*found[1::2])
    ctx.temps = temps
    ctx.mark_non_differentiable(*found[1::2])
    return tuple(found)


class _OnlineSoftmax(torch.autograd.Function):
    """(log sum, mean key) at each temperature, in one pass over the queue that serves the gradient too."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, keys: Tensor, temps: tuple[float, ...]) -> tuple[Tensor, ...]:
        """Softmax in pieces: what is summed so far shrinks whenever a larger logit turns up."""
        if z.device.type != "cpu" and 0 < len(keys) * len(z) <= PIECE_ELSEWHERE:
            return _at_once(ctx, z, keys, temps)
        top = [z.new_full((len(z), 1), float("-inf")) for _ in temps]
        total = [z.new_zeros(len(z), 1) for _ in temps]
        weighted = [torch.zeros_like(z) for _ in temps]
        columns = max(1, _piece(z.device) // max(1, len(z)))
        for part in keys.split(columns) if len(keys) else ():
            cosines = z @ part.T
            for i, temp in enumerate(temps):
                logits = cosines.div_(temp) if i == len(temps) - 1 else cosines / temp
                peak = torch.maximum(top[i], logits.amax(1, keepdim=True))
                weights = logits.sub_(peak).exp_()
                shrink = (top[i] - peak).exp_()
                total[i].mul_(shrink).add_(weights.sum(1, keepdim=True))
                weighted[i].mul_(shrink).addmm_(weights, part)
                top[i] = peak
        means = [w / t.clamp_min(torch.finfo(z.dtype).tiny) for w, t in zip(weighted, total, strict=True)]
        ctx.save_for_backward(*means)
        ctx.temps = temps
        ctx.mark_non_differentiable(*means)
        log_sums = [(t.log() + peak)[:, 0] for t, peak in zip(total, top, strict=True)]
        return tuple(part for pair in zip(log_sums, means, strict=True) for part in pair)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """∂ log Σ_j exp(z·k_j/τ) / ∂z is the mean key over τ."""
        parts = zip(gradients[::2], ctx.saved_tensors, ctx.temps, strict=True)
        return torch.stack([g[:, None] * mean / temp for g, mean, temp in parts]).sum(0), None, None
