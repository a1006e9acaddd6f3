"""Solves, determinants, least squares, principal components; and ``torch.linalg`` under torch's names.

Two kinds of functions: lapgrad's own, one file each (``cho_solve``, ``lstsq``, ``pca``, ...), and those of
``torch.linalg`` under their names, with torch's signatures, conventions and errors and with lapgrad's kernels
and gradients (``cholesky``, ``eigh``, ``svd``, ``qr``, ``inv``, ``solve``, ...). Names of ``torch.linalg``
that are not here are torch's: ``from lapgrad import linalg`` can replace ``from torch import linalg``. Only
``lstsq`` is lapgrad's own.
"""

from typing import Any

import torch

from lapgrad.linalg._torch_factorisations import cholesky, cholesky_ex, eigh, eigvalsh, qr, svd, svdvals
from lapgrad.linalg._torch_solves import (
    cholesky_inverse,
    cholesky_solve,
    det,
    inv,
    logdet,
    slogdet,
    solve,
    solve_triangular,
)
from lapgrad.linalg.cca import CanonicalCorrelations, cca
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.linalg.eigh_fn import eigh_fn
from lapgrad.linalg.inverse_psd import inverse_psd
from lapgrad.linalg.lda import LinearDiscriminants, lda
from lapgrad.linalg.logdet_psd import logdet_psd
from lapgrad.linalg.lstsq import lstsq
from lapgrad.linalg.pca import PrincipalComponents, pca
from lapgrad.linalg.solve_psd import solve_psd


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and hasattr(torch.linalg, name):
        return getattr(torch.linalg, name)
    raise AttributeError(f"module 'lapgrad.linalg' has no attribute {name!r}")


#: The functions of torch, under torch's names and conventions.
IN_TORCH_TERMS = (
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "logdet",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
)

__all__ = [
    "CanonicalCorrelations",
    "LinearDiscriminants",
    "PrincipalComponents",
    "cca",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "det",
    "eigh",
    "eigh_fn",
    "eigvalsh",
    "inv",
    "inverse_psd",
    "lda",
    "logdet",
    "logdet_psd",
    "lstsq",
    "pca",
    "qr",
    "slogdet",
    "solve",
    "solve_psd",
    "solve_triangular",
    "svd",
    "svdvals",
]


def __dir__() -> list[str]:
    return sorted(__all__)
