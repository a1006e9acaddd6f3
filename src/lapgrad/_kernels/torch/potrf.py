"""potrf: Cholesky factorisation, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision
from lapgrad._torch.synchronisation import may_read


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    """L := the factor of A's named triangle, the identity where it fails. Returns the first (item, code)."""
    # On CUDA torch's batched routines may read the other triangle, where a NaN would spoil the result.
    named = A if A.is_cpu else A.tril() if lower else A.triu()
    factor, code = torch.linalg.cholesky_ex(named, upper=not lower)
    if info is None:
        # An infinity on the diagonal passes LAPACK as success, but leaves an infinite pivot.
        if may_read(A) and (code.any() or not factor.diagonal(dim1=-2, dim2=-1).isfinite().all()):
            return _report_failure(L, A, factor, code, lower)
        L.copy_(factor)
        return None
    code = _mark_non_finite_rows(code, A, lower)
    info.copy_(code)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    L.copy_(torch.where((code == 0)[..., None, None], factor, identity))
    return None


def _report_failure(L: Tensor, A: Tensor, factor: Tensor, code: Tensor, lower: bool) -> tuple[int, int]:
    code = _mark_non_finite_rows(code, A, lower)
    failed = code != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    L.copy_(torch.where(failed[..., None, None], identity, factor))
    item = int(failed.flatten().to(torch.uint8).argmax())
    return item, int(code.flatten()[item])


def _mark_non_finite_rows(code: Tensor, A: Tensor, lower: bool) -> Tensor:
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


@in_full_precision
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
