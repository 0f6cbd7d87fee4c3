"""Batched picture operations that follow Pillow's, each with its own parameters per picture.

Pictures are float [N, 3, H, W] in [0, 1], in any memory format; results are planar, since colours are fastest
plane by plane. Parameters are [N] and may live on any device: they are moved to the pictures. Only `crop_boxes`
draws random numbers. No input is modified, but by the functions that say so.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from msvq.core.runtime import constant

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the columns of `colour_jitter`'s factors


def crop_boxes(
    num: int,
    height: int,
    width: int,
    *,
    area: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    generator: torch.Generator,
) -> Tensor:
    """Random crops of [height, width] pictures: int64 [num, 4] of top, left, height, width.

    The distribution of torchvision's RandomResizedCrop: the area a uniform fraction, the aspect ratio
    log-uniform, the first of ten attempts that fits, else the largest centred crop whose ratio is allowed.
    """
    # float64: a float32 draw times a count may round up to the count, one place too far.
    draws = torch.rand(num, 22, generator=generator, device=generator.device, dtype=torch.float64)
    areas = height * width * (area[0] + (area[1] - area[0]) * draws[:, :10])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = torch.exp(low + (high - low) * draws[:, 10:20])
    widths, heights = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    w, h = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    top, left = (draws[:, 20] * (height - h + 1)).floor(), (draws[:, 21] * (width - w + 1)).floor()
    boxes = torch.stack((top, left, h, w), 1).long()
    fallback = boxes.new_tensor(_centred_box(height, width, ratio))
    return torch.where(fits.any(1, keepdim=True), boxes, fallback)


def _centred_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest centred (top, left, height, width) whose aspect ratio lies within `ratio`."""
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


def to_source(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] -> float [N, H, 3, W] in [0, 1], the layout in which `resample` copies nothing."""
    return images.transpose(2, 3).to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """uint8 [N, H, W, 3], cut to `boxes` [N, 4], resized, mirrored where `flip` [N]: [N, 3, size, size]."""
    return resample(to_source(images), boxes, flip, size).contiguous()


def resample(source: Tensor, boxes: Tensor, flip: Tensor, size: int, *, reduces: bool | None = None) -> Tensor:
    """`crop_resize` of what `to_source` made, which several views share; [N, 3, size, size], not contiguous.

    `reduces`: whether a box is larger than `size`; a device that has the boxes would have to be asked.
    """
    num, height, _, width = source.shape
    # Two dense matrices per picture serve enlarged and reduced crops alike and, at these sizes, cost less
    # than grid sampling, which cannot antialias.
    reduces = has_reduced(boxes, size) if reduces is None else reduces
    weights = _resize_weights(boxes, flip, max(height, width), size, reduces, source.device)
    down, across = weights[:, 0, :, :height], weights[:, 1, :, :width]
    resized = torch.bmm(down, source.view(num, height, 3 * width)).view(num, size * 3, width)
    resized = torch.bmm(resized, across.transpose(1, 2))
    return resized.view(num, size, 3, size).transpose(1, 2)


def has_reduced(boxes: Tensor, size: int) -> bool:
    """Whether one of the boxes [N, 4] is larger than `size` in a direction."""
    return bool((boxes[:, 2:] > size).any())


def _resize_weights(boxes: Tensor, flip: Tensor, extent: int, size: int, reduces: bool, device: torch.device) -> Tensor:
    """Pillow's bilinear filter down and across: [N, 2, size, extent], what output pixel i takes of pixel j.

    A triangle as wide as the scale (at least one pixel), over the pixels of the crop alone.
    """
    spans = boxes.to(device, torch.float32)[..., None]
    start, length = spans[:, :2], spans[:, 2:]  # [N, 2, 1] each
    scale = length / size
    centre = start - 0.5 + (torch.arange(size, device=device) + 0.5) * scale
    centre[:, 1] = torch.where(flip.to(device)[:, None], centre[:, 1].flip(1), centre[:, 1])
    pixels = torch.arange(extent, device=device, dtype=torch.float32)
    if not reduces:
        # A centre held inside the crop leaves one or two neighbours, whose weights add up to one.
        centre = centre.clamp_(start, start + length - 1)
        return (1 - (pixels - centre[..., None]).abs_()).clamp_min_(0)
    support = scale.clamp_min(1)
    weights = (1 - ((pixels / support)[:, :, None] - (centre / support)[..., None]).abs_()).clamp_min_(0)
    weights *= ((pixels >= start) & (pixels < start + length))[:, :, None]
    return weights.div_(weights.sum(3, keepdim=True))


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: `factor` [N] 0 is black, 1 leaves the picture."""
    return _blend(images, factor, torch.zeros_like(factor), torch.zeros_like(factor))


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the picture's mean grey, as Pillow in whole 255ths: `factor` [N] 1 leaves the picture."""
    factor = factor.to(images.device)
    return _blend(images, factor, torch.zeros_like(factor), (1 - factor) * _mean_grey(images))


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey picture: `factor` [N] 0 is grey, 1 leaves the picture."""
    return _blend(images, factor, 1 - factor, torch.zeros_like(factor))


def to_grey(images: Tensor) -> Tensor:
    """ITU-R 601-2 luma in three equal channels."""
    nothing = images.new_zeros(len(images))
    return _blend(images, nothing, nothing + 1, nothing)


def _blend(images: Tensor, factor: Tensor, grey: Tensor, level: Tensor) -> Tensor:
    """factor * picture + grey * its luma + level, clamped: a 3x3 colour matrix and a constant per picture."""
    factor, grey, level = (p.to(images.device, images.dtype)[:, None, None] for p in (factor, grey, level))
    colours = factor * torch.eye(3, device=images.device) + grey * constant(LUMA, images.device, images.dtype)
    mixed = torch.baddbmm(level, colours, images.flatten(2)).clamp_(0, 1)
    return mixed.view(images.shape)


def _mean_grey(images: Tensor) -> Tensor:
    """The mean luma of each picture [N], rounded to a whole number of 255ths."""
    mean = images.flatten(2).mean(2) @ constant(LUMA, images.device, images.dtype)
    return (mean * 255 + 0.5).floor() / 255


def adjust_hue(images: Tensor, shift: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Turn the HSV hue by `shift` [N] in (-0.5, 0.5) turns; `out` may be `images` itself.

    Pillow cuts hue, saturation and shift off to 255ths and lets the turned hue overflow at 256. Here shift and
    overflow are the same; hue and saturation stay smooth, half a step lower, so at most half a step apart.
    """
    out = torch.empty_like(images) if out is None else out
    shift = (shift.to(images.device, images.dtype) * 255).trunc().view(-1, 1, 1)
    step, overflow = 6 / 255, 6 * 256 / 255
    red, green, blue = images.unbind(1)
    highest = torch.maximum(green, blue)
    lowest = torch.minimum(green, blue)
    torch.maximum(highest, red, out=highest)
    torch.minimum(lowest, red, out=lowest)
    chroma = torch.sub(highest, lowest).clamp_min_(1e-6)
    # On either side of the red-cyan axis hue is linear: 3 -+ (2 max - min + r - g - b) / chroma, in sextants.
    hue = torch.sub(red, green).sub_(blue).add_(highest, alpha=2).sub_(lowest).div_(chroma)
    work = torch.sub(green, blue, out=lowest)
    hue.copysign_(work)
    torch.sub(3 + step * shift, hue, out=hue)
    torch.mul(hue, 1 / overflow, out=work)
    hue.sub_(work.floor_(), alpha=overflow)
    # Each channel is a trapezium of the hue from max - chroma to max, about sextants 3 (upside down), 2 and 4.
    chroma.sub_(highest, alpha=0.5 / 255).clamp_min_(0)
    top = torch.add(highest, chroma)
    base = highest.sub_(chroma, alpha=2)
    for plane, centre in zip(out.unbind(1), (3, 2, 4), strict=True):
        torch.sub(hue, centre + step / 2, out=work)
        work.abs_().clamp_(1, 2)
        torch.addcmul(base if centre == 3 else top, work, chroma, value=1 if centre == 3 else -1, out=plane)
    return out


def hue_turn(order: Tensor) -> Tensor:
    """Which of the four steps turns the hue: [N] in 0 .. 3 of `order` [N, 4]."""
    return (order == HUE).to(torch.uint8).argmax(1)


def colour_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """The four adjustments with `factors` [N, 4], in each picture's own order.

    The columns of `factors` are brightness, contrast, saturation and hue; a row of `order` int64 [N, 4] lists
    them as they are to be done. Where no hue is shifted at all that step is left out, as in torchvision.
    """
    sort = hue_turn(order).argsort(stable=True)
    mixed = jitter_sorted_(images.index_select(0, sort.to(images.device)), plan_jitter(factors[sort], order[sort]))
    return mixed.index_select(0, sort.argsort().to(images.device))


class Jitter(NamedTuple):
    """The adjustments of pictures that stand sorted by `hue_turn`.

    So sorted, the pictures whose hue is turned at a step are one slice, and the other three operations are one and the
    same blend, which every picture needs three times.
    """

    factor: Tensor  # [N, 3] of the blends, as they are to be done
    kinds: Tensor  # int64 [N, 3], what they are
    shift: Tensor  # [N] of the hue
    bounds: tuple[int, ...]  # the slice of step i ends at i + 1; ends[0] is 0
    turns: bool  # whether any hue is shifted


def plan_jitter(factors: Tensor, order: Tensor) -> Jitter:
    """What `colour_jitter` is given, for pictures that stand sorted by `hue_turn`; where the numbers are."""
    bounds = (0, *torch.bincount(hue_turn(order), minlength=4).cumsum(0).tolist())
    kinds = order[order != HUE].view(-1, 3)
    shift = factors[:, HUE]
    return Jitter(factors.gather(1, kinds), kinds, shift, bounds, bool(shift.any()))


def jitter_sorted_(images: Tensor, jitter: Jitter) -> Tensor:
    """`colour_jitter` of pictures that stand sorted by `hue_turn`; `images` serves as working memory."""
    factor, kinds = jitter.factor.to(images.device, images.dtype), jitter.kinds.to(images.device)
    for step in range(4):
        now = slice(jitter.bounds[step], jitter.bounds[step + 1])
        if jitter.turns:
            adjust_hue(images[now], jitter.shift[now], out=images[now])
        if step < 3:
            kind, rest = kinds[:, step], 1 - factor[:, step]
            level = rest * _mean_grey(images) * (kind == CONTRAST)
            images = _blend(images, factor[:, step], rest * (kind == SATURATION), level)
    return images


def gaussian_blur(images: Tensor, sigma: Tensor, *, radius: int | None = None) -> Tensor:
    """Convolve with a sampled Gaussian of `sigma` [N] pixels; the edge pixel goes on beyond it, as in Pillow.

    The Gaussian is cut off at `radius`, the same for all: three times the largest sigma unless given.
    """
    radius = math.ceil(3 * float(sigma.max())) if radius is None else radius
    num, _, height, width = images.shape
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    taps = torch.softmax(-0.5 * (offsets / sigma.to(images.device, images.dtype)[:, None]) ** 2, 1)
    across = _blur_matrices(taps, width)
    down = across if height == width else _blur_matrices(taps, height)
    blurred = torch.bmm(images.reshape(num, 3 * height, width), across.transpose(1, 2))
    return torch.matmul(down[:, None], blurred.view(images.shape))


def _blur_matrices(taps: Tensor, extent: int) -> Tensor:
    """Kernels [N, 2 radius + 1] -> [N, extent, extent], what output pixel i takes of input pixel j."""
    num_taps = taps.shape[1]
    offsets = torch.arange(num_taps, device=taps.device)[:, None] - num_taps // 2
    read = (torch.arange(extent, device=taps.device) + offsets).clamp_(0, extent - 1)
    places = taps.new_zeros(num_taps, extent, extent).scatter_(2, read[:, :, None], 1)
    return (taps @ places.flatten(1)).view(-1, extent, extent)


def on_some(images: Tensor, rows: Tensor, operation: Callable[[Tensor], Tensor]) -> Tensor:
    """Replace the pictures `rows` of `images`, in place, by what `operation` makes of them alone."""
    if len(rows):
        rows = rows.to(images.device)
        images.index_copy_(0, rows, operation(images.index_select(0, rows)))
    return images
