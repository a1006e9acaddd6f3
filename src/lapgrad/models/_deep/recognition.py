"""Recognition: a network that says where the inputs of a layer are, given its outputs.

    q(h | y) = N(h | P x + b + net(x)_mean, diag exp net(x)_log_variance),   x = (y - shift) / scale

The linear part starts as a projection that makes sense (principal components); the network starts small, and
corrects it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Log variances outside of this range are no help, and overflow in the end.
_LOG_VARIANCES = (-16.0, 8.0)
#: Size of the weights of the last layer of the network at the start, relative to the others.
_SMALL = 0.1


class Recognition(nn.Module):
    """Means and log variances of q(h | y), independent given y.

    Args:
        outputs: Of the layer, D: what goes in here.
        inputs: Of the layer, w: what comes out.
        hidden: Widths of the hidden layers of the network, from y to h; none: linear.
        shift: (D,), subtracted from y before anything else.
        scale: By which y is divided then.
        generator: Source of the weights at the start; None: torch's own.
        log_variance: Where log variances start.
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

        def linear(before: int, after: int, size: float = 1.0) -> nn.Linear:
            """No bias at the start, and weights that keep the spread of what goes through, times size."""
            part = nn.utils.skip_init(nn.Linear, before, after, dtype=shift.dtype, device=shift.device)
            assert isinstance(part, nn.Linear)
            with torch.no_grad():
                limit = size / before**0.5
                part.weight.uniform_(-limit, limit, generator=generator)
                part.bias.zero_()
            return part

        self.linear = linear(outputs, inputs)
        parts: list[nn.Module] = []
        for before, after in zip((outputs, *hidden), hidden, strict=False):
            parts += [linear(before, after), nn.ReLU()]
        last = linear(hidden[-1] if hidden else outputs, 2 * inputs, _SMALL)
        with torch.no_grad():
            last.bias[inputs:].fill_(log_variance)
        self.network = nn.Sequential(*parts, last)

    def forward(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, each (..., w), for Y (..., D)."""
        x = (Y - self.shift) / self.scale
        mean, log_variance = self.network(x).chunk(2, -1)
        return self.linear(x) + mean, log_variance.clamp(*_LOG_VARIANCES)
