"""The networks of a momentum method: a student that learns and teachers that follow it."""

import copy
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from msvq.core.distributed import gather_permuted, world_size
from msvq.core.runtime import RandomState, is_out_of_memory
from msvq.model.norm import SplitBatchNorm2d, interleaved_groups, local_splits, no_groups, split_batch_norm


@runtime_checkable
class Backbone(Protocol):
    """What a method needs of a backbone: a module from pictures to features that knows their number."""

    feature_dim: int


class Network(nn.Module):
    """A backbone with its projector: pictures [N, 3, H, W] to embeddings [N, d], not yet of unit length.

    While training, the backbone's batch norm sees `bn_splits` interleaved groups: picture i is in group i mod
    `bn_splits`. The pictures of a group are put side by side once and the embeddings back, and in between each
    group is a block that `SplitBatchNorm2d` finds in one piece. The projector's batch norm sees the whole batch.
    On several ranks the groups are those of the whole batch, and each rank has its share of them. An accelerator
    leaves the pictures in their order, for kernels are dear and planes cheap (`interleaved_groups`).
    """

    def __init__(self, backbone: Backbone | nn.Module, projector: nn.Module, *, bn_splits: int = 1) -> None:
        super().__init__()
        self.backbone = cast(nn.Module, backbone)
        self.projector = projector
        split_batch_norm(self.backbone, bn_splits)
        has_groups = any(isinstance(module, SplitBatchNorm2d) for module in self.backbone.modules())
        self.bn_splits = bn_splits if has_groups else 1
        self._compiled: Callable[[Tensor], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled: it belongs to this network, and would be called by its copies."""
        return {**self.__dict__, "_compiled": None}

    def compile_backbone(self, on_failure: Callable[[Exception], None], mode: str | None = None) -> None:
        """From now on, train with a compiled backbone. It stays as it is for whoever else calls it.

        It is compiled when it is first used. If that fails, `on_failure` is told, and the backbone itself is used.
        """
        compiled = torch.compile(self.backbone.forward, dynamic=False, mode=mode)

        def run(x: Tensor) -> Tensor:
            try:
                features: Tensor = compiled(x)
            except Exception as error:  # whatever it is: if it is not the compiler's, the backbone raises it again
                if is_out_of_memory(error):
                    raise
                on_failure(error)
                return cast(Tensor, self.backbone(x))
            # What is replayed writes its result over the last one, which a loss of several views still needs.
            return features if mode is None else features.clone()

        self._compiled = run

    @property
    def is_compiled(self) -> bool:
        """Whether it is trained with a compiled backbone."""
        return self._compiled is not None

    def leave_uncompiled(self) -> None:
        """From now on, train with the backbone itself."""
        self._compiled = None

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [N, d]."""
        training = self.backbone.training
        backbone = self._compiled if self._compiled is not None and training else self.backbone
        splits = local_splits(self.bn_splits)
        if not training or splits == 1:
            return cast(Tensor, self.projector(backbone(x)))
        if len(x) % splits:
            raise no_groups(len(x), splits)
        if x.device.type != "cpu" and backbone is self.backbone:
            norms = [module for module in backbone.modules() if isinstance(module, SplitBatchNorm2d)]
            with interleaved_groups(norms):
                return cast(Tensor, self.projector(backbone(x.contiguous())))
        places = torch.arange(len(x), device=x.device)
        features = backbone(x[places.view(-1, splits).T.reshape(-1)])  # 0, S, 2 S, ..., 1, S + 1, ...
        return cast(Tensor, self.projector(features[places.view(splits, -1).T.reshape(-1)]))


def memory_format(method: nn.Module, device: torch.device, compiled: bool) -> torch.memory_format:
    """The layout that a method is trained in: planes where an accelerator leaves batch-norm groups interleaved."""
    grouped = any(isinstance(module, Network) and module.bn_splits > 1 for module in method.modules())
    planar = grouped and device.type != "cpu" and not compiled
    return torch.contiguous_format if planar else torch.channels_last


class Teacher(nn.Module):
    """A copy of the student that follows it slowly and never sees a gradient.

    Parameters are averaged, batch-norm buffers are not: the teacher stays in training mode and keeps
    statistics of its own. `shuffle` permutes each batch before it is forwarded and the outputs back, so
    that split batch norm groups other samples than in the student; on several ranks, it is the whole batch that is
    permuted. While `frozen`, it stands still: a batch that is computed in parts moves its teachers once.
    """

    def __init__(self, student: nn.Module, *, momentum: float, shuffle: bool = True) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"a teacher's momentum lies in [0, 1], not {momentum}")
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.momentum = momentum
        self.shuffle = shuffle
        self.random = RandomState()
        self.frozen = False

    @torch.no_grad()
    def ema_update(self, student: nn.Module) -> None:
        """θ_t <- m θ_t + (1 - m) θ_s, over all parameters at once."""
        if self.frozen:
            return
        torch._foreach_lerp_(list(self.network.parameters()), list(student.parameters()), weight=1 - self.momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [N, d], in the order of `x`, without gradient."""
        if not self.shuffle:
            return cast(Tensor, self.network(x))
        # The same on every rank; several ranks exchange rows, which takes numbers that the processor knows.
        order, back = self.random.permutation(len(x) * world_size(), x.device if world_size() == 1 else None)
        z: Tensor = self.network(gather_permuted(x, order))
        return gather_permuted(z, back)
