"""Random views of a batch of pictures, drawn from settings: batched, seeded, on the pictures' own device."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from msvq.core.errors import unknown
from msvq.core.runtime import constant, send_together
from msvq.core.schema import Section
from msvq.data.image_ops import (
    HUE,
    Jitter,
    crop_boxes,
    gaussian_blur,
    has_reduced,
    hue_turn,
    jitter_sorted_,
    on_some,
    plan_jitter,
    resample,
    to_grey,
    to_source,
)
from msvq.data.to_rgb import Resizing

Fraction = Annotated[float, Field(ge=0, le=1)]
ALL = slice(None)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ViewSettings(Section):
    """How one kind of view is drawn, in the order of its steps; probabilities are per picture."""

    crop_area: tuple[Fraction, Fraction] = (0.2, 1.0)  # as fractions of the picture
    flip: Fraction = 0.5  # probability of a mirrored view
    # Strengths s of brightness, contrast and saturation, factors U(1 - s, 1 + s), and hue, U(-s, s) turns.
    jitter: tuple[Fraction, Fraction, Fraction, Annotated[float, Field(ge=0, le=0.5)]] = (0.0, 0.0, 0.0, 0.0)
    jitter_p: Fraction = 0.0  # probability of a jitter
    grey_p: Fraction = 0.0  # probability of a grey view
    blur_p: Fraction = 0.0  # probability of a blur
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)  # pixels of the full view
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # side of the view, as a share of the training crop

    def side(self, size: int) -> int:
        """Of the view, in pixels, where the training crop has `size`."""
        return max(1, round(size * self.scale))

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        low, high = self.crop_area
        if not 0 < low <= high:
            wanted = "(least, most) with 0 < least <= most <= 1"
            raise ValueError(f"crop_area must be {wanted}, not {self.crop_area}")
        if self.blur_sigma[0] > self.blur_sigma[1]:
            raise ValueError(f"blur_sigma must be (least, most) with least <= most, not {self.blur_sigma}")
        return self


STRONG = ViewSettings(flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.8, grey_p=0.2, blur_p=0.5)
WEAK = ViewSettings(flip=0.9)


class Augment:
    """Makes views of uint8 batches; `views` gives each kind of view its settings.

    Every random number comes from the generator of the call, as many per view whatever they decide: the same
    generator state gives the same views, and a changed setting leaves the draws of the other steps as they were.
    Without one, it has one of its own, which follows `torch.manual_seed`.
    """

    def __init__(self, views: Mapping[str, ViewSettings], *, size: int, mean: Sequence[float], std: Sequence[float]):
        self.views, self.size, self.mean, self.std = dict(views), size, tuple(mean), tuple(std)
        self.generator: torch.Generator | None = None  # its own, where calls bring none

    def __call__(
        self,
        images: Tensor,
        kinds: Sequence[str],
        generator: torch.Generator | None = None,
        *,
        size: int | None = None,
        rows: slice = ALL,
        of: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Independent views of `images` uint8 [N, H, W, 3] or [N, 3, H, W], one per entry of `kinds`.

        Each is a normalised float32 [N, 3, size, size] in channels_last. A `size` below the usual one draws the
        same views with fewer pixels; blur shrinks with them. Where `images` are the `rows` of a batch `of` so many
        pictures, they get the views that they would get in that batch, and the generator moves on as far.
        """
        for kind in kinds:
            if kind not in self.views:
                raise unknown("view", kind, self.views)
        images = _channels_last(images)
        if generator is None:
            generator = self.generator = self.generator or torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is coarser than 256 levels
            plans = [self._draw(images, self.views[kind], generator, size or self.size, rows, of) for kind in kinds]
            source = to_source(images)
            return tuple(self._view(source, plan) for plan in _send(plans, images.device))

    def _draw(
        self,
        images: Tensor,
        settings: ViewSettings,
        generator: torch.Generator,
        size: int,
        rows: slice,
        of: int | None,
    ) -> "_Plan":
        """All that chance decides about a view of `images`, where the generator is; its side is a share of `size`."""
        side, num = settings.side(size), of or len(images)
        boxes = crop_boxes(num, *images.shape[1:3], area=settings.crop_area, generator=generator)[rows]
        draws = torch.rand(num, 13, generator=generator, device=generator.device)[rows]
        flip, jittered, greyed, blurred, spread = draws[:, :5].unbind(1)
        jittered, greyed, blurred = (
            (draw < p).nonzero()[:, 0]
            for draw, p in ((jittered, settings.jitter_p), (greyed, settings.grey_p), (blurred, settings.blur_p))
        )
        order = draws[:, 5:9].argsort(1)
        jittered = jittered[hue_turn(order[jittered]).argsort(stable=True)]
        jitter = plan_jitter(_jitter_factors(draws[:, 9:], settings.jitter)[jittered], order[jittered])
        low, high = (sigma * side / self.size for sigma in settings.blur_sigma)
        sigma, radius = (low + (high - low) * spread)[blurred], math.ceil(3 * high)
        reduces = has_reduced(boxes, side)
        return _Plan(side, reduces, radius, boxes, flip < settings.flip, jittered, jitter, greyed, blurred, sigma)

    def _view(self, source: Tensor, plan: "_Plan") -> Tensor:
        """One view [N, 3, side, side] of `source` [N, H, 3, W]."""
        view = resample(source, plan.boxes, plan.flip, plan.side, reduces=plan.reduces)
        if len(plan.jittered):
            view = on_some(view.contiguous(), plan.jittered, lambda part: jitter_sorted_(part, plan.jitter))
        view = on_some(view, plan.greyed, to_grey)
        view = on_some(view, plan.blurred, lambda part: gaussian_blur(part, plan.sigma, radius=plan.radius))
        return normalise(view, self.mean, self.std)


class _Plan(NamedTuple):
    """A view as it was drawn."""

    side: int
    reduces: bool  # whether a box is larger than the view
    radius: int  # of the blur
    boxes: Tensor  # [N, 4]
    flip: Tensor  # bool [N]
    jittered: Tensor  # which pictures are, sorted by `hue_turn`
    jitter: Jitter  # of those
    greyed: Tensor
    blurred: Tensor
    sigma: Tensor  # of the blurred ones


def _send(plans: Sequence[_Plan], device: torch.device) -> list[_Plan]:
    """The plans on a device; those of all views are one copy."""
    if device.type == "cpu" or any(plan.boxes.device.type != "cpu" for plan in plans):
        return list(plans)
    given = [(p.boxes, p.flip, p.jittered, p.greyed, p.blurred, p.sigma, *p.jitter[:3]) for p in plans]
    sent = iter(send_together([tensor for group in given for tensor in group], device))
    there = []
    for plan in plans:
        boxes, flip, jittered, greyed, blurred, sigma, factor, kinds, shift = islice(sent, 9)
        jitter = plan.jitter._replace(factor=factor, kinds=kinds, shift=shift)
        plan = plan._replace(boxes=boxes, flip=flip, jittered=jittered, jitter=jitter, greyed=greyed)
        there.append(plan._replace(blurred=blurred, sigma=sigma))
    return there


def _jitter_factors(draws: Tensor, strengths: Sequence[float]) -> Tensor:
    """Uniform `draws` [N, 4] -> factors in 1 -+ strength and, in the last column, hue shifts in -+ strength."""
    factors = 1 + (2 * draws - 1) * draws.new_tensor(strengths)
    factors[:, HUE] -= 1
    return factors


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images - mean) / std per channel of float [N, 3, H, W], in channels_last."""
    height, width = images.shape[2:]
    pixels = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    # One long row per picture: a broadcast over three channels would keep the processor from vectorising.
    constants = (constant(tuple(values), images.device, images.dtype) for values in (mean, std))
    middle, spread = (values.repeat(height * width) for values in constants)
    pixels.flatten(1).sub_(middle).mul_(1 / spread)
    return pixels.permute(0, 3, 1, 2)


def eval_view(
    images: Tensor, *, size: int, mean: Sequence[float], std: Sequence[float], resizing: Resizing | None = None
) -> Tensor:
    """The pictures as they are, uint8 [N, H, W, 3] -> normalised float [N, 3, size, size] in channels_last.

    Those of another size are resized (antialiased) until the shorter side is that of `resizing` (None: `size`,
    bilinearly), then cut at the centre, as torchvision's Resize and CenterCrop do.
    """
    how = resizing or Resizing(size, size)
    images = _channels_last(images)
    _, height, width, _ = images.shape
    view = images.permute(0, 3, 1, 2).to(torch.float32).div_(255)
    if (height, width) != (size, size) or how.side != size:
        short = min(height, width)
        target = [how.side if how.squash else int(how.side * side / short) for side in (height, width)]
        if target != [height, width]:
            view = F.interpolate(view, target, mode=how.interpolation, antialias=True, align_corners=False)
            view = view.clamp_(0, 1) if how.interpolation == "bicubic" else view  # which swings beyond black and white
        top, left = (round((side - size) / 2) for side in target)
        view = view[:, :, top : top + size, left : left + size]
    return normalise(view, mean, std)


def _channels_last(images: Tensor) -> Tensor:
    """Pictures [N, H, W, 3] of such, or of [N, 3, H, W] as PyTorch's own loaders give them."""
    if images.dtype != torch.uint8 or images.ndim != 4 or 3 not in (images.shape[1], images.shape[3]):
        told = f"{images.dtype} {list(images.shape)}"
        raise ValueError(f"pictures must be uint8 [N, H, W, 3] or [N, 3, H, W], not {told}")
    return images if images.shape[3] == 3 else images.permute(0, 2, 3, 1)
