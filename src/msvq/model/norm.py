"""Split batch norm: one batch, several groups, each with its own statistics.

The groups are blocks that stand together in memory, so that none of them is ever copied: the paper's interleaved
groups become blocks by reordering the pictures once, before the first layer (`msvq.model.teacher.Network`). On an
accelerator they stay interleaved (`interleaved_groups`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from msvq.core.distributed import all_gather, world_size
from msvq.core.errors import BadInput


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over `splits` equal blocks of a batch: sample i belongs to block i // (N / `splits`).

    The blocks share weight and bias; the running statistics follow the mean of the blocks' statistics.
    In eval mode it is ordinary batch norm with the same state, so its weights load into a plain network. On several
    ranks each has an equal share of the blocks, and its running statistics are of those alone. Layers inside it, such
    as the activation of timm's batch norms, come after it.
    """

    def __init__(self, num_features: int, splits: int, *, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.splits = splits
        self._planes: _Planes | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape; N must be a multiple of `splits` while training."""
        splits = local_splits(self.splits)
        if not self.training or splits == 1:
            return followed(self, super().forward(input))
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        if len(input) % splits:
            raise no_groups(len(input), splits)
        if self._planes is not None:
            return followed(self, self._planes.normalise(input, splits, self.eps))
        self.num_batches_tracked.add_(1)
        # The blocks stay where they are, and fit a processor's caches better than a batch does. A compiler is better
        # served by a formula that it can fuse with its neighbours.
        normalise = _by_formula if torch.compiler.is_compiling() else _block_by_block
        output, means, variances = normalise(input, self.weight, self.bias, splits, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(means.mean(0), self.momentum)
            self.running_var.lerp_(variances.mean(0), self.momentum)
        return followed(self, output)

    def extra_repr(self) -> str:
        """What print(network) shows."""
        return f"{self.num_features}, splits={self.splits}"


def no_groups(num: int, splits: int) -> ValueError:
    """The error for a batch that does not divide into groups."""
    return ValueError(
        f"a batch of {num} does not divide into {splits} batch-norm groups; leave out a last batch that is short "
        f"(drop_last=True in the loader), or have no groups (bn_splits=1)"
    )


def followed(norm: nn.Module, output: Tensor) -> Tensor:
    """What the layers inside a batch norm make of its output."""
    for layer in norm.children():
        output = layer(output)
    return output


Normalised = tuple[Tensor, Tensor, Tensor]  # the batch, and the blocks' means and unbiased variances [S, C]


def _by_formula(x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float) -> Normalised:
    """(x - mean) / sqrt(variance + eps), written out."""
    num, channels, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(splits, -1, channels).to(weight.dtype)
    variance, mean = torch.var_mean(blocks, dim=1, correction=0, keepdim=True)
    output = (blocks - mean) * (torch.rsqrt(variance + eps) * weight) + bias
    output = output.to(x.dtype).view(num, height, width, channels).permute(0, 3, 1, 2)
    return output, mean[:, 0].detach(), _unbiased(variance[:, 0].detach(), blocks.shape[1])


def _block_by_block(x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float) -> Normalised:
    """Each block by PyTorch's own kernels, straight into its place in the output."""
    output, mean, scale = cast(Normalised, _BlockNorm.apply(x, weight, bias, splits, eps))
    return output, mean, _unbiased(scale.pow(-2).sub_(eps), x.numel() // (splits * x.shape[1]))


def _unbiased(variance: Tensor, count: int) -> Tensor:
    return variance * (count / max(1, count - 1))


def _normalised_in_turn(x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float) -> Normalised:
    """The normalised batch, and of each block [S, C] the mean and 1 / sqrt(variance + eps)."""
    output, found = torch.empty_like(x), weight.new_empty(2, splits, weight.numel())
    means, scales = found.unbind()
    rows = zip(x.chunk(splits), output.chunk(splits), means.unbind(), scales.unbind(), strict=True)
    for block, out, mean, scale in rows:
        torch.native_batch_norm(block, weight, bias, None, None, True, 0.0, eps, out=(out, mean, scale))
    return output, means, scales


def _normalised_at_once(x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float) -> Normalised:
    """The same in one call, for channels_last: a block is one sample of a group norm in which a channel is a group.

    It reads the batch once for both moments, where `_normalised_in_turn` takes the mean first, then the variance.
    """
    num, channels, height, width = x.shape
    count = num // splits * height * width
    blocks = x.permute(0, 2, 3, 1).view(splits, num // splits, height * width, channels).permute(0, 3, 1, 2)
    output, means, scales = torch.native_group_norm(blocks, weight, bias, splits, channels, count, channels, eps)
    # Its storage in the shape of x: a view would forbid what comes after it, a ReLU in place for one.
    return x.new_empty(0).set_(output.untyped_storage(), 0, x.shape, x.stride()), means, scales


def _suits_one_call(x: Tensor, splits: int) -> bool:
    """Whether `_normalised_at_once` is the faster, and as exact as the numbers that it is given.

    Half-precision numbers have lost more than both moments of one reading do. PyTorch's kernel goes through samples
    of fewer numbers channel by channel, which channels_last makes slow.
    """
    is_half = x.dtype in (torch.bfloat16, torch.float16)
    enough = x.numel() // (splits * x.shape[1]) >= 1024
    return is_half and enough and x.is_contiguous(memory_format=torch.channels_last)


class _BlockNorm(torch.autograd.Function):
    """Calls PyTorch's kernels on views of the batch, which autograd's own record of views would copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float) -> Normalised:
        """The normalised batch, and of each block [S, C] the mean and 1 / sqrt(variance + eps)."""
        normalised = _normalised_at_once if _suits_one_call(x, splits) else _normalised_in_turn
        output, means, scales = normalised(x, weight, bias, splits, eps)
        ctx.save_for_backward(x, weight, means, scales)
        ctx.mark_non_differentiable(means, scales)
        ctx.eps = eps
        return output, means, scales

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight, means, scales = ctx.saved_tensors
        layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        gradient = gradient.contiguous(memory_format=layout)  # the same as x's, or its sums are coarser
        splits, x_gradient, others = len(means), torch.empty_like(x), []
        rows = zip(gradient.chunk(splits), x.chunk(splits), x_gradient.chunk(splits), means, scales, strict=True)
        for upper, block, out, mean, scale in rows:
            found, *of_parameters = torch.ops.aten.native_batch_norm_backward.default(
                upper, block, weight, None, None, mean, scale, True, ctx.eps, [True, True, True]
            )
            out.copy_(found)  # while it is still in the cache
            others += of_parameters
        of_weight, of_bias = torch.stack(others).view(splits, 2, -1).sum(0)
        return x_gradient, of_weight, of_bias, None, None


# --- on an accelerator


class _Planes(NamedTuple):
    """What a batch norm in `interleaved_groups` computes with, and leaves its statistics in: [S C] each."""

    weight: Tensor
    bias: Tensor
    means: Tensor
    variances: Tensor

    def normalise(self, x: Tensor, splits: int, eps: float) -> Tensor:
        """One ordinary batch norm in which channel c of group s is channel s C + c of [N / S, S C, H, W].

        Where pictures are planes in memory, that is only another way to look at them.
        """
        num, channels, height, width = x.shape
        grouped = x.reshape(num // splits, splits * channels, height, width)
        weight, bias, means, variances = self
        # A momentum of 1: what runs is this batch's.
        return F.batch_norm(grouped, means, variances, weight, bias, True, 1.0, eps).view(x.shape)


@contextmanager
def interleaved_groups(norms: Sequence[SplitBatchNorm2d]) -> Iterator[None]:
    """Inside, sample i of a training batch belongs to group i mod S of each norm, and no activation is copied.

    That takes planar pictures, and is for accelerators: a layer is one kernel, and what else there is to do for all
    layers is done at once, before and after. Each norm is used once.
    """
    splits = local_splits(norms[0].splits)
    parameters = [p for norm in norms for p in (norm.weight, norm.bias)]
    repeated = cast(tuple[Tensor, ...], _Repeat.apply(splits, *parameters))
    sizes = [p.numel() for p in repeated]
    found = torch.zeros(sum(sizes), device=repeated[0].device, dtype=repeated[0].dtype).split(sizes)
    for norm, *parts in zip(norms, repeated[::2], repeated[1::2], found[::2], found[1::2], strict=True):
        norm._planes = _Planes(*parts)
    try:
        yield
    finally:
        for norm in norms:
            norm._planes = None
    with torch.no_grad():
        widths = [size // splits for size in sizes]
        means = torch.cat([part.view(splits, -1) for part in found], 1).mean(0).split(widths)
        running = running_statistics(nn.ModuleList(norms))
        momenta = [cast(float, norm.momentum) for norm in norms for _ in range(2)]
        for momentum in set(momenta):
            chosen = [i for i, other in enumerate(momenta) if other == momentum]
            torch._foreach_lerp_([running[i] for i in chosen], [means[i] for i in chosen], momentum)
        torch._foreach_add_([cast(Tensor, norm.num_batches_tracked) for norm in norms], 1)


class _Repeat(torch.autograd.Function):
    """Each parameter [C] `splits` times, [S C], in one kernel; its gradient is the sum over the repetitions."""

    @staticmethod
    def forward(ctx: Any, splits: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        """In the order of the parameters."""
        ctx.splits, ctx.sizes = splits, [p.numel() for p in parameters]
        whole = torch.cat([p for p in parameters for _ in range(splits)])
        return tuple(torch.split(whole, [splits * size for size in ctx.sizes]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """All sums at once."""
        whole = torch.cat([gradient.view(ctx.splits, -1) for gradient in gradients], 1)
        return None, *whole.sum(0).split(ctx.sizes)


def local_splits(splits: int) -> int:
    """How many of the groups of a whole batch are this rank's; one group is everyone's."""
    if splits > 1 and splits % world_size():
        raise ValueError(f"{splits} batch-norm groups do not divide among {world_size()} processes")
    return max(1, splits // world_size())


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the whole batch, whichever ranks its rows are on; [n, C, ...] on each, n the same for all.

    Layers inside it come after it, as in `SplitBatchNorm2d`.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        """The same shape. A rank's own statistics meet the others' once, and so do their gradients."""
        if not self.training or world_size() == 1:
            return followed(self, super().forward(input))
        x = input if input.dtype == torch.float64 else input.float()
        others = [dim for dim in range(x.ndim) if dim != 1]
        own_variance, own_mean = torch.var_mean(x, dim=others, correction=0)
        means, variances = all_gather(torch.stack([own_mean, own_variance])[None]).unbind(1)  # [W, C] each
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        if self.track_running_stats:
            count = x.numel() // x.shape[1] * world_size()
            self._remember(mean.detach(), _unbiased(variance.detach(), count))
        shape = [-1 if dim == 1 else 1 for dim in range(x.ndim)]
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        x = (x - mean.view(shape)) * scale.view(shape)
        return followed(self, (x + self.bias.view(shape) if self.affine else x).to(input.dtype))

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def convert_sync_batchnorm_(network: nn.Module) -> None:
    """Let every batch norm inside `network` that is not split see the whole batch, on however many ranks it is."""
    check_sync_batchnorm(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if _is_not_split(module):
                whole = SyncBatchNorm(module.num_features, module.eps, module.momentum)
                vars(whole).update(vars(module))  # the very same weights, statistics and mode
                setattr(parent, name, whole)


def check_sync_batchnorm(network: nn.Module) -> None:
    """Raise if `convert_sync_batchnorm_` cannot do so."""
    for name, module in network.named_modules():
        if _is_not_split(module):
            _check_kind(module, name, "see the batches of several processes as one; train in one process")


def _is_not_split(module: nn.Module) -> TypeGuard[nn.BatchNorm1d | nn.BatchNorm2d]:
    return isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and getattr(module, "splits", 1) == 1


def _check_kind(norm: nn.Module, name: str, use: str) -> None:
    """Raise if a batch norm computes in a way of its own, which a replacement would silently leave out.

    A forward that is there for the layers inside it, as of timm's norms with activation, is followed.
    """
    known = (nn.modules.batchnorm._BatchNorm.forward, SplitBatchNorm2d.forward)
    if type(norm).forward not in known and not list(norm.children()):
        raise BadInput(f"batch norm {name!r} of the backbone is a {type(norm).__name__}, which cannot {use}")


def running_statistics(network: nn.Module) -> list[Tensor]:
    """The running means and variances inside `network`. They are linear in the groups' statistics, so that their mean
    over the ranks is what one process with all of the groups would have.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return [kept for norm in norms for kept in (norm.running_mean, norm.running_var) if kept is not None]


def split_batch_norm(network: nn.Module, splits: int) -> None:
    """Replace every BatchNorm2d inside `network` by its split form, keeping its state. BatchNorm1d stays.

    The groups are blocks of the batch; `msvq.model.teacher.Network` makes interleaved ones of them.
    """
    for name, module in list(network.named_children()):
        if isinstance(module, SplitBatchNorm2d):
            module.splits = splits
        elif isinstance(module, nn.BatchNorm2d) and splits > 1:
            _check_kind(module, name, "be split; set method.bn_splits=1")
            if not module.affine or not module.track_running_stats or module.momentum is None:
                raise BadInput(
                    f"batch norm {name!r} of the backbone has no weights, no running statistics or no momentum, and "
                    f"cannot be split; set method.bn_splits=1"
                )
            split = SplitBatchNorm2d(module.num_features, splits, eps=module.eps, momentum=module.momentum)
            for inner, layer in module.named_children():
                split.add_module(inner, layer)
            split.load_state_dict(module.state_dict())
            for parameter, original in zip(split.parameters(), module.parameters(), strict=True):
                parameter.requires_grad_(original.requires_grad)
            setattr(network, name, split)
        else:
            split_batch_norm(module, splits)
