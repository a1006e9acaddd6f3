"""The matrices of a state space model for some times."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad.models.components.base import Block

_ROUNDING_ERRORS = 1e-20
"""A variance below this part of the mean square of the steps of a series is none."""


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

        def convert(X: Tensor | None) -> Tensor | None:
            return None if X is None else X.to(dtype)

        A, B, Q, m, P, state_offset, observation_offset, R = self.block
        block = Block(
            A.to(dtype),
            B.to(dtype),
            Q.to(dtype),
            m.to(dtype),
            P.to(dtype),
            convert(state_offset),
            convert(observation_offset),
            convert(R),
        )
        return Matrices(block, self.R.to(dtype))


def set_covariance(block: Block, P: Tensor) -> Block:
    """Return a block with another covariance of the first state."""
    A, B, Q, m, _, state_offset, observation_offset, R = block
    return Block(A, B, Q, m, P, state_offset, observation_offset, R)


def follow_exactly(matrices: Matrices, y: Tensor) -> bool:
    """Return whether all variances are rounding errors beside the steps of the series y (N, T, p)."""
    largest = max(float(matrices.block.Q.abs().max()), float(matrices.R.abs().max()))
    steps = y.double().diff(dim=1).square()
    size = float(steps.nanmean()) if steps.numel() else 0.0
    size = size if size > 0.0 else float(y.double().square().nanmean())
    return not size > 0.0 or largest <= _ROUNDING_ERRORS * size
