"""cuBLAS on tensors: products of row-major blocks, in place, on torch's handle, stream and workspace.

cuBLAS counts columns first: a row-major matrix is to it the transpose of the same memory, and
C = A B becomes Cᵀ = Bᵀ Aᵀ with the same memory and swapped operands. Any 2-D (or batched 3-D) tensor works
that has unit stride in one of its last two dimensions; the other stride is the leading dimension. The result
needs unit stride in its last dimension.

torch leaves its handle in full precision between its own calls, so TF32 does not reach these products.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

_NO, _YES = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T; also FILL_MODE_LOWER/UPPER and SIDE_LEFT/RIGHT
_LOWER, _UPPER = 0, 1
_LEFT, _RIGHT = 0, 1


def gemm(C: Tensor, A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    """C := alpha A B + beta C, for matrices, or for batches of them with one leading dimension."""
    m, n = C.shape[-2:]
    k = A.shape[-1]
    if not (m and n):
        return
    if not k:
        C.zero_() if beta == 0.0 else C.mul_(beta)
        return
    op_a, lda = _read(A)
    op_b, ldb = _read(B)
    ldc = C.stride(-2)
    prefix = _prefix(C.dtype)
    handle = _handle()
    scale, keep = _number(C.dtype, alpha), _number(C.dtype, beta)
    one, zero = addressof(scale), addressof(keep)
    if C.dim() == 2:
        _routine(prefix + "gemm")(
            handle, op_b, op_a, n, m, k, one, B.data_ptr(), ldb, A.data_ptr(), lda, zero, C.data_ptr(), ldc
        )
        return
    _routine(prefix + "gemm_strided_batched")(
        handle, op_b, op_a, n, m, k, one,
        B.data_ptr(), ldb, _step(B), A.data_ptr(), lda, _step(A), zero, C.data_ptr(), ldc, _step(C),
        C.shape[0],
    )  # fmt: skip


def trmm(C: Tensor, L: Tensor, B: Tensor, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
    """C := alpha L B, or alpha B L, with only the named triangle of L read. C may be B."""
    m, n = C.shape
    if not (m and n):
        return
    transposed, ldl = _read(L)
    ldb, ldc = B.stride(-2), C.stride(-2)
    scale = _number(C.dtype, alpha)
    # In cuBLAS's order: Cᵀ = Bᵀ Lᵀ, and L's memory read by columns is Lᵀ already.
    _routine(_prefix(C.dtype) + "trmm")(
        _handle(),
        _LEFT if rightside else _RIGHT,
        _UPPER if lower != bool(transposed) else _LOWER,
        transposed,
        0,
        n,
        m,
        addressof(scale),
        L.data_ptr(),
        ldl,
        B.data_ptr(),
        ldb,
        C.data_ptr(),
        ldc,
    )


def trsm(B: Tensor, L: Tensor, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
    """B := alpha L⁻¹ B, or alpha B L⁻¹, in place, by cuBLAS's own substitution."""
    m, n = B.shape
    if not (m and n):
        return
    transposed, ldl = _read(L)
    scale = _number(B.dtype, alpha)
    _routine(_prefix(B.dtype) + "trsm")(
        _handle(),
        _LEFT if rightside else _RIGHT,
        _UPPER if lower != bool(transposed) else _LOWER,
        transposed,
        0,
        n,
        m,
        addressof(scale),
        L.data_ptr(),
        ldl,
        B.data_ptr(),
        B.stride(-2),
    )


def syrk(C: Tensor, A: Tensor, lower: bool = True, alpha: float = 1.0, beta: float = 0.0) -> None:
    """The named triangle of C := alpha A Aᵀ + beta C; the other one is left alone."""
    n, k = A.shape
    if not n:
        return
    transposed, lda = _read(A)
    scale, keep = _number(C.dtype, alpha), _number(C.dtype, beta)
    _routine(_prefix(C.dtype) + "syrk")(
        _handle(),
        _UPPER if lower else _LOWER,
        _NO if transposed else _YES,
        n,
        k,
        addressof(scale),
        A.data_ptr(),
        lda,
        addressof(keep),
        C.data_ptr(),
        C.stride(-2),
    )


def readable(A: Tensor) -> Tensor:
    """A itself when cuBLAS can read it where it lies, else a copy."""
    rows, columns = A.stride()[-2:]
    m, n = A.shape[-2:]
    if (columns == 1 and rows >= max(n, 1)) or (rows == 1 and columns >= max(m, 1)):
        return A
    return A.contiguous()


def _read(A: Tensor) -> tuple[int, int]:
    """(operation, leading dimension) with which cuBLAS reads A's memory as Aᵀ."""
    rows, columns = A.stride()[-2:]
    m, n = A.shape[-2:]
    if columns == 1 and rows >= n:
        return _NO, max(rows, 1)
    if rows == 1 and columns >= m:
        return _YES, max(columns, 1)
    # One row or one column: its other stride says nothing.
    if m == 1 and columns == 1:
        return _NO, max(n, 1)
    if n == 1 and rows == 1:
        return _YES, max(m, 1)
    raise AssertionError(f"cuBLAS cannot read strides {A.stride()} of shape {tuple(A.shape)}")


def _step(A: Tensor) -> int:
    return A.stride(0) if A.shape[0] > 1 else 0


def _prefix(dtype: torch.dtype) -> str:
    return "d" if dtype == torch.float64 else "s"


def _handle() -> int:
    """Torch's handle for the current device, set to its current stream."""
    return torch.cuda.current_blas_handle()


@functools.cache
def _routine(name: str) -> Any:
    from nvmath.bindings import cublas

    return getattr(cublas, name)


@functools.lru_cache(maxsize=256)
def _number(dtype: torch.dtype, value: float) -> Any:
    """A number on the host. cuBLAS reads it before the call returns; the caller keeps it alive until then."""
    return (ctypes.c_double if dtype == torch.float64 else ctypes.c_float)(value)
