"""Triangular and symmetric products of small matrices, in one launch. See ``kernels/trmm_tiles.cu``."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import Launch

_TILE = 32
_THREADS = 256

_TRIANGULAR_FACTOR, _TRIANGULAR_RESULT, _SYMMETRIC_RESULT = range(3)


def serves(items: int, m: int, n: int, k: int) -> bool:
    """Whether the device multiplies m x k and k x n matrices faster than the host can launch twice."""
    blocks = items * -(-m // _TILE) * -(-n // _TILE)
    few = items * m * n * k <= _thresholds.FEW_MULTIPLICATIONS and k <= _thresholds.FEW_TERMS
    return few and blocks <= _thresholds.FEW_TILES


def plan_triangular_factor(
    C: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> Launch:
    """Return the launch of C := t(L) A, or A t(L); all of them (items, rows, columns), any strides."""
    if rightside:  # Cᵀ = t(L)ᵀ Aᵀ
        C, A, transpose = C.mT, A.mT, not transpose
    if transpose:
        L, lower = L.mT, not lower
    return _plan(_TRIANGULAR_FACTOR, C, L, A, int(not lower), 1.0)


def plan_triangular_result(C: Tensor, A: Tensor, B: Tensor, lower: bool, alpha: float) -> Launch:
    """Return the launch of one triangle of C := alpha A B, zeros in the other."""
    if not lower:  # Cᵀ = Bᵀ Aᵀ
        C, A, B = C.mT, B.mT, A.mT
    return _plan(_TRIANGULAR_RESULT, C, A, B, 0, alpha)


def plan_symmetric_result(C: Tensor, A: Tensor) -> Launch:
    """Return the launch of C := A Aᵀ, symmetric to the last bit."""
    return _plan(_SYMMETRIC_RESULT, C, A, A.mT, 0, 1.0)


def _plan(kind: int, C: Tensor, A: Tensor, B: Tensor, upper: int, alpha: float) -> Launch:
    items, m, k = A.shape
    n = B.shape[-1]
    down, across = -(-m // _TILE), -(-n // _TILE)
    tiles = down * (down + 1) // 2 if kind == _SYMMETRIC_RESULT else down * across
    operands = (C.data_ptr(), *C.stride(), A.data_ptr(), *A.stride(), B.data_ptr(), *B.stride())
    return (
        "trmm_tiles", f"multiply_tiles<{{T}}, {kind}>", A, (items * tiles,), _THREADS,
        2 * _TILE * (_TILE + 1) * A.element_size(), *operands, m, n, k, upper, float(alpha),
    )  # fmt: skip
