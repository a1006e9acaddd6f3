"""Where the rows of data of a sparse Gaussian process come from: tensors, or a reader of chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

#: The dtype of all matrices of U x U and U x chunk, and of the rows that they are computed from.
ARITHMETIC = torch.float64


class Rows(Protocol):
    """Rows of inputs and targets that are read chunk by chunk, several times.

    Attributes:
        count: How many rows there are.
        outputs: Columns of the targets.
    """

    @property
    def count(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    def read(self, rows: slice, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return inputs (m, d) and targets (m, k) in ``ARITHMETIC``.

        Args:
            rows: Which of them.
            parameters: What the targets depend on besides the data; gradients go through to them.
        """


@dataclasses.dataclass(frozen=True)
class TensorRows:
    """The rows of X (n, d) and Y (n, k), of any dtype."""

    X: Tensor
    Y: Tensor

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.X)

    @property
    def outputs(self) -> int:
        """How many columns the targets have."""
        return self.Y.shape[-1]

    def read(self, rows: slice, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in ``ARITHMETIC``."""
        return self.X[rows].to(ARITHMETIC), self.Y[rows].to(ARITHMETIC)
