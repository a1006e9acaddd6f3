"""The raw kernels in plain PyTorch: for devices without kernels of their own, and without the compiled core.

Each function writes its result into the tensors that come first, knows nothing of autograd, and trusts its
caller with the shapes: all operands have the same leading (batch) dimensions. Where an operator may overwrite
its operand, the output *is* that operand, so it is written last.

These kernels are correct everywhere; they make temporaries that the compiled ones do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _in_full_precision(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Autocast would turn the float32 products inside a kernel into bfloat16 ones: switch it off."""

    @functools.wraps(kernel)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        output = args[0]
        assert isinstance(output, Tensor)
        device = output.device.type
        if not torch.is_autocast_enabled(device):
            return kernel(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return kernel(*args, **kwargs)

    return wrapped


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    """L := the factor of A's named triangle, the identity where it fails. Returns the first (item, code)."""
    factor, code = torch.linalg.cholesky_ex(A, upper=not lower)
    if info is None:
        # An infinity on the diagonal passes LAPACK as success, but leaves an infinite pivot.
        if code.any() or not factor.diagonal(dim1=-2, dim2=-1).isfinite().all():
            return _potrf_failed(L, A, factor, code, lower)
        L.copy_(factor)
        return None
    code = _with_non_finite_rows(code, A, lower)
    info.copy_(code)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    L.copy_(torch.where((code == 0)[..., None, None], factor, identity))
    return None


def _potrf_failed(L: Tensor, A: Tensor, factor: Tensor, code: Tensor, lower: bool) -> tuple[int, int]:
    code = _with_non_finite_rows(code, A, lower)
    failed = code != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    L.copy_(torch.where(failed[..., None, None], identity, factor))
    item = int(failed.flatten().to(torch.uint8).argmax())
    return item, int(code.flatten()[item])


def _with_non_finite_rows(code: Tensor, A: Tensor, lower: bool) -> Tensor:
    """LAPACK's status, with -k where row k of the triangle is the first to hold a NaN or an infinity.

    Such a row makes pivot k NaN or infinite, unless an earlier minor already was not positive. No value is
    read back to the host.
    """
    n = A.shape[-1]
    if n == 0:
        return code
    triangle = A.tril() if lower else A.triu().mT
    row_is_bad = ~triangle.isfinite().all(-1)
    number = torch.arange(1, n + 1, device=A.device, dtype=code.dtype)
    never = n + 1
    first_bad = torch.where(row_is_bad, number, never).amin(-1).to(code.dtype)
    met = (first_bad != never) & ((code == 0) | (code >= first_bad))
    return torch.where(met, -first_bad, code)


@_in_full_precision
def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    """gA := 1/2 L^-T copyltu(L^T tril(gL)) L^-1, and 0 where info says that the factorisation failed."""
    if not lower:
        L, gL = L.mT, gL.mT
    middle = L.tril().mT @ gL.tril()
    middle = middle.tril() + middle.tril(-1).mT
    middle = torch.linalg.solve_triangular(L.mT, middle, upper=True)
    middle = torch.linalg.solve_triangular(L, middle, upper=False, left=False)
    torch.add(middle, middle.mT, out=gA)
    gA.mul_(0.25)
    if info is not None:
        gA.masked_fill_((info != 0)[..., None, None], 0.0)


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    """X := t(L)^-1 A, or A t(L)^-1. Returns (item, index) of the first zero pivot; X is then untouched."""
    zero = L.diagonal(dim1=-2, dim2=-1) == 0
    if zero.any():
        position = int(zero.flatten().to(torch.uint8).argmax())
        return divmod(position, L.shape[-1])
    X.copy_(
        torch.linalg.solve_triangular(
            L.mT if transpose else L, A, upper=lower == transpose, left=not rightside
        )
    )
    return None


@_in_full_precision
def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    """B := t(L) A, or A t(L)."""
    triangle = L.tril() if lower else L.triu()
    if transpose:
        triangle = triangle.mT
    B.copy_(A @ triangle if rightside else triangle @ A)


@_in_full_precision
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    """C := alpha tri(ta(A) tb(B)), the other triangle 0."""
    torch.matmul(A.mT if transpose_a else A, B.mT if transpose_b else B, out=C)
    if lower:
        C.tril_()
    else:
        C.triu_()
    if alpha != 1.0:
        C.mul_(alpha)


@_in_full_precision
def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    """B := A A^T, or A^T A, symmetric to the last bit."""
    if transpose:
        A = A.mT
    product = A @ A.mT
    torch.add(product.tril(), product.tril(-1).mT, out=B)


@_in_full_precision
def syrk_vjp(gA: Tensor, A: Tensor, gB: Tensor, transpose: bool) -> None:
    """gA := (gB + gB^T) A, or A (gB + gB^T)."""
    both = gB + gB.mT
    if transpose:
        torch.matmul(A, both, out=gA)
    else:
        torch.matmul(both, A, out=gA)


@_in_full_precision
def gemm(
    C: Tensor, A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> None:
    """C := alpha ta(A) tb(B) + beta C. With beta = 0 the old C is not read."""
    A, B = A.mT if transpose_a else A, B.mT if transpose_b else B
    if C.dim() == 2:
        C.addmm_(A, B, beta=beta, alpha=alpha)
    elif C.dim() == 3:
        C.baddbmm_(A, B, beta=beta, alpha=alpha)
    elif beta == 0.0:
        torch.matmul(A, B, out=C)
        if alpha != 1.0:
            C.mul_(alpha)
    else:
        C.mul_(beta).add_(A @ B, alpha=alpha)


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    """B := the symmetric matrix with A's named triangle."""
    if not lower:
        A = A.mT
    B.copy_(A.tril() + A.tril(-1).mT)


def sumlogdiag(s: Tensor, A: Tensor) -> None:
    """s := sum_i log |a_ii|."""
    s.copy_(A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1))


def sumlogdiag_vjp(gA: Tensor, A: Tensor, gs: Tensor) -> None:
    """gA := diag(gs / a_ii)."""
    makediag(gA, gs[..., None] / A.diagonal(dim1=-2, dim2=-1), 0)


def extractdiag(d: Tensor, A: Tensor, offset: int) -> None:
    """d := the diagonal of A that lies ``offset`` above the main one."""
    d.copy_(A.diagonal(offset, -2, -1))


def makediag(A: Tensor, d: Tensor, offset: int) -> None:
    """A := zero, with d on the diagonal that lies ``offset`` above the main one."""
    A.zero_().diagonal(offset, -2, -1).copy_(d)


def extracttrian(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    """v := the entries of a triangle of A: row by row for a lower one, column by column for an upper one."""
    for packed, row in _packed_rows(v, A, offset, lower):
        packed.copy_(row)


def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    """A := zero, with v in a triangle: the inverse of ``extracttrian``."""
    A.zero_()
    for packed, row in _packed_rows(v, A, offset, lower):
        row.copy_(packed)


def _packed_rows(v: Tensor, A: Tensor, offset: int, lower: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Each piece of the packed v, and the row it stands for: a table of indices would be as large as A.

    The sign of the offset, if any, chooses the triangle. Columns of an upper triangle are rows of A^T.
    """
    if offset > 0 or (offset == 0 and not lower):
        A = A.mT
    start = 0
    for length in range(1, A.shape[-1] - abs(offset) + 1):
        yield v[..., start : start + length], A[..., length - 1 + abs(offset), :length]
        start += length
