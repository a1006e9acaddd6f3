"""trmm: triangular product, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._triangular import run_triangle
from lapgrad._kernels.native import core


def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    run_triangle(core.trmm, B, L, A, lower, transpose, rightside)
