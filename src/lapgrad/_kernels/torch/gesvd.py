"""gesvd: singular value decomposition, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._errors import TORCH_LINALG_ERROR
from lapgrad._formulas import gaps as _gaps
from lapgrad._formulas.gesvd import DISCARDS, find_ambiguous, pull_back
from lapgrad._torch.precision import in_full_precision

NOT_FINITE, NOT_CONVERGED = 1, 2


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
    gA.copy_(pull_back(U, S, V, gU, gS, gV, degeneracy, tol, discards=discards))
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV = V, U, gV, gU
    return find_ambiguous(U, S, V, gU, gS, gV, tol)


def _has_close_values(S: Tensor) -> bool:
    """Whether some gap, or some singular value, is so small that rounding may have to be discarded."""
    if S.numel() == 0:
        return False
    steps = torch.cat([S[..., :-1] - S[..., 1:], S[..., -1:]], -1)
    return bool((steps < _gaps.close_gap(S[..., :1])).any())
