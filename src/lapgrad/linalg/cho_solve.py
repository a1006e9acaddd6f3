"""cho_solve: solve with a positive definite matrix whose Cholesky factor is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like
from lapgrad.ops import _columns
from lapgrad.ops import gemmt as _gemmt
from lapgrad.ops import trmm as _trmm
from lapgrad.ops import trsm as _trsm

_take_shortcut = make_shortcut("cho_solve")


def cho_solve(L: Tensor, B: Tensor, *, lower: bool = True) -> Tensor:
    """Solve from the Cholesky factor: X = (L L^T)^-1 B, or X = (R^T R)^-1 B with ``lower=False``.

    Leading dimensions broadcast; one L for a batch of B is one solve with more right-hand sides.

    Args:
        L: (*batch, n, n), triangular: what ``potrf`` returns. Only the named triangle is read.
        B: (*batch, n, m), or a vector (n).
        lower: L is a lower factor, else an upper one.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast); (*batch, n) for a vector.

    Raises:
        SingularMatrixError: Names the first item with an exact zero on the diagonal of L.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gB = (L L^T)^-1 gX, and gL = -tril(gB W^T + X Z^T) with W = L^T X and Z = L^-1 gX, which is half way
        to gB. Forward mode: dX = (L L^T)^-1 (dB - (tril(dL) L^T + L tril(dL)^T) X). Saves L, and X when L
        needs a gradient.

    Memory:
        forward 1, backward 2
        In units of the result, and of the gradients of L and B together. Besides: two copies of B when L is
        shared by a batch of B.

    Cost:
        forward 2 n^2 m, backward 5 n^2 m flops (2 n^2 m without the gradient of L).

    Example:
        >>> import torch, lapgrad
        >>> L = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
        >>> lapgrad.linalg.cho_solve(L, torch.tensor([[2.0], [2.0]]))
        tensor([[0.],
                [1.]])
    """
    if not is_compiling():
        X: Tensor | None = _take_shortcut(L, B, lower)
        if X is not None:
            return X
    if isinstance(B, Tensor) and B.dim() == 1:
        return cho_solve(L, _columns.make_column("linalg.cho_solve", "L", L, "B", B), lower=lower).squeeze(-1)
    L, B, batch = _columns.check_operands("linalg.cho_solve", "L", L, "B", B)
    if L.dim() == B.dim() == 2:
        return operator.call(L, B, lower)
    return _columns.solve_side_by_side(lambda L, B: operator.call(L, B, lower), L, B, batch)


def _solve(L: Tensor, B: Tensor, lower: bool) -> Tensor:
    X = allocate_like(B)
    failure = lookup("cho_solve", B)(X, L, B, lower)
    if failure is not None:
        item, index = failure
        raise _errors.singular("linalg.cho_solve", _errors.batch_index(item, L.shape[:-2]), index)
    return X


def _compute_vjp(L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    gL, gB = allocate_like(L), allocate_like(gX)
    if has_kernel("cho_solve_vjp", L):
        lookup("cho_solve_vjp", L)(gL, gB, L, X, gX, lower)
        return gL, gB
    Z, W = allocate_like(gX), allocate_like(X)
    trsm = lookup("trsm", L)
    trsm(Z, L, gX, lower, not lower, False)
    trsm(gB, L, Z, lower, lower, False)
    lookup("trmm", L)(W, L, X, lower, lower, False)
    factors = (gB, W, X, Z) if lower else (W, gB, Z, X)
    lookup("gemmt_sum", L)(gL, *factors, lower, False, -1.0)
    return gL, gB


def _compute_vjp_composite(L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    """gL = -tril(gB W^T + X Z^T), and gR = gL^T for the upper factor R = L^T."""
    Z = _trsm.operator.call(L, gX, lower, not lower, False)
    gB = _trsm.operator.call(L, Z, lower, lower, False)
    W = _trmm.operator.call(L, X, lower, lower, False)
    pairs = ((gB, W), (X, Z)) if lower else ((W, gB), (Z, X))
    halves = [_gemmt.multiply(*pair, lower=lower, transpose_b=True, alpha=-1.0) for pair in pairs]
    return halves[0] + halves[1], gB


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    (L, X), (lower,) = saved, flags
    if not needs[0]:
        return None, operator.call(L, gX, lower)
    gL, gB = operator_vjp.call(L, X, gX, lower)
    return gL, gB if needs[1] else None


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dL: Tensor | None, dB: Tensor | None) -> Tensor:
    """L L^T X = B gives dX = (L L^T)^-1 (dB - (dL L^T + L dL^T) X), dL triangular."""
    (L, X), (lower,) = saved, flags
    if dL is None:
        return operator.call(L, dB, lower)
    inner = _trmm.operator.call(L, X, lower, lower, False)
    outer = _trmm.operator.call(dL, X, lower, lower, False)
    moved = _trmm.operator.call(dL, inner, lower, not lower, False)
    moved = moved + _trmm.operator.call(L, outer, lower, not lower, False)
    return operator.call(L, -moved if dB is None else dB - moved, lower)


_L, _B, _X = 0, 1, 2

operator_vjp = define_fused(
    "cho_solve_vjp",
    "(Tensor L, Tensor X, Tensor gX, bool lower) -> (Tensor, Tensor)",
    kernel=_compute_vjp,
    fake=lambda L, X, gX, lower: (L.new_empty(L.shape), gX.new_empty(gX.shape)),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("cho_solve_vjp"),
)

operator = define(
    "cho_solve",
    "(Tensor L, Tensor B, bool lower) -> Tensor",
    kernel=_solve,
    fake=lambda L, B, lower: B.new_empty(B.shape),
    formulas=Formulas(saves=((_L, _X), (_L,)), vjp=_vjp, jvp=_jvp),
    vmap=_columns.map_batch,
    shortcut=_take_shortcut,
)
