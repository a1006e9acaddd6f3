"""cuBLAS on blocks: in place, on torch's handle, stream and workspace.

cuBLAS counts columns first: a row-major matrix is to it the transpose of the same memory, and C = A B becomes
Cᵀ = Bᵀ Aᵀ with the same memory and swapped operands. An operand needs unit stride in one dimension, the other stride is the leading dimension; a result needs it in its rows.

torch leaves its handle in full precision between its own calls, so TF32 does not reach these products.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from lapgrad._cuda._block import Block

_NO, _YES = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_LOWER, _UPPER = 0, 1  # CUBLAS_FILL_MODE_*
_LEFT, _RIGHT = 0, 1  # CUBLAS_SIDE_*
_NON_UNIT = 0  # CUBLAS_DIAG_NON_UNIT


def on(like: Tensor) -> Blas:
    """cuBLAS for the type and the current stream of ``like``, whose device is the current one."""
    return Blas(like.dtype, torch.cuda.current_blas_handle())


class Blas:
    """Routines for one type and one handle. Made for a call and dropped with it: streams change."""

    __slots__ = ("_dtype", "_handle", "_routines")

    def __init__(self, dtype: torch.dtype, handle: int) -> None:
        self._dtype = dtype
        self._handle = handle
        self._routines = _routines(dtype)

    def gemm(self, C: Block, A: Block, B: Block, alpha: float = 1.0, beta: float = 0.0) -> None:
        """C := alpha A B + beta C, for as many matrices as C has; with beta = 0 the old C is not read."""
        if not (C.rows and C.cols):
            return
        op_a, lda = read(A)
        op_b, ldb = read(B)
        factor, keep = _number(self._dtype, alpha), _number(self._dtype, beta)
        one, many = self._routines[:2]
        if C.items == 1:
            one(
                self._handle, op_b, op_a, C.cols, C.rows, A.cols, addressof(factor), B.address, ldb,
                A.address, lda, addressof(keep), C.address, C.row,
            )  # fmt: skip
            return
        many(
            self._handle, op_b, op_a, C.cols, C.rows, A.cols, addressof(factor), B.address, ldb, B.step,
            A.address, lda, A.step, addressof(keep), C.address, C.row, C.step, C.items,
        )  # fmt: skip

    def trmm(
        self, C: Block, L: Block, B: Block, lower: bool, rightside: bool = False, alpha: float = 1.0
    ) -> None:
        """C := alpha L B, or alpha B L, with only the named triangle of L read. C may be B. One matrix."""
        if not (C.rows and C.cols):
            return
        side, triangle, op, ldl = _triangular(L, lower, rightside)
        factor = _number(self._dtype, alpha)
        self._routines[2](
            self._handle, side, triangle, op, _NON_UNIT, C.cols, C.rows, addressof(factor), L.address, ldl,
            B.address, B.row, C.address, C.row,
        )  # fmt: skip

    def trsm(self, B: Block, L: Block, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
        """B := alpha L⁻¹ B, or alpha B L⁻¹, in place, by cuBLAS's own substitution. One matrix."""
        if not (B.rows and B.cols):
            return
        side, triangle, op, ldl = _triangular(L, lower, rightside)
        factor = _number(self._dtype, alpha)
        self._routines[3](
            self._handle, side, triangle, op, _NON_UNIT, B.cols, B.rows, addressof(factor), L.address, ldl,
            B.address, B.row,
        )  # fmt: skip

    def syrk(self, C: Block, A: Block, lower: bool = True, alpha: float = 1.0, beta: float = 0.0) -> None:
        """The named triangle of C := alpha A Aᵀ + beta C; the other one is left alone. One matrix."""
        if not C.rows:
            return
        op, lda = read(A)
        factor, keep = _number(self._dtype, alpha), _number(self._dtype, beta)
        self._routines[4](
            self._handle, _UPPER if lower else _LOWER, _NO if op else _YES, A.rows, A.cols, addressof(factor),
            A.address, lda, addressof(keep), C.address, C.row,
        )  # fmt: skip


def read(A: Block) -> tuple[int, int]:
    """(operation, leading dimension) with which cuBLAS makes Aᵀ of A's memory."""
    if A.col == 1 and (A.row >= A.cols or A.rows == 1):
        return _NO, A.row if A.row >= A.cols else A.cols
    if A.row == 1 and (A.col >= A.rows or A.cols == 1):
        return _YES, A.col if A.col >= A.rows else A.rows
    raise AssertionError(f"cuBLAS cannot read {A}")


def readable(A: Tensor) -> Tensor:
    """A itself when cuBLAS can read it where it lies, else a copy."""
    rows, columns = A.stride()[-2:]
    m, n = A.shape[-2:]
    if (columns == 1 and rows >= max(n, 1)) or (rows == 1 and columns >= max(m, 1)):
        return A
    return A.contiguous()


def _triangular(L: Block, lower: bool, rightside: bool) -> tuple[int, int, int, int]:
    """(side, triangle, operation, leading dimension) for Cᵀ = Bᵀ Lᵀ."""
    op, ldl = read(L)
    # Read by columns, the memory of a row-major lower triangle is an upper one.
    return _LEFT if rightside else _RIGHT, _LOWER if lower == bool(op) else _UPPER, op, ldl


@functools.cache
def _routines(dtype: torch.dtype) -> tuple[Any, ...]:
    from nvmath.bindings import cublas

    prefix = "d" if dtype == torch.float64 else "s"
    return tuple(
        getattr(cublas, prefix + name) for name in ("gemm", "gemm_strided_batched", "trmm", "trsm", "syrk")
    )


@functools.lru_cache(maxsize=256)
def _number(dtype: torch.dtype, value: float) -> Any:
    """A number on the host. cuBLAS reads it before the call returns; the caller keeps it alive until then."""
    return (ctypes.c_double if dtype == torch.float64 else ctypes.c_float)(value)
