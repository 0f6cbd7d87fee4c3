"""Split batch norm: one batch, several groups, each with its own statistics (methods.md 1.5)."""

import torch.nn.functional as F
from torch import Tensor, nn


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over `splits` interleaved groups: sample i belongs to group i mod `splits`.

    The groups share weight and bias; the running statistics follow the mean of the groups' statistics.
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
        num, channels, height, width = input.shape
        if num % self.splits:
            raise ValueError(f"a batch of {num} does not divide into {self.splits} batch-norm groups")
        self.num_batches_tracked.add_(1)
        # Group s of channel c becomes channel s * C + c of one ordinary batch norm, in channels_last order
        # throughout: [N, H, W, C] -> [N / S, S, H, W, C] -> [N / S, H, W, S, C].
        grouped = input.permute(0, 2, 3, 1).reshape(-1, self.splits, height, width, channels)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(-1, height, width, self.splits * channels)
        running_mean = self.running_mean.repeat(self.splits)
        running_var = self.running_var.repeat(self.splits)
        output = F.batch_norm(
            grouped.permute(0, 3, 1, 2),
            running_mean,
            running_var,
            self.weight.repeat(self.splits),
            self.bias.repeat(self.splits),
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        self.running_mean.copy_(running_mean.view(self.splits, channels).mean(0))
        self.running_var.copy_(running_var.view(self.splits, channels).mean(0))
        output = output.permute(0, 2, 3, 1).reshape(-1, height, width, self.splits, channels)
        return output.permute(0, 3, 1, 2, 4).reshape(num, height, width, channels).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        """What print(network) shows."""
        return f"{self.num_features}, splits={self.splits}"


def split_batch_norm(network: nn.Module, splits: int) -> None:
    """Replace every BatchNorm2d inside `network` by its split form, keeping its state. BatchNorm1d stays."""
    for name, module in list(network.named_children()):
        if isinstance(module, SplitBatchNorm2d):
            module.splits = splits
        elif isinstance(module, nn.BatchNorm2d):
            split = SplitBatchNorm2d(module.num_features, splits, eps=module.eps, momentum=module.momentum)
            split.load_state_dict(module.state_dict())
            setattr(network, name, split)
        else:
            split_batch_norm(module, splits)
