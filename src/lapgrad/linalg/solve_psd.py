"""solve_psd: solve with a positive definite matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like
from lapgrad.linalg.cho_solve import operator as _cho_solve
from lapgrad.ops import _columns, _syr2k
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import potrf as _potrf


def solve_psd(A: Tensor, B: Tensor, *, lower: bool = True) -> Tensor:
    """Solve with a symmetric positive definite matrix: X = A^-1 B.

    Leading dimensions broadcast; one A for a batch of B is one factorisation and one solve with more
    right-hand sides.

    Args:
        A: (*batch, n, n), symmetric positive definite. Only the named triangle is read.
        B: (*batch, n, m), or a vector (n).
        lower: Read the lower triangle of A, else the upper one.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast); (*batch, n) for a vector.

    Raises:
        NotPositiveDefiniteError: Names the first item of A that is not positive definite, and its leading
            minor.
        NonFiniteError: A NaN or an infinity was met in A.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gB = A^-1 gX, gA = -sym(gB X^T), symmetric. Forward mode: dX = A^-1 (dB - sym(dA) X). Saves the
        Cholesky factor of A, and X when A needs a gradient.

    Memory:
        forward 2, backward 1
        In units of a square result (the other buffer is the factor), and of the gradients of A and B
        together. Besides: two copies of B when A is shared by a batch of B.

    Cost:
        forward n^3/3 + 2 n^2 m, backward 4 n^2 m flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[4.0, 2.0], [2.0, 2.0]])
        >>> lapgrad.linalg.solve_psd(A, torch.tensor([[2.0], [2.0]]))
        tensor([[0.],
                [1.]])
    """
    if isinstance(B, Tensor) and B.dim() == 1:
        return solve_psd(A, _columns.make_column("linalg.solve_psd", "A", A, "B", B), lower=lower).squeeze(-1)
    A, B, batch = _columns.check_operands("linalg.solve_psd", "A", A, "B", B)
    return _columns.solve_side_by_side(lambda A, B: operator.call(A, B, lower)[0], A, B, batch)


def _solve(A: Tensor, B: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    X, L = allocate_like(B), allocate_like(A)
    failure = lookup("potrf", A)(L, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("linalg.solve_psd", A.shape[:-2], failure)
    _solve_regular(X, L, B, lower)
    return X, L


def _solve_regular(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> None:
    """X := (L L^T)^-1 B for a factor without a zero on its diagonal, which need not be searched for one."""
    if has_kernel("cho_solve_regular", B):
        lookup("cho_solve_regular", B)(X, L, B, lower)
    else:
        lookup("cho_solve", B)(X, L, B, lower)


def _compute_vjp(L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    gA, gB = allocate_like(L), allocate_like(gX)
    if has_kernel("solve_psd_vjp", L):
        lookup("solve_psd_vjp", L)(gA, gB, L, X, gX, lower)
        return gA, gB
    _solve_regular(gB, L, gX, lower)
    lookup("gemmt_sum", L)(gA, gB, X, X, gB, lower=True, symmetric=True, alpha=-0.5)
    return gA, gB


def _compute_vjp_composite(L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    """gB = A^-1 gX, gA = -sym(gB X^T)."""
    gB = _cho_solve.call(L, gX, lower)
    return _syr2k.operator.call(gB, X, -0.5), gB


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor | None, gL: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """As ``_compute_vjp_composite``.

    The factor is no result that users see: its cotangent comes from derivatives of this function.
    """
    (X, L), (lower,) = saved, flags
    gA = gB = None
    if gX is not None:
        if needs[0]:
            gA, gB = operator_vjp.call(L, X, gX, lower)
        else:
            gB = _cho_solve.call(L, gX, lower)
    if gL is not None and needs[0]:
        through_factor = _potrf.operator_vjp.call(L, gL, None, lower)
        gA = through_factor if gA is None else gA + through_factor
    return gA, gB if needs[1] else None


def _jvp(
    saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor | None, dB: Tensor | None
) -> tuple[Tensor, Tensor]:
    """dX = A^-1 (dB - sym(dA) X), and dL as in potrf."""
    (X, L), (lower,) = saved, flags
    if dA is None:
        return _cho_solve.call(L, dB, lower), torch.zeros_like(L)
    moved = _gemm2.multiply(0.5 * (dA + dA.mT), X)
    dX = _cho_solve.call(L, -moved if dB is None else dB - moved, lower)
    return dX, _potrf.compute_jvp(L, dA, lower)


_X, _L = 2, 3

operator_vjp = define_fused(
    "solve_psd_vjp",
    "(Tensor L, Tensor X, Tensor gX, bool lower) -> (Tensor, Tensor)",
    kernel=_compute_vjp,
    fake=lambda L, X, gX, lower: (L.new_empty(L.shape), gX.new_empty(gX.shape)),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("solve_psd_vjp"),
)

operator = define(
    "solve_psd",
    "(Tensor A, Tensor B, bool lower) -> (Tensor, Tensor)",
    kernel=_solve,
    fake=lambda A, B, lower: (B.new_empty(B.shape), A.new_empty(A.shape)),
    formulas=Formulas(saves=((_X, _L), (_L,)), vjp=_vjp, jvp=_jvp),
    vmap=_columns.map_batch,
)
