"""trmm: triangular product, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cpu._native import core
from lapgrad._cpu._triangular import run_triangle


def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    run_triangle(core.trmm, B, L, A, lower, transpose, rightside)
