"""The matrices of a state space model for some times."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad.models.components.base import Block


class Matrices(NamedTuple):
    """The matrices of the model for some times: those of the component, and the covariance R of the noise."""

    block: Block
    R: Tensor

    def list_operands(self, y: Tensor) -> dict[str, Any]:
        """Return the arguments of ``fused.kalman_nll`` for the series y (N, T, p)."""
        return {
            "y": y,
            **{name: getattr(self.block, name) for name in "ABQ"},
            "R": self.R,
            "m": self.block.m,
            "P": self.block.P,
            "state_offset": self.block.state_offset,
            "observation_offset": self.block.observation_offset,
        }

    def to(self, dtype: torch.dtype) -> Matrices:
        """Return the matrices in another dtype."""
        block = self.block._replace(
            **{name: X.to(dtype) for name, X in self.block._asdict().items() if X is not None}
        )
        return Matrices(block, self.R.to(dtype))
