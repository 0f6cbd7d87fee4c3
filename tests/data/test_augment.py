"""The views: what is drawn how often, from which stream, and what comes out."""

from collections import Counter

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image
from pydantic import ValidationError
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.data import augment
from msvq.data.augment import STRONG, WEAK, Augment, ViewSettings, eval_view, normalise
from msvq.data.image_ops import Jitter, crop_boxes, crop_resize, plan_jitter

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
WHOLE = (1.0, 1.0)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(num: int, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(0, 256, (num, height, width, 3), dtype=torch.uint8, generator=gen(99))


def one_colour(num: int, colour: tuple[int, int, int] = (180, 110, 60)) -> Tensor:
    return torch.tensor(colour, dtype=torch.uint8).expand(num, 8, 8, 3).contiguous()


def plain(settings: ViewSettings, images: Tensor, *, size: int = 8, seed: int = 0) -> Tensor:
    """One view, not normalised."""
    make = Augment({"view": settings}, size=size, mean=(0, 0, 0), std=(1, 1, 1))
    return make(images, ("view",), gen(seed))[0]


def share(changed: Tensor) -> float:
    return float(changed.float().mean())


def test_presets_are_the_papers_table() -> None:
    assert STRONG.model_dump() == {
        "crop_area": (0.2, 1.0),
        "flip": 0.5,
        "jitter": (0.4, 0.4, 0.4, 0.1),
        "jitter_p": 0.8,
        "grey_p": 0.2,
        "blur_p": 0.5,
        "blur_sigma": (0.1, 2.0),
        "scale": 1.0,
    }
    assert ViewSettings(flip=0.9) == WEAK
    assert (WEAK.jitter_p, WEAK.grey_p, WEAK.blur_p, WEAK.crop_area) == (0, 0, 0, (0.2, 1.0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"flip": 1.5}, "flip"),
        ({"jitter_p": -0.1}, "jitter_p"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "jitter.3"),
        ({"jitter": (0.4, 0.4)}, "jitter"),
        ({"crop_area": (0.0, 1.0)}, "0 < least <= most <= 1"),
        ({"crop_area": (0.8, 0.2)}, "0 < least <= most <= 1"),
        ({"crop_area": (0.2, 1.2)}, "crop_area.1"),
        ({"blur_sigma": (2.0, 0.1)}, "least <= most"),
        ({"blur_sigma": (0.0, 1.0)}, "blur_sigma.0"),
        ({"blurr": 0.5}, "blurr"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ViewSettings.model_validate(settings)


def test_settings_are_frozen_and_come_from_yaml_lists() -> None:
    assert ViewSettings.model_validate({"crop_area": [0.08, 1], "jitter": [0, 0, 0, 0]}).crop_area == (
        0.08,
        1.0,
    )
    with pytest.raises(ValidationError):
        WEAK.flip = 0.5


def test_views_are_normalised_channels_last_float32() -> None:
    images = pictures(64)
    before = images.clone()
    make = Augment({"strong": STRONG, "weak": WEAK}, size=32, mean=MEAN, std=STD)
    views = make(images, ("strong", "weak", "weak", "weak"), gen())
    assert len(views) == 4
    for view in views:
        assert view.shape == (64, 3, 32, 32)
        assert view.dtype == torch.float32
        assert view.is_contiguous(memory_format=torch.channels_last)
        assert view.isfinite().all()
        low, high = (
            normalise(torch.zeros(1, 3, 1, 1), MEAN, STD),
            normalise(torch.ones(1, 3, 1, 1), MEAN, STD),
        )
        assert (view > low - 1e-4).all()
        assert (view < high + 1e-4).all()
    assert torch.equal(images, before)


def test_a_smaller_size_is_the_same_view_with_fewer_pixels() -> None:
    """The same crops and colours, and a blur as wide in the picture: so the small view is the large one, reduced."""
    smooth = torch.nn.functional.interpolate(torch.rand(64, 3, 4, 4), 32, mode="bicubic").clamp(0, 1)
    images = (smooth * 255).byte().permute(0, 2, 3, 1).contiguous()
    whole = ViewSettings(**{**STRONG.model_dump(), "crop_area": (0.9, 1.0)})
    make = Augment({"strong": whole, "half": whole.model_copy(update={"scale": 0.5})}, size=32, mean=MEAN, std=STD)
    large, small, half = (
        make(images, (kind,), gen(), size=size)[0] for kind, size in (("strong", None), ("strong", 16), ("half", None))
    )
    assert small.shape == (64, 3, 16, 16)
    assert torch.equal(small, half)
    reduced = torch.nn.functional.avg_pool2d(large, 2)
    assert (reduced - small).abs().mean() < 0.03 * large.std()


def test_same_generator_same_bytes_and_every_draw_is_its_own() -> None:
    one = pictures(1).expand(16, 32, 32, 3)
    make = Augment({"strong": STRONG, "weak": WEAK}, size=32, mean=MEAN, std=STD)
    kinds = ("strong", "weak", "weak", "strong")
    torch.manual_seed(1)
    first = make(one, kinds, gen())
    torch.manual_seed(2)  # the global state has no say
    again, other = make(one, kinds, gen()), make(one, kinds, gen(1))
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not any(torch.equal(a[0], a[i]) for i in range(1, 16))
    assert not torch.equal(first[1], first[2])
    assert not torch.equal(first[0], first[3])


def test_the_stream_is_the_same_whatever_the_settings_decide() -> None:
    """After a strong view and after a weak one the generator stands at the same place."""
    make = Augment({"strong": STRONG, "weak": WEAK, "half": ViewSettings(flip=0.5)}, size=32, mean=MEAN, std=STD)
    images, places = pictures(8), []
    for kind in ("strong", "weak", "half"):
        generator = gen()
        make(images, (kind,), generator)
        places.append(torch.rand(1, generator=generator))
    assert places[0] == places[1] == places[2]
    assert torch.equal(
        plain(WEAK, images, size=32), plain(WEAK.model_copy(update={"blur_sigma": (1, 1)}), images, size=32)
    )


def test_rows_of_a_batch_get_the_views_that_they_get_in_it() -> None:
    make = Augment({"strong": STRONG, "weak": WEAK}, size=24, mean=MEAN, std=STD)
    images, whole_generator = pictures(12), gen(5)
    whole = make(images, ("strong", "weak"), whole_generator)
    for rows in (slice(0, None, 3), slice(2, None, 3), slice(4, 9)):
        generator = gen(5)
        part = make(images[rows], ("strong", "weak"), generator, rows=rows, of=12)
        for view, expected in zip(part, whole, strict=True):
            torch.testing.assert_close(view, expected[rows], rtol=0, atol=1e-6)
        assert torch.equal(generator.get_state(), whole_generator.get_state())


def test_weak_view_is_a_crop_and_a_flip() -> None:
    images = pictures(32, 48, 40)
    boxes = crop_boxes(32, 48, 40, area=(0.2, 1.0), generator=gen())
    view = plain(ViewSettings(flip=0.5), images, size=32)
    straight, mirrored = (crop_resize(images, boxes, torch.full((32,), flip), 32) for flip in (False, True))
    is_straight = torch.isclose(view, straight, atol=1e-5).flatten(1).all(1)
    is_mirrored = torch.isclose(view, mirrored, atol=1e-5).flatten(1).all(1)
    assert (is_straight ^ is_mirrored).all()
    assert 5 < int(is_mirrored.sum()) < 27


@pytest.mark.parametrize("flip", [0.0, 0.5, 0.9, 1.0])
def test_flip_frequency(flip: float) -> None:
    images = torch.zeros(3000, 8, 8, 3, dtype=torch.uint8)
    images[:, :, :4] = 255
    view = plain(ViewSettings(crop_area=WHOLE, flip=flip), images)
    assert share(view[:, 0, 4, 7] > 0.5) == pytest.approx(flip, abs=0.03 if 0 < flip < 1 else 0)


def test_jitter_grey_and_blur_frequencies_and_independence() -> None:
    """Alone each changes its share of the pictures; together they are independent."""
    num = 4000
    colour = one_colour(num)
    base = plain(ViewSettings(crop_area=WHOLE), colour)
    jittered = plain(ViewSettings(crop_area=WHOLE, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.8), colour)
    changed = ((jittered - base).abs() > 1e-4).flatten(1).any(1)
    assert share(changed) == pytest.approx(0.8, abs=0.03)
    grey = plain(ViewSettings(crop_area=WHOLE, grey_p=0.2), colour)
    is_grey = (grey[:, 0] - grey[:, 2]).abs().flatten(1).amax(1) < 1e-5
    assert share(is_grey) == pytest.approx(0.2, abs=0.03)
    edges = torch.zeros(num, 8, 8, 3, dtype=torch.uint8)
    edges[:, 4:] = 255
    blur = plain(ViewSettings(crop_area=WHOLE, blur_p=0.5, blur_sigma=(0.5, 2.0)), edges)
    is_blurred = blur[:, 0, 3, 0] > 0.01
    assert share(is_blurred) == pytest.approx(0.5, abs=0.03)
    assert share(changed & is_grey) == pytest.approx(0.16, abs=0.03)  # one seed, so the draws are the same ones
    assert share(is_grey & is_blurred) == pytest.approx(0.1, abs=0.03)


def test_jitter_factors_are_uniform_over_their_range() -> None:
    """Brightness and contrast read off pictures that show the factor; saturation and hue off the colours."""
    num, quantiles = 4000, torch.linspace(0.05, 0.95, 19)
    uniform = 0.6 + 0.8 * quantiles

    def view(jitter: tuple[float, float, float, float], images: Tensor) -> Tensor:
        return plain(ViewSettings(crop_area=WHOLE, flip=0, jitter=jitter, jitter_p=1), images)

    brightness = view((0.4, 0, 0, 0), one_colour(num, (100, 100, 100)))[:, 0, 0, 0] * 255 / 100
    assert torch.allclose(brightness.quantile(quantiles), uniform, atol=0.03)
    assert brightness.min() > 0.599
    assert brightness.max() < 1.401
    steps = one_colour(num, (100, 100, 100))
    steps[:, 4:] = 140
    contrast = view((0, 0.4, 0, 0), steps)
    contrast = (contrast[:, 0, 7, 0] - contrast[:, 0, 0, 0]) * 255 / 40
    assert torch.allclose(contrast.quantile(quantiles), uniform, atol=0.03)
    saturation = view((0, 0, 0.4, 0), one_colour(num, (140, 110, 100)))[:, :, 0, 0]
    saturation = (saturation[:, 0] - saturation[:, 2]) * 255 / 40
    assert torch.allclose(saturation.quantile(quantiles), uniform, atol=0.03)
    red = view((0, 0, 0, 0.1), one_colour(num, (255, 0, 0)))[:, :, 0, 0]
    shift = (red[:, 1] - red[:, 2]) / 6  # turns: a sextant is full yellow or full magenta
    assert torch.allclose(shift.quantile(quantiles), 0.2 * quantiles - 0.1, atol=0.008)
    assert shift.abs().max() <= 0.1 + 1 / 255


def test_orders_are_uniform_and_per_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def spy(factors: Tensor, order: Tensor) -> Jitter:
        seen.append(order)
        return plan_jitter(factors, order)

    monkeypatch.setattr(augment, "plan_jitter", spy)
    plain(STRONG.model_copy(update={"jitter_p": 1.0}), one_colour(4800))
    assert torch.equal(seen[0].sort(1).values, torch.arange(4).expand(4800, 4))
    counts = Counter(tuple(order) for order in seen[0].tolist())
    assert len(counts) == 24
    assert min(counts.values()) > 140
    assert max(counts.values()) < 260


def test_blur_sigma_range(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, int]] = []

    def spy(images: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
        seen.append((sigma, radius))
        return images

    monkeypatch.setattr(augment, "gaussian_blur", spy)
    plain(STRONG, one_colour(4000))
    (sigma, radius) = seen[0]
    assert radius == 6
    quantiles = torch.linspace(0.05, 0.95, 19)
    assert torch.allclose(sigma.quantile(quantiles), 0.1 + 1.9 * quantiles, atol=0.08)


def test_steps_come_in_the_tables_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grey after jitter leaves equal channels; blur after both only smooths; the crop comes first."""
    steps: list[str] = []
    for name in ("resample", "jitter_sorted_", "to_grey", "gaussian_blur", "normalise"):
        step = getattr(augment, name)

        def spy(*args: object, _name: str = name, _step=step, **kwargs: object):  # type: ignore[no-untyped-def]
            steps.append(_name)
            return _step(*args, **kwargs)

        monkeypatch.setattr(augment, name, spy)
    plain(STRONG, pictures(64))
    assert steps == ["resample", "jitter_sorted_", "to_grey", "gaussian_blur", "normalise"]


def test_nobody_gets_it_and_everybody_gets_it() -> None:
    images = pictures(5, 8, 8)
    never = ViewSettings(crop_area=WHOLE, flip=0, jitter=(0.4, 0.4, 0.4, 0.1))
    want = images.permute(0, 3, 1, 2) / 255
    assert torch.allclose(plain(never, images), want, atol=1e-5)
    always = never.model_copy(update={"jitter_p": 1.0, "grey_p": 1.0, "blur_p": 1.0})
    view = plain(always, images)
    assert not torch.isclose(view, want, atol=1e-3).flatten(1).all(1).any()
    assert torch.allclose(view[:, 0], view[:, 2], atol=1e-5)


@pytest.mark.parametrize("num", [0, 1, 2])
def test_small_batches(num: int) -> None:
    assert plain(STRONG, pictures(num, 50, 70), size=32).shape == (num, 3, 32, 32)


def test_autocast_does_not_coarsen_the_views() -> None:
    images = pictures(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        view = plain(STRONG, images, size=32)
    assert view.dtype == torch.float32
    assert torch.equal(view, plain(STRONG, images, size=32))


def test_mistakes_are_named() -> None:
    make = Augment({"strong": STRONG, "weak": WEAK}, size=32, mean=MEAN, std=STD)
    with pytest.raises(BadInput, match="unknown view 'week'; did you mean 'weak'"):
        make(pictures(2), ("strong", "week"), gen())
    with pytest.raises(ValueError, match=r"uint8 \[N, H, W, 3\]"):
        make(torch.zeros(2, 3, 32, 32), ("weak",), gen())


def test_channels_may_come_first() -> None:
    make, images = Augment({"strong": STRONG}, size=16, mean=MEAN, std=STD), pictures(6, 24, 20)
    (last,), (first,) = (make(batch, ["strong"], gen()) for batch in (images, images.permute(0, 3, 1, 2).contiguous()))
    assert torch.equal(first, last)
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_without_a_generator_it_has_one_that_follows_the_seed() -> None:
    def views() -> list[Tensor]:
        torch.manual_seed(3)
        make = Augment({"strong": STRONG}, size=16, mean=MEAN, std=STD)
        return [make(pictures(4), ["strong"])[0] for _ in range(2)]

    once, again = views(), views()
    assert torch.equal(once[0], again[0]) and torch.equal(once[1], again[1])
    assert not torch.equal(*once)


def test_normalise_by_hand() -> None:
    images = torch.rand(2, 3, 4, 5, generator=gen())
    want = torch.stack([(images[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
    before = images.clone()
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        ours = normalise(given, MEAN, STD)
        assert torch.allclose(ours, want, atol=1e-5)
        assert ours.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(given, before)


def test_eval_view_of_the_right_size_is_the_picture() -> None:
    images = pictures(3, 32, 32)
    view = eval_view(images, size=32, mean=MEAN, std=STD)
    want = torch.stack([(images[..., c] / 255 - MEAN[c]) / STD[c] for c in range(3)], 1)
    assert torch.allclose(view, want, atol=1e-5)
    assert view.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("height", "width", "size"), [(96, 96, 64), (75, 120, 32), (121, 80, 64), (20, 33, 32)])
def test_eval_view_resizes_and_cuts_as_torchvision(height: int, width: int, size: int) -> None:
    images = pictures(2, height, width)
    view = eval_view(images, size=size, mean=(0, 0, 0), std=(1, 1, 1))
    for picture, ours in zip(images, view, strict=True):
        theirs = TF.center_crop(TF.resize(Image.fromarray(picture.numpy()), size), [size, size])
        assert np.abs(ours.permute(1, 2, 0).numpy() * 255 - np.asarray(theirs, dtype=np.float32)).max() <= 2
