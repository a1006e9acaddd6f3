"""syevd: eigenvalues and eigenvectors of a symmetric matrix, in plain PyTorch."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from lapgrad._errors import TORCH_LINALG_ERROR
from lapgrad._formulas.signs import fix_signs
from lapgrad._torch.precision import in_full_precision


@in_full_precision
def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """Ascending eigenvalues and, if U is given, eigenvectors as rows, from one triangle.

    Returns None, or (item, code): code -1 for NaN or infinity, 1 for an iteration that did not converge.
    """
    read = A.tril() if lower else A.triu()
    if failure := _first(~read.isfinite().flatten(-2).all(-1)):
        return failure[0], -1
    try:
        if U is None:
            eigenvalues.copy_(torch.linalg.eigvalsh(read, UPLO="L" if lower else "U"))
        else:
            values, columns = torch.linalg.eigh(read, UPLO="L" if lower else "U")
            eigenvalues.copy_(values)
            U.copy_(columns.mT)
            fix_signs(U)
    except TORCH_LINALG_ERROR as error:
        named = re.search(r"Batch element (\d+)", str(error))
        return int(named.group(1)) if named else 0, 1
    if failure := _first(~eigenvalues.isfinite().all(-1)):
        return failure[0], -1
    return None


def _first(marked: Tensor) -> tuple[int, int] | None:
    """(item, 1) of the first item that is marked. One number is read from the device."""
    if not bool(marked.any()):
        return None
    return int(marked.flatten().int().argmax()), 1
