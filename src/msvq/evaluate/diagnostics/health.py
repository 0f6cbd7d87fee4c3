"""Is the encoder collapsing? Numbers that need no labels."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.distributed import map_sharded
from msvq.core.runtime import autocast, eval_mode, widest_float
from msvq.core.schema import MayChange, Section
from msvq.data.augment import Augment
from msvq.data.store import ImageSplit
from msvq.evaluate.features import Features
from msvq.methods.base import Method
from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue
from msvq.model.relations import rows_at_once
from msvq.model.teacher import Network, Teacher
from msvq.model.whitening import without_whitening

NUM_PICTURES = 2000
ALIGNED = 2000  # pictures of which two views are compared

Pairs = Callable[[nn.Module], tuple[Tensor, Tensor]]


class AnalyzeSettings(Section):
    """How often a run looks at itself, and at how much."""

    every: Annotated[Annotated[int, Ge(1)] | None, MayChange.TRAINING] = None  # epochs between; None: as evaluate.every
    batches: Annotated[int, Ge(1), MayChange.TRAINING] = 20  # the last of such an epoch: their soft labels are audited
    map: Annotated[int, Ge(0), MayChange.UPKEEP] = 1500  # pictures on the embedding map after training; 0: no map


def feature_std(features: Tensor) -> float:
    """Mean over dimensions of the deviation of unit features [N, d]: 0 if all pictures look the same to the encoder."""
    return float(l2_normalize(features).std(dim=0).mean()) if len(features) > 1 else float("nan")


def spread(features: Tensor) -> float:
    """Root mean square distance of unit features [N, d] from their mean: 0 if all are the same, 1 if their mean is 0.

    `feature_std` times the root of d, or a little more: it can be compared between networks of any width.
    """
    z = l2_normalize(features)
    return float((z - z.mean(0)).square().sum(1).mean().sqrt())


def effective_rank(features: Tensor) -> float:
    """RankMe (arXiv 2210.02885) of features [N, d]: exp of the entropy of the singular values' shares, 1 to d.

    NaN if not all features are finite: there are no singular values then.
    """
    if not len(features) or not bool(features.isfinite().all()):
        return float("nan")
    values = torch.linalg.svdvals(features.double())
    shares = values / values.sum().clamp_min(1e-12) + 1e-7
    return float(torch.exp(-(shares * shares.log()).sum()))


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of the unit features [N, d] of two views of the same pictures: 0 if the views agree.

    Wang and Isola, arXiv 2005.10242, with their alpha 2. To be read beside `uniformity`: a collapse agrees best.
    """
    return float((l2_normalize(first) - l2_normalize(second)).square().sum(1).mean())


def uniformity(features: Tensor) -> float:
    """Log of the mean of exp(-2 |a - b|²) over distinct pairs of unit features [N, d]: 0 if all are the same.

    Wang and Isola, arXiv 2005.10242, with their t 2. The lower, the more evenly they spread; random directions in many
    dimensions give -4. Computed in chunks of rows.
    """
    z = l2_normalize(features)
    num, lengths = len(z), z.square().sum(1)
    if num < 2:
        return float("nan")
    total = torch.zeros((), dtype=torch.float64, device=z.device)
    rows = rows_at_once(z)
    for start in range(0, num, rows):
        part = slice(start, start + rows)
        distances = (lengths[part, None] + lengths - 2 * z[part] @ z.T).clamp_min(0)
        distances.diagonal(start).fill_(float("inf"))  # a feature is no pair with itself
        total += (-2 * distances).exp().sum(dtype=torch.float64)
    return float((total / (num * (num - 1))).log())


@torch.no_grad()
def teacher_distances(method: nn.Module) -> dict[str, float]:
    """How far the teachers are from the student, and from each other: |a - b| / |a| over all parameters.

    `student_teacher1`, `student_teacher2`, `teacher1_teacher2`, ...; empty without teachers.
    """
    teachers = [module.network for module in method.modules() if isinstance(module, Teacher)]
    student = getattr(method, "student", None)
    if student is None or not teachers:
        return {}
    networks = {"student": student, **{f"teacher{i}": network for i, network in enumerate(teachers, start=1)}}
    weights = {name: list(network.parameters()) for name, network in networks.items()}
    return {
        f"{a}_{b}": _relative_distance(weights[a], weights[b])
        for a, b in combinations(weights, 2)
        if [p.shape for p in weights[a]] == [p.shape for p in weights[b]]  # of another kind: no distance
    }


def _relative_distance(first: list[nn.Parameter], second: list[nn.Parameter]) -> float:
    dtype = widest_float(first[0].device)
    apart = sum(float((a - b).to(dtype).square().sum()) for a, b in zip(first, second, strict=True))
    length = sum(float(a.to(dtype).square().sum()) for a in first)
    return float((apart / max(length, 1e-300)) ** 0.5)


def queue_health(method: nn.Module, *, steps: int) -> dict[str, float]:
    """`filled`, the share of the queues' entries that hold a picture's key, and how old those are after so many steps.

    `age` (the mean) and `age_oldest` are in steps. The mean over the queues; empty without one.
    """
    found: dict[str, list[float]] = {"filled": [], "age": [], "age_oldest": []}
    for queue in (module for module in method.modules() if isinstance(module, Queue)):
        held, per_step = min(int(queue.pushed), len(queue)), int(queue.pushed) / max(1, steps)
        oldest = held / per_step if held else 0.0
        found["filled"].append(held / len(queue))
        found["age"].append((oldest + 1) / 2 if held else 0.0)
        found["age_oldest"].append(oldest)
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def measure_health(
    method: Method, *, pictures: ImageSplit, features: Features, pairs: Pairs | None = None
) -> dict[str, float]:
    """How far the encoder tells pictures apart, on a fixed sample of them, by the names that the log has.

    `pairs` gives an encoder's features of two views of the same pictures, [N, d] each, for the alignment; `embedding_*`
    are the numbers of the projector's output.
    """
    encoder = without_whitening(method.encoder)  # whitened features fill all of their dimensions, whatever they know
    found = features(encoder, pictures.subsample(NUM_PICTURES))
    values = {
        "feature_std": feature_std(found),
        "feature_spread": spread(found),
        "rank": effective_rank(found),
        "uniformity": uniformity(found),
    }
    views = None if pairs is None else pairs(encoder)
    if views is not None:
        values["alignment"] = alignment(*views)
    student = getattr(method, "student", None)
    if isinstance(student, Network):
        embeddings = project(student.projector, found)
        values["embedding_std"] = feature_std(embeddings)
        values["embedding_spread"] = spread(embeddings)
        values["embedding_rank"] = effective_rank(embeddings)
        values["embedding_uniformity"] = uniformity(embeddings)
        if views is not None:
            values["embedding_alignment"] = alignment(*(project(student.projector, view) for view in views))
    return values


@torch.no_grad()
def project(projector: nn.Module, features: Tensor) -> Tensor:
    """Embeddings fp32 [N, e], on the CPU, of a backbone's features [N, d]. The projector's mode is restored."""
    with eval_mode(projector):
        place = next(projector.parameters(), features)
        embeddings: Tensor = projector(features.to(place.device, place.dtype))
    return embeddings.float().cpu()


def pair_function(pictures: ImageSplit, augment: Augment, device: torch.device, precision: str) -> Pairs:
    """An encoder's features of two weak views of the same pictures, always the same ones."""
    kept = pictures.subsample(ALIGNED)

    def pairs(encoder: nn.Module) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)

        def of_share(images: NDArray[np.uint8], rows: slice) -> Tensor:
            part = torch.from_numpy(images[rows]).to(device)
            views = augment(part, ("weak", "weak"), generator, rows=rows, of=len(images))
            with torch.no_grad(), autocast(device, precision):
                return torch.stack([encoder(view).float().cpu() for view in views], dim=1)

        with eval_mode(encoder):  # [n, 2, d] each
            found = [map_sharded(len(images), partial(of_share, images)) for images in kept.batches_in_order(500)]
        first, second = torch.cat(found).unbind(1)
        return first, second

    return pairs
