"""Split batch norm: one batch, several groups, each with its own statistics (methods.md 1.5).

The groups are blocks that stand together in memory, so that none of them is ever copied: the paper's interleaved
groups become blocks by reordering the pictures once, before the first layer (`msvq.model.teacher.Network`).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from msvq.errors import BadInput


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over `splits` equal blocks of a batch: sample i belongs to block i // (N / `splits`).

    The blocks share weight and bias; the running statistics follow the mean of the blocks' statistics.
    In eval mode it is ordinary batch norm with the same state, so its weights load into a plain network.
    """

    def __init__(self, num_features: int, splits: int, *, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.splits = splits

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape; N must be a multiple of `splits` while training."""
        if not self.training or self.splits == 1:
            return super().forward(input)
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        if len(input) % self.splits:
            raise ValueError(f"a batch of {len(input)} does not divide into {self.splits} batch-norm groups")
        self.num_batches_tracked.add_(1)
        means, variances = self.running_mean.repeat(self.splits, 1), self.running_var.repeat(self.splits, 1)
        # Block by block is the fastest on a processor, whose caches a block fits better than a batch does. A GPU is
        # better served by one kernel over the blocks, and a compiler by a formula that it can fuse with its neighbours.
        normalise = _as_channels if input.device.type != "cpu" else _block_by_block
        if torch.compiler.is_compiling():
            normalise = _by_formula
        output = normalise(input, means, variances, self.weight, self.bias, self.momentum, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(means.mean(0))
            self.running_var.copy_(variances.mean(0))
        return output

    def extra_repr(self) -> str:
        """What print(network) shows."""
        return f"{self.num_features}, splits={self.splits}"


def _as_channels(
    x: Tensor, means: Tensor, variances: Tensor, weight: Tensor, bias: Tensor, momentum: float, eps: float
) -> Tensor:
    """One ordinary batch norm in which channel c of block s is channel s * C + c; `means` and so on are [S, C]."""
    splits, channels = means.shape
    _, _, height, width = x.shape
    # In channels_last order throughout: [S, N / S, H, W, C] -> [N / S, H, W, S, C] and back.
    blocks = x.permute(0, 2, 3, 1).reshape(splits, -1, height, width, channels)
    grouped = blocks.permute(1, 2, 3, 0, 4).reshape(-1, height, width, splits * channels)
    output = F.batch_norm(
        grouped.permute(0, 3, 1, 2),
        means.view(-1),
        variances.view(-1),
        weight.repeat(splits),
        bias.repeat(splits),
        training=True,
        momentum=momentum,
        eps=eps,
    )
    output = output.permute(0, 2, 3, 1).reshape(-1, height, width, splits, channels)
    return output.permute(3, 0, 1, 2, 4).reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _by_formula(
    x: Tensor, means: Tensor, variances: Tensor, weight: Tensor, bias: Tensor, momentum: float, eps: float
) -> Tensor:
    """(x - mean) / sqrt(variance + eps), written out."""
    splits, channels = means.shape
    num, _, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(splits, -1, channels).to(weight.dtype)
    variance, mean = torch.var_mean(blocks, dim=1, correction=0, keepdim=True)
    count = blocks.shape[1]
    with torch.no_grad():
        means.lerp_(mean[:, 0], momentum)
        variances.lerp_(variance[:, 0] * (count / max(1, count - 1)), momentum)
    output = (blocks - mean) * (torch.rsqrt(variance + eps) * weight) + bias
    return output.to(x.dtype).view(num, height, width, channels).permute(0, 3, 1, 2)


def _block_by_block(
    x: Tensor, means: Tensor, variances: Tensor, weight: Tensor, bias: Tensor, momentum: float, eps: float
) -> Tensor:
    """Each block by PyTorch's own batch norm, straight into its place in the output."""
    return cast(Tensor, _BlockNorm.apply(x, weight, bias, means, variances, momentum, eps))


class _BlockNorm(torch.autograd.Function):
    """Calls PyTorch's kernels on views of the batch, which autograd's own record of views would copy."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, variances: Tensor, momentum: float, eps: float
    ) -> Tensor:
        """The normalised batch; running `means` and `variances` [S, C] are updated in place."""
        output, mean, deviation = torch.empty_like(x), torch.empty_like(means), torch.empty_like(means)
        splits = len(means)
        rows = zip(x.chunk(splits), output.chunk(splits), means, variances, mean, deviation, strict=True)
        for block, out, running_mean, running_var, *saved in rows:
            torch.native_batch_norm(
                block, weight, bias, running_mean, running_var, True, momentum, eps, out=(out, *saved)
            )
        ctx.save_for_backward(x, weight, mean, deviation)
        ctx.eps = eps
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight, mean, deviation = ctx.saved_tensors
        layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        gradient = gradient.contiguous(memory_format=layout)  # the same as x's, or its sums are coarser
        splits, wanted = len(mean), [True, True, True]
        x_gradient = torch.empty_like(x)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        rows = zip(gradient.chunk(splits), x.chunk(splits), x_gradient.chunk(splits), mean, deviation, strict=True)
        for upper, block, out, *saved in rows:
            found = torch.ops.aten.native_batch_norm_backward(
                upper, block, weight, None, None, *saved, True, ctx.eps, wanted
            )
            out.copy_(found[0])  # while it is still in the cache
            of_weight += found[1]
            of_bias += found[2]
        return x_gradient, of_weight, of_bias, None, None, None, None


def split_batch_norm(network: nn.Module, splits: int) -> None:
    """Replace every BatchNorm2d inside `network` by its split form, keeping its state. BatchNorm1d stays.

    The groups are blocks of the batch; `msvq.model.teacher.Network` makes interleaved ones of them.
    """
    for name, module in list(network.named_children()):
        if isinstance(module, SplitBatchNorm2d):
            module.splits = splits
        elif isinstance(module, nn.BatchNorm2d) and splits > 1:
            if not module.affine or not module.track_running_stats or module.momentum is None:
                raise BadInput(
                    f"batch norm {name!r} of the backbone has no weights, no running statistics or no momentum, and "
                    f"cannot be split; set method.bn_splits=1"
                )
            split = SplitBatchNorm2d(module.num_features, splits, eps=module.eps, momentum=module.momentum)
            split.load_state_dict(module.state_dict())
            setattr(network, name, split)
        else:
            split_batch_norm(module, splits)
