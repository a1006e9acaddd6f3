"""The gradient of a singular value decomposition, in tensor operations of any order of differentiation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._formulas import gaps as _gaps

#: Policies that discard quotients of rounding by small gaps.
DISCARDS = ("mask", "raise")


def _product(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return (A.mT if transpose_a else A) @ (B.mT if transpose_b else B)


def pull_back(
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
    """Returns the gradient of A from the decomposition A = U^T diag(S) V and its cotangents.

    G = diag gS + sk(gU U^T) ∘ C - sk(gV V^T) ∘ C^T, with sk(X) = X - X^T and C of ``coefficients``; then
    gA = U^T G V for a square A, and gA = U^T [(G - S^-1 gV V^T) V + S^-1 gV] for a wide one; tall by
    transposition. ``discards``: entries that are only rounding are not divided by small gaps, which costs a
    product more for a wide A.
    """
    if U.shape[-1] > V.shape[-1]:
        return pull_back(V, S, U, gV, gS, gU, degeneracy, tol, product, discards=discards).mT
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


def find_ambiguous(
    U: Tensor, S: Tensor, V: Tensor, gU: Tensor | None, gS: Tensor | None, gV: Tensor | None, tol: float
) -> Tensor | None:
    """Returns a bool per item: whether the loss, judged by its cotangents, is no function of A near this A.

    None if there is no such item.

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
