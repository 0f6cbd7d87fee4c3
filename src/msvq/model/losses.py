"""Losses on embeddings. Similarities, softmax and losses are always computed in fp32 (or fp64 if given).

On several ranks each has its rows of the batch, and the loss is the mean over the ranks. Where the pictures of a batch
are contrasted with each other, all of them are gathered, and every rank computes the loss of the whole batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from msvq.core.distributed import all_gather
from msvq.model.relations import Relation, relation


def l2_normalize(z: Tensor) -> Tensor:
    """ẑ = z / |z|, row by row, in fp32 or better."""
    return F.normalize(z if z.dtype == torch.float64 else z.float(), dim=1)


def similarity(z: Tensor, keys: Tensor) -> Tensor:
    """Cosines [N, Q] of embeddings [N, d] with unit keys [Q, d]: Eq. 2, kept out of autocast."""
    with torch.autocast(z.device.type, enabled=False):
        return l2_normalize(z) @ keys.T


def info_nce_from_relation(q: Tensor, k: Tensor, others: Relation) -> Tensor:
    """MoCo's loss, Eq. 1: the query's own key against the negatives that `others` relates it to.

    Unit queries and keys [N, d]. The own key is never among the others, and no gradient reaches it.
    """
    own = (q * k.detach()).sum(1) / others.temp
    return (torch.logaddexp(own, others.logsumexp) - own).mean()


def info_nce(q: Tensor, k: Tensor, keys: Tensor, *, temp: float) -> Tensor:
    """InfoNCE of embeddings q, k [N, d] of any length with unit negatives [Q, d]."""
    q = l2_normalize(q)
    return info_nce_from_relation(q, l2_normalize(k), relation(q, keys, temp))


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """-cos(p, sg(z)), mean over the batch; p, z [N, d]. BYOL's squared distance is 2 + 2 times this."""
    with torch.autocast(p.device.type, enabled=False):
        return -(l2_normalize(p) * l2_normalize(z.detach())).sum(1).mean()


def mean_shift(p: Tensor, neighbours: Tensor) -> Tensor:
    """The mean squared distance 2 - 2 p̂·n of p [N, d] to each of its neighbours [N, k, d], unit vectors or shorter."""
    with torch.autocast(p.device.type, enabled=False):
        return 2 - 2 * torch.einsum("nd,nkd->nk", l2_normalize(p), neighbours).mean()


def nt_xent(z1: Tensor, z2: Tensor, *, temp: float) -> Tensor:
    """SimCLR's loss over the 2N embeddings of two views [N, d]: each finds its partner among all the others."""
    z1, z2 = all_gather(z1), all_gather(z2)
    z = l2_normalize(torch.cat([z1, z2]))
    with torch.autocast(z.device.type, enabled=False):
        logits = z @ z.T / temp
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
    partner = torch.arange(len(z), device=z.device).roll(len(z1))
    return F.cross_entropy(logits, partner)


def multi_positive_nt_xent(z: Tensor, *, num_views: int, temp: float) -> Tensor:
    """NT-Xent over several views of each picture, z [V N, d], view after view: the same as `nt_xent` for two.

    Each view finds each other view of its picture among all views of the other pictures; the mean over all such pairs.
    """
    z = l2_normalize(torch.cat([all_gather(view) for view in z.chunk(num_views)]))
    with torch.autocast(z.device.type, enabled=False):
        logits = z @ z.T / temp
    picture = torch.arange(len(z), device=z.device) % (len(z) // num_views)
    same = picture[:, None] == picture
    others = logits.masked_fill(same, float("-inf")).logsumexp(1, keepdim=True)
    partners = same & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    return (torch.logaddexp(logits, others) - logits)[partners].mean()


def cross_view(a: Tensor, b: Tensor, *, temp: float) -> Tensor:
    """Row i of a [N, d] finds row i of b among all of b, and the other way round: the mean of both."""
    a, b = all_gather(a), all_gather(b)
    with torch.autocast(a.device.type, enabled=False):
        logits = l2_normalize(a) @ l2_normalize(b).T / temp
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def neighbour_contrast(p: Tensor, neighbours: Tensor, *, temp: float, both_ways: bool = True) -> Tensor:
    """NNCLR's loss of predictions p [N, d] and unit neighbours [N, k, d]: each neighbour finds its prediction.

    `both_ways`: the mean with the predictions finding their neighbours among all N k. The k terms of a picture add up.
    """
    p, neighbours = all_gather(p), all_gather(neighbours)
    num, k = neighbours.shape[:2]
    with torch.autocast(p.device.type, enabled=False):
        logits = neighbours.flatten(0, 1) @ l2_normalize(p).T / temp  # [N k, N]
    own = torch.arange(num, device=p.device).repeat_interleave(k)
    loss = F.cross_entropy(logits, own, reduction="sum") / num
    if not both_ways:
        return loss
    log_s = F.log_softmax(logits.T, dim=1)  # [N, N k]
    back = -log_s[own, torch.arange(num * k, device=p.device)].sum() / num
    return (loss + back) / 2
