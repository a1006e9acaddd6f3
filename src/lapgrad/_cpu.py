"""Raw CPU kernels over the compiled core: tensors in, addresses and strides down.

A row-major matrix is handed over as it lies. The core knows only lower triangles and left sides:
``lower=False`` and ``rightside=True`` become swapped strides here (the transpose of a matrix is the same
memory, read the other way).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor

from lapgrad import _blas
from lapgrad._errors import LARGEST_DIMENSION
from lapgrad._fallback import (
    extractdiag,
    extracttrian,
    gemm,
    makediag,
    maketrian,
    sumlogdiag,
    sumlogdiag_vjp,
)

__all__ = [
    "copyltu",
    "extractdiag",
    "extracttrian",
    "gemm",
    "gemmt",
    "makediag",
    "maketrian",
    "potrf",
    "potrf_vjp",
    "sumlogdiag",
    "sumlogdiag_vjp",
    "syrk",
    "syrk_vjp",
    "trmm",
    "trsm",
]


def _load_core() -> Any:
    try:
        return importlib.import_module("lapgrad._core")
    except ImportError:  # installed without the compiled core
        return None


_core = _load_core()

ISA_VARIANTS = ("avx512", "avx2", "baseline")


def switched_off() -> bool:
    """Whether ``LAPGRAD_CORE`` asks for the kernels in plain PyTorch."""
    return os.environ.get("LAPGRAD_CORE", "").lower() in ("off", "0", "false")


def _start() -> str | None:
    """Makes the core ready; else says why it is not."""
    if switched_off():
        return "LAPGRAD_CORE switches it off"
    if _core is None:
        return "this installation was built without it"
    isa = os.environ.get("LAPGRAD_ISA", "")
    if not _core.select_isa(isa):
        names = ", ".join(ISA_VARIANTS)
        raise ValueError(f"LAPGRAD_ISA={isa!r} is not one of {names}, or this CPU does not run it")
    try:
        _blas.bind(_core)
    except ImportError as error:
        return str(error)
    return None


#: Why the compiled core cannot be used; None when it can.
UNAVAILABLE = _start()


def available() -> bool:
    """Whether the compiled core is there and has found its BLAS."""
    return UNAVAILABLE is None


def describe() -> dict[str, Any]:
    """What is in use: for ``lapgrad info``."""
    if not available():
        return {"core": False, "isa": None, "isa_supported": [], "plan": {}}
    return {
        "core": True,
        "isa": _core.isa(),
        "isa_supported": [name for name in ISA_VARIANTS if _core.isa_supported(name)],
        "plan": _core.plan(),
    }


#: A batch of matrices as the core takes it: address, batch stride, row stride, column stride (in elements).
Operand = tuple[int, int, int, int]


def _transposed(operand: Operand) -> Operand:
    address, batch_stride, row_stride, col_stride = operand
    return address, batch_stride, col_stride, row_stride


def _strides(tensor: Tensor) -> tuple[int, int, int] | None:
    """Batch, row and column stride, if one stride walks all batch dimensions and BLAS reads the matrices."""
    *batch_strides, row_stride, col_stride = tensor.stride()
    *batch_shape, rows, cols = tensor.shape
    # A dimension of size 1 may carry any stride: give it one that BLAS accepts.
    if cols == 1 and (rows == 1 or row_stride >= 1):
        row_stride, col_stride = max(row_stride, 1), 1
    elif rows == 1 and col_stride > 1:
        row_stride = 1
    elif rows == 1 and col_stride == 1:
        row_stride = max(cols, row_stride)
    if not ((col_stride == 1 and row_stride >= cols) or (row_stride == 1 and col_stride >= rows)):
        return None
    if max(row_stride, col_stride) > LARGEST_DIMENSION:  # BLAS takes strides as 32-bit integers
        return None
    batch_stride, span = 0, 1
    for size, stride in zip(reversed(batch_shape), reversed(batch_strides), strict=True):
        if size == 1:
            continue
        if span == 1:
            batch_stride = stride
        elif stride != batch_stride * span:
            return None
        span *= size
    return batch_stride, row_stride, col_stride


def _readable(tensor: Tensor) -> Tensor:
    """``tensor`` itself, copied only if its strides cannot be handed over."""
    return tensor if tensor.is_contiguous() or _strides(tensor) is not None else tensor.contiguous()


def _operand(tensor: Tensor) -> Operand:
    """What the core takes for a readable or writable tensor."""
    if tensor.is_contiguous():
        shape = tensor.shape
        cols = shape[-1]
        return tensor.data_ptr(), shape[-2] * cols, cols, 1
    strides = _strides(tensor)
    assert strides is not None
    return tensor.data_ptr(), *strides


def _writable(out: Tensor) -> Tensor:
    """``out`` itself if the core can write into it, else a contiguous tensor to be copied back."""
    if out.is_contiguous() or _strides(out) is not None:
        return out
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def _count(tensor: Tensor) -> int:
    return 1 if tensor.dim() == 2 else tensor.shape[:-2].numel()


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    failure: tuple[int, int] | None
    if info is None and A.is_contiguous() and L.is_contiguous():
        # Without the detours below: for a 4 x 4 matrix they cost more than the factorisation.
        n = A.shape[-1]
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        count = 1 if A.dim() == 2 else _count(A)
        failure = _core.potrf(
            A.element_size(), A.data_ptr(), square, row, col, L.data_ptr(), square, row, col, count, n, 0
        )
        return failure
    source, target = _readable(A), _writable(L)
    read, written = _operand(source), _operand(target)
    if not lower:
        read, written = _transposed(read), _transposed(written)
    status = info if info is None or info.is_contiguous() else torch.empty(info.shape, dtype=info.dtype)
    failure = _core.potrf(
        A.element_size(),
        *read,
        *written,
        _count(A),
        A.shape[-1],
        0 if status is None else status.data_ptr(),
    )
    if target is not L:
        L.copy_(target)
    if status is not info and info is not None and status is not None:
        info.copy_(status)
    return failure


def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    if info is None and L.is_contiguous() and gL.is_contiguous():
        n = L.shape[-1]
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        operands = L.data_ptr(), *strides, gL.data_ptr(), *strides, gA.data_ptr(), *strides
        _core.potrf_vjp(L.element_size(), *operands, _count(L), n, 0)
        return
    L, gL = _readable(L), _readable(gL)
    factor, cotangent, gradient = _operand(L), _operand(gL), _operand(gA)
    if not lower:
        factor, cotangent, gradient = _transposed(factor), _transposed(cotangent), _transposed(gradient)
    status = None if info is None else info.contiguous()
    _core.potrf_vjp(
        L.element_size(),
        *factor,
        *cotangent,
        *gradient,
        _count(L),
        L.shape[-1],
        0 if status is None else status.data_ptr(),
    )


def _triangle(
    routine: Any, X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    # A t(L)^-1 = (t(L)^-T A')': a right side is a left side with everything transposed.
    L, source, target = _readable(L), _readable(A), _writable(X)
    triangle, read, written = _operand(L), _operand(source), _operand(target)
    if transpose != rightside:
        triangle, lower = _transposed(triangle), not lower
    if rightside:
        read, written = _transposed(read), _transposed(written)
    n = L.shape[-1]
    m = A.shape[-2] if rightside else A.shape[-1]
    zero: int = routine(L.element_size(), *triangle, *read, *written, _count(L), n, m, lower)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    return _triangle(_core.trsm, X, L, A, lower, transpose, rightside)


def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    _triangle(_core.trmm, B, L, A, lower, transpose, rightside)


def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    A, B = _readable(A), _readable(B)
    left, right, result = _operand(A), _operand(B), _operand(C)
    left = _transposed(left) if transpose_a else left
    right = _transposed(right) if transpose_b else right
    if not lower:  # the upper triangle of A B is the lower one of B' A'
        left, right, result = _transposed(right), _transposed(left), _transposed(result)
    k = A.shape[-2] if transpose_a else A.shape[-1]
    _core.gemmt(A.element_size(), *left, *right, *result, _count(C), C.shape[-1], k, alpha, False)


def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    A = _readable(A)
    left, result = _operand(A), _operand(B)
    left = _transposed(left) if transpose else left
    k = A.shape[-2] if transpose else A.shape[-1]
    _core.gemmt(A.element_size(), *left, *_transposed(left), *result, _count(B), B.shape[-1], k, 1.0, True)


def syrk_vjp(gA: Tensor, A: Tensor, gB: Tensor, transpose: bool) -> None:
    # One product with the symmetric gB + gB' instead of two: a buffer for a third of the time.
    gB = _readable(gB)
    n = gB.shape[-1]
    symmetric = torch.empty_like(gB, memory_format=torch.contiguous_format)
    _core.add_transpose(gB.element_size(), *_operand(gB), *_operand(symmetric), _count(gB), n, 0, n)
    torch.matmul(A, symmetric, out=gA) if transpose else torch.matmul(symmetric, A, out=gA)


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    source, target = _readable(A), _writable(B)
    read, written = _operand(source), _operand(target)
    if not lower:
        read, written = _transposed(read), _transposed(written)
    _core.copyltu(A.element_size(), *read, *written, _count(A), A.shape[-1])
    if target is not B:
        B.copy_(target)
