"""Are two pictures one picture? Decided by small squares of them, whatever an encoder says.

A copy may have been resized or saved again, turned by quarters, mirrored, or cropped. Two numbers decide: the
correlation of the pixels, and that of their details (what is left when the blurred picture is taken away), which tells
two skies apart. On 2,000 pictures each of CIFAR-10 and Tiny ImageNet, copies saved at quality 25 and turned ones had at
least 0.94 and 0.81; of 1,000 pairs of nearest others one reached 0.9 and 0.71.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SIDE = 32  # of the squares
PIXELS, DETAILS = 0.92, 0.8  # correlations from which two squares are one picture
DIFFERENCE = 16.0  # grey levels by which it may differ, on average
FLAT, FLAT_DIFFERENCE = 3.0, 2.0  # grey levels: a square of less deviation has no details, and must agree so well
PAIRS = 1024  # compared at a time

# Crops: the middle of one square is looked for in the other, at these sizes of the whole one. First at half the
# resolution, where 19 of 20 pairs are ruled out.
MIDDLE = 0.75
COARSE, COARSE_DETAILS = (16, 15, 14, 13, 12, 11), 0.7
FINE, CROP_DETAILS, CROP_PIXELS = tuple(range(32, 20, -1)), 0.9, 0.9
FINE_PAIRS = 128
LUMA = (0.299, 0.587, 0.114)

# Which pictures may be crops of which: small colours of a whole square beside those of parts of others, in a grid.
# Crops to 70 to 90 % of the side, saved at quality 40, have their original among the six nearest 997 times of 1,000.
PART, STARTS, COLOURS = 24, (0, 3, 5, 8), 6
PARTS = len(STARTS) ** 2

CHANGES = ("", "saved again or resized", "turned", "mirrored", "cropped")  # by their codes; "": two pictures


def compare(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """What was changed between the two of each pair of squares uint8 [P, SIDE, SIDE, 3]: codes of CHANGES [P]."""
    a, b = _channels_first(first), _channels_first(second)
    change = _compare_whole(F.avg_pool2d(a, 2), F.avg_pool2d(b, 2))
    rest = (change == 0).nonzero()[:, 0]
    likely = rest[_may_be_crops(_grey(a[rest]), _grey(b[rest]))] if len(rest) else rest
    for start in range(0, len(likely), FINE_PAIRS):
        some = likely[start : start + FINE_PAIRS]
        change[some] = torch.where(_are_crops(a[some], b[some]), len(CHANGES) - 1, 0)
    return change.numpy()


def turn_invariant(squares: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unit descriptors [N, 240] of squares that are the same, however a square is turned by quarters or mirrored.

    Of an 8 x 8 thumbnail, the eight pixels that turning and mirroring exchange are sorted by value.
    """
    small = F.avg_pool2d(_channels_first(squares), SIDE // 8) - 127.5
    turned = torch.stack([_turned(small, code) for code in range(8)], dim=-1).sort(dim=-1).values
    one_of_eight = [(row, column) for row in range(4) for column in range(row, 4)]
    chosen = torch.stack([turned[:, :, row, column] for row, column in one_of_eight], dim=1)
    return F.normalize(chosen.flatten(1), dim=1).numpy()


def colours_of_wholes(squares: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unit descriptors [N, 108] of squares, to be looked for among those of parts."""
    return _colours(_channels_first(squares))


def colours_of_parts(squares: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unit descriptors [N * PARTS, 108] of the parts of each square."""
    x = _channels_first(squares)
    parts = [_colours(x[:, :, top : top + PART, left : left + PART]) for top in STARTS for left in STARTS]
    return np.stack(parts, axis=1).reshape(len(squares) * PARTS, -1)


def _colours(x: Tensor) -> NDArray[np.float32]:
    """Without brightness and contrast."""
    small = F.adaptive_avg_pool2d(x, COLOURS).flatten(1)
    return F.normalize(small - small.mean(1, keepdim=True), dim=1).numpy()


def _compare_whole(a: Tensor, b: Tensor) -> Tensor:
    """Codes [P] of whole squares [P, 3, 16, 16], in the best of eight positions."""
    unit_a, unit_b = _centred_unit(a), _centred_unit(b)
    pixels, place = torch.stack([(unit_a * _turned(unit_b, code)).sum((1, 2, 3)) for code in range(8)]).max(0)
    best = torch.empty_like(b)
    for position in range(8):
        best[place == position] = _turned(b[place == position], position)
    details = _correlation(_details(a), _details(best))
    deviation = torch.maximum(a.flatten(1).std(1), b.flatten(1).std(1))
    difference = _difference(a, best)
    same = (pixels >= PIXELS) & (details >= DETAILS) & (deviation >= FLAT) & (difference <= DIFFERENCE)
    flat_same = (deviation < FLAT) & (_difference(a, b) <= FLAT_DIFFERENCE)
    code = torch.where(place == 0, 1, torch.where(place < 4, 2, 3))
    return torch.where(flat_same, 1, torch.where(same, code, 0))


def _may_be_crops(a: Tensor, b: Tensor) -> Tensor:
    """Whether the middle of one may lie in the other [P], at a glance."""
    a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
    best = torch.full((len(a),), -1.0)
    for whole, part in ((a, b), (b, a)):
        looked_in = _details(whole)
        for size in COARSE:
            found = _correlation_map(looked_in, _middle(_details(_resized(part, size))))
            best = torch.maximum(best, found.flatten(1).amax(1))
    return best >= COARSE_DETAILS


def _are_crops(a: Tensor, b: Tensor) -> Tensor:
    """Whether one of two squares [P, 3, SIDE, SIDE] is a crop of the other: [P]."""
    rows = torch.arange(len(a))
    best, agreement = torch.full((len(a),), -1.0), torch.zeros(len(a))
    for whole, part in ((a, b), (b, a)):
        looked_in = _fine_details(_grey(whole))
        for size in FINE:
            small = _resized(part, size)
            wanted, middle = _middle(_fine_details(_grey(small))), _middle(small)
            found = _correlation_map(looked_in, wanted)
            score, place = found.flatten(1).max(1)
            windows = whole.unfold(2, middle.shape[2], 1).unfold(3, middle.shape[3], 1)
            there = windows[rows, :, place // found.shape[2], place % found.shape[2]]
            better = score > best
            best = torch.where(better, score, best)
            agrees = torch.where(_difference(there, middle) <= DIFFERENCE, _correlation(there, middle), -1)
            agreement = torch.where(better, agrees, agreement)
    return (best >= CROP_DETAILS) & (agreement >= CROP_PIXELS)


def _correlation_map(whole: Tensor, part: Tensor) -> Tensor:
    """Correlations [P, k, k] of each part [P, 1, c, c] with every window of its whole [P, 1, S, S]."""
    side = part.shape[-1]
    part = part - part.mean((2, 3), keepdim=True)
    length = part.flatten(1).norm(dim=1)
    found = F.conv2d(whole.transpose(0, 1), part, groups=len(part))[0]
    mean = _window_means(whole, side)[:, 0]
    variance = (_window_means(whole.square(), side)[:, 0] - mean.square()).clamp_min(0)
    # Where nothing is to be seen, noise would correlate: details count from one grey level on.
    lengths = (variance.clamp_min(1) * side**2).sqrt() * length.clamp_min(side)[:, None, None]
    correlations: Tensor = found / lengths
    return correlations


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Of the values of two blocks [P, ...]: [P]."""
    return (_centred_unit(a) * _centred_unit(b)).flatten(1).sum(1)


def _centred_unit(x: Tensor) -> Tensor:
    """Blocks [P, ...] with mean 0 and length 1; 0 where all values are the same."""
    centred = x - x.mean((1, 2, 3), keepdim=True)
    return F.normalize(centred.flatten(1), dim=1, eps=1e-3).view_as(x)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """In grey levels, on average: [P]."""
    return (a - b).abs().flatten(1).mean(1)


def _details(x: Tensor) -> Tensor:
    """What is left without the blurred picture."""
    return x - _blurred(x, 2)


def _fine_details(x: Tensor) -> Tensor:
    """The same at twice the resolution: the last pixel depends on how a picture was resized, and is blurred."""
    return _blurred(x, 1) - _blurred(x, 3)


def _blurred(x: Tensor, reach: int) -> Tensor:
    return _window_means(F.pad(x, (reach,) * 4, mode="replicate"), 2 * reach + 1)


def _window_means(x: Tensor, side: int) -> Tensor:
    """Of every square window of squares [..., S, S]: as products of matrices, much faster than by pooling."""
    offset = torch.arange(x.shape[-1])[:, None] - torch.arange(x.shape[-1] - side + 1)
    share = ((offset >= 0) & (offset < side)).float() / side
    means: Tensor = ((x @ share).mT @ share).mT
    return means


def _resized(x: Tensor, size: int) -> Tensor:
    return x if size == x.shape[-1] else F.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def _middle(x: Tensor) -> Tensor:
    size = x.shape[-1]
    side = round(MIDDLE * size)
    start = (size - side) // 2
    return x[..., start : start + side, start : start + side]


def _turned(x: Tensor, code: int) -> Tensor:
    """One of eight positions: codes 1 to 3 are turned by quarters, from 4 on mirrored first."""
    return torch.rot90(x.flip(-1) if code >= 4 else x, code % 4, (-2, -1))


def _grey(x: Tensor) -> Tensor:
    return (x * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _channels_first(squares: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(squares)).permute(0, 3, 1, 2).float()
