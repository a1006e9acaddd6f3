"""gesvd: singular value decomposition, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._exceptions import TORCH_LINALG_ERROR
from lapgrad._formulas import gaps as _gaps
from lapgrad._formulas.gesvd import (
    DISCARDING_POLICIES,
    NOT_CONVERGED,
    NOT_FINITE,
    compute_vjp,
    subtract_transpose,
)
from lapgrad._torch.precision import in_full_precision


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """S := singular values of A; U, V := rows of vectors, if wanted. Returns the first failed item, code."""
    finite = A.isfinite().flatten(-2).all(-1)
    if not finite.all():
        return int((~finite).flatten().to(torch.uint8).argmax()), NOT_FINITE
    try:
        _decompose(S, U, V, A)
    except TORCH_LINALG_ERROR:
        return _find_first_failure(S, U, V, A)
    return None


def _decompose(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> None:
    if U is None or V is None:
        S.copy_(torch.linalg.svdvals(A))
        return
    columns, values, rows = torch.linalg.svd(A, full_matrices=False)
    signs = _gaps.find_row_signs(columns.mT)[..., None]
    S.copy_(values)
    torch.mul(columns.mT, signs, out=U)
    torch.mul(rows, signs, out=V)


def _find_first_failure(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """Return the first item that fails alone, as it is and transposed."""
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
                    signs = _gaps.find_row_signs(u)[:, None]
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
    """gA := the gradient. Returns bool (*batch), True for items without a derivative; None: no item."""
    discards = degeneracy in DISCARDING_POLICIES and _has_close_values(S)
    gA.copy_(compute_vjp(U, S, V, gU, gS, gV, degeneracy, tol, discards=discards))
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV = V, U, gV, gU
    return _find_ambiguous_items(U, S, V, gU, gS, gV, tol)


def _has_close_values(S: Tensor) -> bool:
    """Whether some gap, or some singular value, is so small that rounding may have to be discarded."""
    if S.numel() == 0:
        return False
    steps = torch.cat([S[..., :-1] - S[..., 1:], S[..., -1:]], -1)
    return bool((steps < _gaps.compute_close_gap(S[..., :1])).any())


def _find_ambiguous_items(
    U: Tensor, S: Tensor, V: Tensor, gU: Tensor | None, gS: Tensor | None, gV: Tensor | None, tol: float
) -> Tensor | None:
    """bool (*batch), True where, by its cotangents, the loss depends on vectors that A does not determine.

    Among equal singular values the vectors are free up to one rotation of U and V, so that the skew part of
    gU U^T + gV V^T has to vanish, and gS has to be constant. Among zeros U and V rotate independently: each
    skew part has to vanish. The vectors of a wide A that belong to zeros are free in all directions.

    In a loss of U^T diag(S) V the cotangents of vectors of zeros are proportional to the rounding errors in
    these zeros. So they count only if they are large relative to the computed value, and to the largest entry
    of their row.
    """
    gap, scale = _gaps.compute_gaps(S), _gaps.find_largest(S)
    diagonal = torch.eye(S.shape[-1], dtype=torch.bool, device=S.device)
    ties = _gaps.find_ties(gap, scale, tol) & ~diagonal
    null = S[..., None] <= _gaps.compute_threshold(scale, tol)
    wide = U.shape[-1] < V.shape[-1]
    if not ties.any() and not (wide and null.any()):
        return None
    small = torch.finfo(S.dtype).eps ** 0.5
    found = torch.zeros(S.shape[:-1], dtype=torch.bool, device=S.device)
    if gS is not None:
        unequal = _gaps.compute_gaps(gS).abs() > small * gS.abs().amax(-1)[..., None, None]
        found = found | (unequal & ties).flatten(-2).any(-1)
    sizes = [g.abs().amax((-2, -1)) for g in (gU, gV) if g is not None]
    if not sizes:
        return found
    allowed = small * torch.stack(sizes).amax(0)[..., None, None]
    slope = allowed / torch.where(scale > 0, scale, torch.inf)
    if gS is not None:
        slope = torch.maximum(slope, small * gS.abs().amax(-1)[..., None, None])

    def bound_at_zeros(g: Tensor) -> Tensor:
        row = small * g.abs().amax(-1, keepdim=True)
        return torch.minimum(allowed, torch.maximum(S[..., None] * slope, row))

    zeros = null & null.mT
    both = torch.zeros_like(gap)
    for g, W in ((gU, U), (gV, V)):
        if g is not None:
            turning, least = subtract_transpose(g @ W.mT), bound_at_zeros(g)
            both = both + turning
            notable = turning.abs() > torch.maximum(least, least.mT)
            found = found | (notable & ties & zeros).flatten(-2).any(-1)
    found = found | ((both.abs() > allowed) & ties & ~zeros).flatten(-2).any(-1)
    if wide and gV is not None:
        outside = gV - (gV @ V.mT) @ V
        found = found | ((outside.abs() > bound_at_zeros(gV)) & null).flatten(-2).any(-1)
    return found
