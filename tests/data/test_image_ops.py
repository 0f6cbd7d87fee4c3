"""Each operation against torchvision's own on Pillow pictures, the published environment, on the same parameters."""

import itertools

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from msvq.data import image_ops as ops


def noise(num: int, height: int, width: int, seed: int = 0) -> Tensor:
    """uint8 [num, height, width, 3]: half of it noise, half of it smooth with saturated colours and flat greys."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (num, height, width, 3), dtype=np.uint8)
    ramp = np.linspace(0, 1, width)[None, :, None] * rng.uniform(0, 300, (1, 1, 3)) + rng.uniform(-40, 40, (1, 1, 3))
    pictures[::2] = np.clip(ramp, 0, 255).astype(np.uint8)
    pictures[:, : height // 4] = pictures[:, : height // 4, :, :1]
    return torch.from_numpy(pictures)


def to_float(pictures: Tensor) -> Tensor:
    return pictures.permute(0, 3, 1, 2).float() / 255


def pil(picture: Tensor) -> Image.Image:
    return Image.fromarray(picture.numpy())


def levels(pictures: list[Image.Image]) -> Tensor:
    """float [N, 3, H, W] in 0 .. 255."""
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2).float()


def gap(ours: Tensor, theirs: list[Image.Image]) -> float:
    """The largest difference, in 255ths."""
    return float((ours * 255 - levels(theirs)).abs().max())


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(32, 32, 32), (96, 96, 64), (96, 96, 32), (200, 120, 64), (120, 200, 32), (40, 40, 64)],
)
def test_crop_resize_flip_is_pillows(height: int, width: int, size: int) -> None:
    pictures = noise(24, height, width)
    boxes = ops.crop_boxes(24, height, width, area=(0.02, 1.0), generator=gen())
    boxes[:4] = torch.tensor(  # the whole, two corners, and one narrow strip: enlarged one way, reduced the other
        [[0, 0, height, width], [0, 0, 9, 7], [height - 11, width - 13, 11, 13], [2, 5, height - 3, 6]]
    )
    flip = torch.arange(24) % 3 == 0
    theirs = []
    for picture, box, mirrored in zip(pictures, boxes.tolist(), flip.tolist(), strict=True):
        crop = TF.resized_crop(pil(picture), *box, [size, size], TF.InterpolationMode.BILINEAR)
        theirs.append(TF.hflip(crop) if mirrored else crop)
    ours = ops.crop_resize(pictures, boxes, flip, size)
    assert ours.shape == (24, 3, size, size)
    assert gap(ours, theirs) <= 2


def test_resize_reads_nothing_outside_the_crop() -> None:
    pictures = torch.full((2, 96, 96, 3), 255, dtype=torch.uint8)
    boxes = torch.tensor([[10, 20, 70, 66], [30, 40, 12, 9]])
    for picture, (top, left, height, width) in zip(pictures, boxes.tolist(), strict=True):
        picture[top : top + height, left : left + width] = 100
    ours = ops.crop_resize(pictures, boxes, torch.zeros(2, dtype=torch.bool), 32)
    assert torch.allclose(ours, torch.tensor(100 / 255), atol=1e-6)


def test_same_size_whole_crop_is_the_picture_itself() -> None:
    pictures = noise(3, 32, 32)
    whole = torch.tensor([[0, 0, 32, 32]]).expand(3, 4)
    ours = ops.crop_resize(pictures, whole, torch.tensor([False, True, False]), 32)
    want = to_float(pictures)
    want[1] = want[1].flip(2)
    assert torch.allclose(ours, want, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high", "allowed"),
    [
        (ops.adjust_brightness, TF.adjust_brightness, 0.0, 2.0, 2),
        (ops.adjust_contrast, TF.adjust_contrast, 0.0, 2.0, 2),
        (ops.adjust_saturation, TF.adjust_saturation, 0.0, 2.0, 2),
        (ops.adjust_hue, TF.adjust_hue, -0.5, 0.5, 4),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_adjustments_are_pillows(ours, theirs, low: float, high: float, allowed: float) -> None:  # type: ignore[no-untyped-def]
    pictures = noise(32, 24, 40)
    factor = torch.linspace(low, high, 32)
    want = [theirs(pil(picture), f) for picture, f in zip(pictures, factor.tolist(), strict=True)]
    assert gap(ours(to_float(pictures), factor), want) <= allowed


@pytest.mark.parametrize("shift", [-0.1, 0.0, 0.037, 0.1, 0.5])
def test_hue_of_every_colour(shift: float) -> None:
    """A grid of colours with every value a channel can have near its ends and every sixth elsewhere."""
    values = torch.tensor([*range(0, 250, 6), 1, 2, 127, 250, 253, 254, 255])
    colours = torch.cartesian_prod(values, values, values).to(torch.uint8)[None, None]
    ours = ops.adjust_hue(to_float(colours), torch.tensor([shift]))
    assert gap(ours, [TF.adjust_hue(pil(colours[0]), shift)]) <= 4


def test_hue_leaves_grey_alone_and_may_write_in_place() -> None:
    grey = to_float(noise(2, 8, 8))[:, :1].expand(2, 3, 8, 8).contiguous()
    assert torch.allclose(ops.adjust_hue(grey, torch.tensor([0.1, -0.3])), grey, atol=1e-5)
    images = to_float(noise(4, 8, 8))
    want = ops.adjust_hue(images, torch.tensor([0.1, -0.3, 0.0, 0.5]))
    assert torch.equal(ops.adjust_hue(images, torch.tensor([0.1, -0.3, 0.0, 0.5]), out=images), want)


def test_grey_is_pillows() -> None:
    pictures = noise(8, 24, 40)
    ours = ops.to_grey(to_float(pictures))
    assert gap(ours, [TF.to_grayscale(pil(picture), 3) for picture in pictures]) <= 2
    assert torch.allclose(ours[:, 0], ours[:, 1], atol=1e-6)
    assert torch.allclose(ours[:, 0], ours[:, 2], atol=1e-6)


def test_contrast_mean_is_a_whole_number() -> None:
    pictures = torch.tensor([[[[10, 10, 10], [11, 11, 11]]]], dtype=torch.uint8)  # mean 10.5, Pillow's 11
    ours = ops.adjust_contrast(to_float(pictures), torch.tensor([0.0]))
    assert torch.allclose(ours * 255, torch.tensor(11.0), atol=1e-3)


def test_jitter_goes_in_each_pictures_own_order() -> None:
    """All 24 orders in one batch, in a shuffled sequence, against the four functions called one by one."""
    order = torch.tensor(list(itertools.permutations(range(4))))[torch.randperm(24, generator=gen())]
    factors = torch.tensor([0.6, 0.6, 0.6, -0.1]) + torch.tensor([0.8, 0.8, 0.8, 0.2]) * torch.rand(
        24, 4, generator=gen(1)
    )
    images = to_float(noise(24, 16, 16))
    before = images.clone()
    ours = ops.colour_jitter(images, factors, order)
    calls = (ops.adjust_brightness, ops.adjust_contrast, ops.adjust_saturation, ops.adjust_hue)
    for i in range(24):
        want = images[i : i + 1]
        for call in order[i].tolist():
            want = calls[call](want, factors[i : i + 1, call])
        assert torch.allclose(ours[i : i + 1], want, atol=1e-4), order[i]
    assert torch.equal(images, before)


def test_jitter_is_close_to_pillows_own_sequence() -> None:
    """Pillow rounds after each of the four steps and a contrast of 1.4 enlarges that: close on the whole, not each."""
    order = torch.tensor(list(itertools.permutations(range(4))))
    factors = torch.tensor([0.6, 0.6, 0.6, -0.1]) + torch.tensor([0.8, 0.8, 0.8, 0.2]) * torch.rand(
        24, 4, generator=gen(1)
    )
    pictures = noise(24, 16, 16)
    calls = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    theirs = []
    for picture, steps, factor in zip(pictures, order.tolist(), factors.tolist(), strict=True):
        image = pil(picture)
        for call in steps:
            image = calls[call](image, factor[call])
        theirs.append(image)
    ours = ops.colour_jitter(to_float(pictures), factors, order)
    apart = (ours * 255 - levels(theirs)).abs()
    assert apart.mean() < 1.5
    assert apart.max() < 10


def test_jitter_without_hue_leaves_the_hue_step_out() -> None:
    images = to_float(noise(24, 8, 8))
    order = torch.tensor(list(itertools.permutations(range(4))))
    same = ops.colour_jitter(images, torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(24, 4), order)
    assert torch.allclose(same, images, atol=1e-6)


def blur_slowly(image: Tensor, sigma: float, radius: int) -> Tensor:
    """One picture [3, H, W] in float64, tap by tap, the edge pixel repeated."""
    offsets = range(-radius, radius + 1)
    taps = np.array([np.exp(-(k**2) / (2 * sigma**2)) for k in offsets])
    taps /= taps.sum()
    values = image.double().numpy()
    for axis in (1, 2):
        places = np.arange(values.shape[axis])
        values = sum(
            tap * np.take(values, np.clip(places + k, 0, len(places) - 1), axis)
            for tap, k in zip(taps, offsets, strict=True)
        )
    return torch.from_numpy(values)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 28), (5, 4)])
def test_blur_is_a_gaussian(height: int, width: int) -> None:
    images = to_float(noise(6, height, width))
    sigma = torch.tensor([0.1, 0.4, 0.8, 1.2, 1.7, 2.0])
    ours = ops.gaussian_blur(images, sigma)
    for image, s, blurred in zip(images, sigma.tolist(), ours, strict=True):
        assert torch.allclose(blurred.double(), blur_slowly(image, s, radius=6), atol=1e-5)
        assert (blurred - blur_slowly(image, s, radius=40)).abs().max() < 1.5 / 255  # 3 sigma leave out 0.3 %
    assert torch.allclose(ours[0], images[0], atol=1e-6)


def test_blur_is_close_to_pillows_boxes() -> None:
    pictures = noise(4, 32, 32)
    sigma = torch.tensor([0.5, 1.0, 1.5, 2.0])
    theirs = [pil(p).filter(ImageFilter.GaussianBlur(s)) for p, s in zip(pictures, sigma.tolist(), strict=True)]
    ours = ops.gaussian_blur(to_float(pictures), sigma)
    assert float((ours * 255 - levels(theirs)).abs().mean()) < 1.5


@pytest.mark.parametrize(
    ("height", "width", "area"), [(32, 32, (0.2, 1.0)), (200, 120, (0.08, 1.0)), (64, 64, (0.05, 0.3))]
)
def test_crops_are_distributed_as_torchvisions(height: int, width: int, area: tuple[float, float]) -> None:
    num = 4000
    picture = Image.new("RGB", (width, height))
    torch.manual_seed(0)  # torchvision draws from the global state
    crop = RandomResizedCrop(32, area)
    theirs = np.array([crop.get_params(picture, crop.scale, crop.ratio) for _ in range(num)], dtype=float)
    ours = ops.crop_boxes(num, height, width, area=area, generator=gen()).double().numpy()
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()
    quantiles = np.linspace(0.02, 0.98, 25)
    unit = np.array([height * width, 2 * np.log(4 / 3), height, width])

    def shape(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Area, log aspect ratio, top and left [num, 4], as fractions of their range."""
        top, left, h, w = boxes.T
        fractions: NDArray[np.float64] = np.stack((h * w, np.log(w / h), top, left), 1) / unit
        return fractions

    apart = np.quantile(shape(ours), quantiles, axis=0) - np.quantile(shape(theirs), quantiles, axis=0)
    assert np.abs(apart).max() < 0.05


def test_crop_area_is_uniform_and_ratio_log_uniform_where_all_fits() -> None:
    boxes = ops.crop_boxes(8000, 1000, 1000, area=(0.1, 0.5), generator=gen()).double()
    quantiles = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    areas = boxes[:, 2] * boxes[:, 3] / 1e6
    ratios = (boxes[:, 3] / boxes[:, 2]).log() / np.log(4 / 3)
    assert torch.allclose(areas.quantile(quantiles), 0.1 + 0.4 * quantiles, atol=0.01)
    assert torch.allclose(ratios.quantile(quantiles), 2 * quantiles - 1, atol=0.04)


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10), (50, 50)])
def test_a_crop_that_never_fits_is_centred(height: int, width: int) -> None:
    """Ten attempts at the whole area of a narrow picture fail; torchvision's fallback is a fixed box."""
    area, ratio = (0.999, 1.0), (3 / 4, 4 / 3) if height != width else (2.0, 3.0)
    theirs = RandomResizedCrop.get_params(Image.new("RGB", (width, height)), area, ratio)
    ours = ops.crop_boxes(5, height, width, area=area, ratio=ratio, generator=gen())
    assert ours.tolist() == [list(theirs)] * 5


def test_every_place_of_a_crop_can_be_drawn() -> None:
    boxes = ops.crop_boxes(5000, 8, 8, area=(0.2, 1.0), generator=gen())
    small = boxes[(boxes[:, 2] == 4) & (boxes[:, 3] == 4)]
    assert set(small[:, 0].tolist()) == set(range(5))
    assert set(small[:, 1].tolist()) == set(range(5))


def test_operations_accept_channels_last_and_leave_their_input() -> None:
    images = to_float(noise(4, 16, 12)).contiguous(memory_format=torch.channels_last)
    planar, before, factor = images.contiguous(), images.clone(), torch.tensor([0.6, 1.4, 0.9, 1.0])
    for call in (ops.adjust_brightness, ops.adjust_contrast, ops.adjust_saturation, ops.gaussian_blur):
        assert torch.allclose(call(images, factor), call(planar, factor), atol=1e-6)
    assert torch.allclose(ops.adjust_hue(images, factor / 4), ops.adjust_hue(planar, factor / 4), atol=1e-6)
    assert torch.allclose(ops.to_grey(images), ops.to_grey(planar), atol=1e-6)
    assert torch.equal(images, before)
