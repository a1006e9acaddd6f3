"""Raw CPU kernels over the compiled core: tensors in, addresses and strides down. One file per stem.

Routines that gain nothing from compiled code are those of ``_fallback``.
"""

from lapgrad._cpu._native import ISA_VARIANTS, UNAVAILABLE, available, core, describe, switched_off
from lapgrad._cpu.cho_solve import cho_solve, cho_solve_vjp
from lapgrad._cpu.congruence import congruence
from lapgrad._cpu.copyltu import copyltu
from lapgrad._cpu.det import det, det_vjp
from lapgrad._cpu.extracttrian import extracttrian
from lapgrad._cpu.gelqf import dependent_row, dependent_row_later, gelqf, gelqf_l_vjp, gelqf_vjp
from lapgrad._cpu.gemmt import gemmt
from lapgrad._cpu.gemmt_sum import gemmt_sum
from lapgrad._cpu.gesvd import gesvd, gesvd_vjp
from lapgrad._cpu.inverse import inverse, inverse_vjp
from lapgrad._cpu.kalman_nll import kalman_nll, kalman_nll_vjp
from lapgrad._cpu.maketrian import maketrian
from lapgrad._cpu.potrf import potrf, potrf_vjp
from lapgrad._cpu.potri import potri, potri_update, potri_vjp
from lapgrad._cpu.slogdet import slogdet, slogdet_vjp
from lapgrad._cpu.sumlogdiag import sum_logs_and_squares, sumlogdiag
from lapgrad._cpu.syevd import syevd, syevd_vjp
from lapgrad._cpu.syrk import syrk, syrk_vjp
from lapgrad._cpu.trmm import trmm
from lapgrad._cpu.trsm import trsm

__all__ = [
    "ISA_VARIANTS",
    "UNAVAILABLE",
    "available",
    "cho_solve",
    "cho_solve_vjp",
    "congruence",
    "copyltu",
    "core",
    "dependent_row",
    "dependent_row_later",
    "describe",
    "det",
    "det_vjp",
    "extracttrian",
    "gelqf",
    "gelqf_l_vjp",
    "gelqf_vjp",
    "gemmt",
    "gemmt_sum",
    "gesvd",
    "gesvd_vjp",
    "inverse",
    "inverse_vjp",
    "kalman_nll",
    "kalman_nll_vjp",
    "maketrian",
    "potrf",
    "potrf_vjp",
    "potri",
    "potri_update",
    "potri_vjp",
    "slogdet",
    "slogdet_vjp",
    "sum_logs_and_squares",
    "sumlogdiag",
    "switched_off",
    "syevd",
    "syevd_vjp",
    "syrk",
    "syrk_vjp",
    "trmm",
    "trsm",
]
