"""Randomness that a module owns, so that a checkpoint carries it and nothing else disturbs it."""

import torch
from torch import Tensor, nn


class RandomState(nn.Module):
    """A generator whose state is part of the module's `state_dict`.

    It is seeded from the global generator when built, as weights are, and is its own master from then on.
    It lives on the CPU, so the draws are the same on every device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(int(torch.randint(2**62, ())))

    def get_extra_state(self) -> Tensor:
        """The generator's state, as a byte tensor."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from a saved state."""
        self.generator.set_state(state.cpu())

    def permutation(self, num: int) -> Tensor:
        """A random order of `num` things."""
        return torch.randperm(num, generator=self.generator)

    def uniform(self) -> float:
        """A number from U(0, 1)."""
        return float(torch.rand((), generator=self.generator))

    def beta(self, alpha: float) -> float:
        """A number from Beta(alpha, alpha), as a share of two gamma draws."""
        a, b = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=self.generator).tolist()
        return float(a / (a + b))
