"""The linear algebra of a sparse layer, in lapgrad's operators, or in those of torch for a comparison.

Everything else of a model is the same code in both cases, so that what differs between two runs is the
factorisation, the triangular solves and products, and their gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad.ops.potrf import potrf_ex
from lapgrad.ops.potri import potri
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trmm import trmm
from lapgrad.ops.trsm import trsm

_of_torch = False


@contextlib.contextmanager
def torch_linalg() -> Iterator[None]:
    """Models run on ``torch.linalg``: forward and backward passes are torch's own. For all threads.

    Example:
        >>> from lapgrad.models._deep.algebra import torch_linalg
        >>> with torch_linalg():
        ...     L, info = factorised(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        >>> L.tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    global _of_torch
    before, _of_torch = _of_torch, True
    try:
        yield
    finally:
        _of_torch = before


def factorised(A: Tensor) -> tuple[Tensor, Tensor]:
    """L with A = L Lᵀ (n, n), and a status: nothing waits for a device to say whether it failed."""
    if _of_torch:
        L, info = torch.linalg.cholesky_ex(A)
        return L, info
    return potrf_ex(A)


def solved(L: Tensor, A: Tensor, *, transpose: bool = False) -> Tensor:
    """L⁻¹ A (n, m), or L⁻ᵀ A."""
    if _of_torch:
        return torch.linalg.solve_triangular(L.mT if transpose else L, A, upper=transpose)
    return trsm(L, A, transpose=transpose)


def multiplied_transposed(L: Tensor, A: Tensor) -> Tensor:
    """Lᵀ A (*batch, n, m) for lower triangles L (*batch, n, n)."""
    return L.mT @ A if _of_torch else trmm(L, A, transpose=True)


def inverted(L: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ (n, n)."""
    return torch.cholesky_inverse(L) if _of_torch else potri(L)


def gram(A: Tensor) -> Tensor:
    """A Aᵀ (n, n)."""
    return A @ A.mT if _of_torch else syrk(A)


def sum_log_diagonal(L: Tensor) -> Tensor:
    """Σ log l_ii, (*batch)."""
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1) if _of_torch else sumlogdiag(L)
