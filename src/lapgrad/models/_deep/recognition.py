"""Recognition networks: they give the distribution of the inputs of a layer, given its outputs.

    q(h | y) = N(h | P x + b + net(x)_mean, diag exp net(x)_log_variance),   x = (y - shift) / scale

The linear part starts as a projection to principal components. The network is small at the start, and learns
corrections.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Log variances are limited to this range, so that they never overflow.
_LOG_VARIANCES = (-16.0, 8.0)
#: Initial size of the weights of the network's last layer, relative to the others.
_SMALL = 0.1


class Recognition(nn.Module):
    """Means and log variances of q(h | y), independent given y.

    Args:
        outputs: D, outputs of the layer, which are the inputs of the network.
        inputs: w, inputs of the layer, whose distribution the network gives.
        hidden: Widths of the hidden layers of the network, from y to h; none: linear.
        shift: (D,), subtracted from y first.
        scale: A scalar by which y is then divided.
        generator: Source of the weights at the start; None: torch's own.
        log_variance: Initial log variances.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        outputs: int,
        inputs: int,
        hidden: Sequence[int],
        shift: Tensor,
        scale: Tensor,
        generator: torch.Generator | None = None,
        log_variance: float = -4.0,
    ) -> None:
        super().__init__()
        self.register_buffer("shift", shift.detach().clone())
        self.register_buffer("scale", scale.detach().clone())

        def make_linear(before: int, after: int, size: float = 1.0) -> nn.Linear:
            """Return a layer with bias 0 whose weights scale the input by about ``size``."""
            part = nn.utils.skip_init(nn.Linear, before, after, dtype=shift.dtype, device=shift.device)
            assert isinstance(part, nn.Linear)
            with torch.no_grad():
                limit = size / before**0.5
                part.weight.uniform_(-limit, limit, generator=generator)
                part.bias.zero_()
            return part

        self.linear = make_linear(outputs, inputs)
        parts: list[nn.Module] = []
        for before, after in zip((outputs, *hidden), hidden, strict=False):
            parts += [make_linear(before, after), nn.ReLU()]
        last = make_linear(hidden[-1] if hidden else outputs, 2 * inputs, _SMALL)
        with torch.no_grad():
            last.bias[inputs:].fill_(log_variance)
        self.network = nn.Sequential(*parts, last)

    def forward(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, each (..., w), for Y (..., D)."""
        x = (Y - self.shift) / self.scale
        mean, log_variance = self.network(x).chunk(2, -1)
        return self.linear(x) + mean, log_variance.clamp(*_LOG_VARIANCES)
