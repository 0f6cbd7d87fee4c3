"""Losses on embeddings. Similarities, softmax and losses are always computed in fp32 (or fp64 if given)."""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit(z: Tensor) -> Tensor:
    """ẑ = z / |z|, row by row, in fp32 or better."""
    return F.normalize(z if z.dtype == torch.float64 else z.float(), dim=1)


def similarity(z: Tensor, keys: Tensor) -> Tensor:
    """Cosines [N, Q] of embeddings [N, d] with unit keys [Q, d]: Eq. 2, kept out of autocast."""
    with torch.autocast(z.device.type, enabled=False):
        return unit(z) @ keys.T


def soft_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """H(p, s) = -1/N Σ_i Σ_j p_ij log s_ij for targets p [N, Q] and s = softmax(logits [N, Q])."""
    return -(target * F.log_softmax(logits, dim=1)).sum(1).mean()


def entropy(p: Tensor) -> Tensor:
    """H(p, p), the mean entropy of the rows of p [N, Q]; H(p, s) less this is KL(p || s)."""
    return torch.xlogy(p, p).sum(1).mean().neg()


def info_nce(q: Tensor, k: Tensor, keys: Tensor, *, temp: float) -> Tensor:
    """MoCo's loss, Eq. 1: the query's own key k against the negatives [Q, d]; q, k [N, d].

    The positive stands in front of the negatives and is never among them. No gradient reaches k.
    """
    with torch.autocast(q.device.type, enabled=False):
        positive = (unit(q) * unit(k.detach())).sum(1, keepdim=True)
    logits = torch.cat([positive, similarity(q, keys)], dim=1) / temp
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64, device=q.device))
