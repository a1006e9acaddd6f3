"""gesvd: singular value decomposition, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._errors import TORCH_LINALG_ERROR
from lapgrad._formulas import gaps as _gaps
from lapgrad._torch.precision import in_full_precision

NOT_FINITE, NOT_CONVERGED = 1, 2

#: Policies that discard quotients of rounding by small gaps.
DISCARDS = ("mask", "raise")


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """S := singular values of A; U, V := rows of vectors, if wanted. Returns the first failed item, code."""
    finite = A.isfinite().flatten(-2).all(-1)
    if not finite.all():
        return int((~finite).flatten().to(torch.uint8).argmax()), NOT_FINITE
    try:
        _decompose(S, U, V, A)
    except TORCH_LINALG_ERROR:
        return _first_failure(S, U, V, A)
    return None


def _decompose(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> None:
    if U is None or V is None:
        S.copy_(torch.linalg.svdvals(A))
        return
    columns, values, rows = torch.linalg.svd(A, full_matrices=False)
    signs = _gaps.row_signs(columns.mT)[..., None]
    S.copy_(values)
    torch.mul(columns.mT, signs, out=U)
    torch.mul(rows, signs, out=V)


def _first_failure(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """One item at a time: which one fails, also when its transpose is tried."""
    batch = A.shape[:-2]
    for flat in range(batch.numel()):
        item = torch.unravel_index(torch.tensor(flat), batch) if batch else ()
        s, matrix = S[item], A[item]
        u, v = (None if U is None else U[item]), (None if V is None else V[item])
        try:
            try:
                _decompose(s, u, v, matrix)
            except TORCH_LINALG_ERROR:
                _decompose(s, v, u, matrix.mT)
                if u is not None and v is not None:
                    signs = _gaps.row_signs(u)[:, None]
                    u.mul_(signs)
                    v.mul_(signs)
        except TORCH_LINALG_ERROR:
            return flat, NOT_CONVERGED
    return None


@in_full_precision
def gesvd_vjp(
    gA: Tensor,
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Tensor | None:
    """gA := the gradient. Returns where the loss tells apart what A does not determine, None if nowhere."""
    discards = degeneracy in DISCARDS and _has_close_values(S)
    gA.copy_(pulled_back(U, S, V, gU, gS, gV, degeneracy, tol, discards=discards))
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV = V, U, gV, gU
    return _ambiguous(U, S, V, gU, gS, gV, tol)


def _has_close_values(S: Tensor) -> bool:
    """Whether some gap, or some singular value, is so small that rounding may have to be discarded."""
    if S.numel() == 0:
        return False
    steps = torch.cat([S[..., :-1] - S[..., 1:], S[..., -1:]], -1)
    return bool((steps < _gaps.close_gap(S[..., :1])).any())


def _product(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return (A.mT if transpose_a else A) @ (B.mT if transpose_b else B)


def pulled_back(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
    product: Callable[[Tensor, Tensor, bool, bool], Tensor] = _product,
    *,
    discards: bool,
) -> Tensor:
    """The gradient of A from the decomposition A = U^T diag(S) V and its cotangents.

    G = diag gS + sk(gU U^T) ∘ C - sk(gV V^T) ∘ C^T, with sk(X) = X - X^T and C of ``coefficients``; then
    gA = U^T G V for a square A, and gA = U^T [(G - S^-1 gV V^T) V + S^-1 gV] for a wide one; tall by
    transposition. ``discards``: entries that are only rounding are not divided by small gaps, which costs a
    product more for a wide A.
    """
    if U.shape[-1] > V.shape[-1]:
        return pulled_back(V, S, U, gV, gS, gU, degeneracy, tol, product, discards=discards).mT
    if gU is None and gV is None:
        assert gS is not None
        return product(U, gS[..., None] * V, True, False)
    C = coefficients(S, degeneracy, tol)
    G = torch.zeros_like(C)
    left = None if gU is None else _skew(product(gU, U, False, True))
    moved = None if gV is None else product(gV, V, False, True)
    right = None if moved is None else _skew(moved)
    if left is not None:
        G = G + left * C
    if right is not None:
        G = G - right * C.mT
    if discards:
        G = _without_rounding(G, left, right, S, gU, gS, gV, tol)
    if gS is not None:
        G = G + torch.diag_embed(gS)
    if gV is None or moved is None or U.shape[-1] == V.shape[-1]:
        return product(U, product(G, V, False, False), True, False)
    inverse = inverse_values(S, degeneracy, tol)
    if discards:
        outside = _without_rounding_outside(gV - product(moved, V, False, False), S, gS, gV)
        inner = product(G, V, False, False) + inverse * outside
    else:
        inner = product(G - inverse * moved, V, False, False) + inverse * gV
    return product(U, inner, True, False)


def _without_rounding(
    G: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    S: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    tol: float,
) -> Tensor:
    """G = left ∘ C - right ∘ C^T, without quotients of rounding by small gaps.

    G_ij = 1/2 [(left + right)_ij / (S_i - S_j) - (left - right)_ij / (S_i + S_j)]. Where one of the two
    numerators is only rounding, the other quotient is what G is: the products with C would not cancel.
    """
    noise = sum(_gaps.row_noise(g) for g in (gU, gV) if g is not None)
    assert isinstance(noise, Tensor)
    pairs = noise[..., :, None] + noise[..., None, :]
    gap, total, scale = _gaps.gaps(S), S[..., :, None] + S[..., None, :], _gaps.largest(S)
    close = _gaps.close_gap(scale)
    together = _sum(left, right)
    apart = _sum(left, None if right is None else -right)
    step = None if gS is None else _gaps.gaps(gS)
    opposite = None if gS is None else gS[..., :, None] + gS[..., None, :]
    unturned = _gaps.only_rounding(together, pairs, gap, close, step)
    unparted = _gaps.only_rounding(apart, pairs, total, close, opposite)
    F = _gaps.reciprocal_gap(gap, scale, "mask", tol, descending=True)
    null = S.detach()[..., None] <= _gaps.threshold(scale, tol)
    zeros = null & null.mT
    H = (1.0 / total.masked_fill(zeros, 1.0)).masked_fill(zeros, 0.0)
    split = _gaps.discard(together, unturned) * F - _gaps.discard(apart, unparted) * H
    return torch.where(unturned | unparted, 0.5 * split, G)


def _without_rounding_outside(outside: Tensor, S: Tensor, gS: Tensor | None, gV: Tensor) -> Tensor:
    """``outside``, the part of gV out of the space of V, with zeros for rows where it is only rounding."""
    noise, close = _gaps.row_noise(gV), _gaps.close_gap(_gaps.largest(S)).squeeze(-1)
    size = outside.detach().abs().amax(-1)
    return _gaps.discard(outside, _gaps.only_rounding(size, noise, S, close, gS)[..., None])


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor:
    if first is None or second is None:
        given = second if first is None else first
        assert given is not None
        return given
    return first + second


def coefficients(S: Tensor, degeneracy: str, tol: float) -> Tensor:
    """C with dU = sk(C ∘ M) U and dV = -sk(C^T ∘ M) V, where M = U dA V^T.

    C_ij = S_j / (S_i^2 - S_j^2) = 1/2 [1 / (S_i - S_j) - 1 / (S_i + S_j)]. Only the first term depends on
    what a tie leaves open: F, its policy's value, takes its place, and the second stays. With T = 1 - F (S_i
    - S_j), which is 0 where there is no tie, C_ij = [F S_j - T / 2] / (S_i + S_j), free of cancellation and
    overflow. A pair of zeros leaves both terms open: 0.
    """
    gap, scale = _gaps.gaps(S), _gaps.largest(S)
    F = _gaps.reciprocal_gap(gap, scale, degeneracy, tol, descending=True)
    total = S[..., :, None] + S[..., None, :]
    if degeneracy == "nan":
        diagonal = torch.eye(S.shape[-1], dtype=torch.bool, device=S.device)
        return (F * S[..., None, :] / total).masked_fill(diagonal, 0.0)
    masked = degeneracy in ("mask", "raise")
    T = _gaps.tied(gap, scale, tol).to(S.dtype) if masked else 1.0 - F * gap
    null = S.detach()[..., None] <= _gaps.threshold(scale, tol)
    zeros = null & null.mT
    return ((F * S[..., None, :] - 0.5 * T) / total.masked_fill(zeros, 1.0)).masked_fill(zeros, 0.0)


def inverse_values(S: Tensor, degeneracy: str, tol: float) -> Tensor:
    """1 / S as a column, by the policy where S is zero."""
    return _gaps.reciprocal(S[..., None], _gaps.largest(S), degeneracy, tol)


def _skew(X: Tensor) -> Tensor:
    return X - X.mT


def _ambiguous(
    U: Tensor, S: Tensor, V: Tensor, gU: Tensor | None, gS: Tensor | None, gV: Tensor | None, tol: float
) -> Tensor | None:
    """bool (*batch): the loss is not a function of A near this A, as far as its cotangents tell.

    Among equal singular values the vectors are free up to one rotation of U and V, so that the skew part of
    gU U^T + gV V^T has to vanish, and gS has to be constant. Among zeros U and V rotate independently: each
    skew part has to vanish. The vectors of a wide A that belong to zeros are free in all directions.

    A loss of U^T diag(S) V meets the vectors of zeros with cotangents as small as what is left of S there:
    how large these have to be to count is relative to that, and to their own row.
    """
    gap, scale = _gaps.gaps(S), _gaps.largest(S)
    diagonal = torch.eye(S.shape[-1], dtype=torch.bool, device=S.device)
    ties = _gaps.tied(gap, scale, tol) & ~diagonal
    null = S[..., None] <= _gaps.threshold(scale, tol)
    wide = U.shape[-1] < V.shape[-1]
    if not ties.any() and not (wide and null.any()):
        return None
    small = torch.finfo(S.dtype).eps ** 0.5
    found = torch.zeros(S.shape[:-1], dtype=torch.bool, device=S.device)
    if gS is not None:
        unequal = _gaps.gaps(gS).abs() > small * gS.abs().amax(-1)[..., None, None]
        found = found | (unequal & ties).flatten(-2).any(-1)
    sizes = [g.abs().amax((-2, -1)) for g in (gU, gV) if g is not None]
    if not sizes:
        return found
    allowed = small * torch.stack(sizes).amax(0)[..., None, None]
    slope = allowed / torch.where(scale > 0, scale, torch.inf)
    if gS is not None:
        slope = torch.maximum(slope, small * gS.abs().amax(-1)[..., None, None])

    def of_zeros(g: Tensor) -> Tensor:
        row = small * g.abs().amax(-1, keepdim=True)
        return torch.minimum(allowed, torch.maximum(S[..., None] * slope, row))

    zeros = null & null.mT
    both = torch.zeros_like(gap)
    for g, W in ((gU, U), (gV, V)):
        if g is not None:
            turning, least = _skew(g @ W.mT), of_zeros(g)
            both = both + turning
            notable = turning.abs() > torch.maximum(least, least.mT)
            found = found | (notable & ties & zeros).flatten(-2).any(-1)
    found = found | ((both.abs() > allowed) & ties & ~zeros).flatten(-2).any(-1)
    if wide and gV is not None:
        outside = gV - (gV @ V.mT) @ V
        found = found | ((outside.abs() > of_zeros(gV)) & null).flatten(-2).any(-1)
    return found
