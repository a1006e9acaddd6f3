"""What users of linear algebra ask for, in terms of the operators: one file per function."""

from lapgrad.linalg.cca import CanonicalCorrelations, cca
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.linalg.eigh_fn import eigh_fn
from lapgrad.linalg.inverse_psd import inverse_psd
from lapgrad.linalg.lda import LinearDiscriminants, lda
from lapgrad.linalg.logdet_psd import logdet_psd
from lapgrad.linalg.lstsq import lstsq
from lapgrad.linalg.pca import PrincipalComponents, pca
from lapgrad.linalg.solve_psd import solve_psd

__all__ = [
    "CanonicalCorrelations",
    "LinearDiscriminants",
    "PrincipalComponents",
    "cca",
    "cho_solve",
    "eigh_fn",
    "inverse_psd",
    "lda",
    "logdet_psd",
    "lstsq",
    "pca",
    "solve_psd",
]
