"""syevd: eigenvalues and eigenvectors of a symmetric matrix, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._exceptions import TORCH_LINALG_ERROR
from lapgrad._formulas.gaps import fix_signs
from lapgrad._torch.precision import in_full_precision


@in_full_precision
def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """Ascending eigenvalues and, if U is given, eigenvectors as rows, from one triangle.

    Returns None, or (item, code): code -1 for NaN or infinity, 1 for an iteration that did not converge.
    """
    read = A.tril() if lower else A.triu()
    if failure := _find_first(~read.isfinite().flatten(-2).all(-1)):
        return failure[0], -1
    try:
        if U is None:
            eigenvalues.copy_(torch.linalg.eigvalsh(read, UPLO="L" if lower else "U"))
        else:
            values, columns = torch.linalg.eigh(read, UPLO="L" if lower else "U")
            eigenvalues.copy_(values)
            U.copy_(columns.mT)
            fix_signs(U)
    except TORCH_LINALG_ERROR:
        return _find_failed_item(read, lower), 1
    if failure := _find_first(~eigenvalues.isfinite().all(-1)):
        return failure[0], -1
    return None


def _find_failed_item(A: Tensor, lower: bool) -> int:
    """Return the first item on which torch's iteration fails alone; 0 if it fails only on the whole batch."""
    for flat, item in enumerate(A.reshape(-1, *A.shape[-2:])):
        try:
            torch.linalg.eigh(item, UPLO="L" if lower else "U")
        except TORCH_LINALG_ERROR:
            return flat
    return 0


def _find_first(marked: Tensor) -> tuple[int, int] | None:
    """(item, 1) of the first item that is marked. One number is read from the device."""
    if not bool(marked.any()):
        return None
    return int(marked.flatten().int().argmax()), 1
