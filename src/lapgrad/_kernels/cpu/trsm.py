"""trsm: triangular solve, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._triangular import run_triangle
from lapgrad._kernels.native import core


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    return run_triangle(core.trsm, X, L, A, lower, transpose, rightside)
