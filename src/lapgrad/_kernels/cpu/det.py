"""det: determinant and cofactors, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.cofactors import replace_cofactors
from lapgrad._kernels.cpu import _determinant


def det(d: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    return _determinant.run(d, None, LU, pivots, A)


def det_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> None:
    unsure = _determinant.run_vjp(gA, A, LU, pivots, weight, True)
    if unsure:
        marks = torch.zeros(A.shape[:-2].numel(), dtype=torch.bool)
        marks[unsure] = True
        replace_cofactors(gA, A, weight, marks.view(A.shape[:-2]))
