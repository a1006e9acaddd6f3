"""gemmt_sum: one triangle of the sum of two products, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._torch.precision import in_full_precision


@in_full_precision
def gemmt_sum(
    C: Tensor, A: Tensor, B: Tensor, D: Tensor, E: Tensor, lower: bool, symmetric: bool, alpha: float
) -> None:
    """C := alpha tri(A B^T + D E^T), the other triangle mirrored if symmetric, else 0."""
    total = alpha * (A @ B.mT + D @ E.mT)
    if not lower:
        total = total.mT
    total = total.tril() + total.tril(-1).mT if symmetric else total.tril()
    C.copy_(total if lower else total.mT)
