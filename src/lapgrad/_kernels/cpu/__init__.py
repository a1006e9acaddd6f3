"""Raw CPU kernels over the compiled core: tensors in, addresses and strides down. One file per stem.

Routines that gain nothing from compiled code are those of ``_fallback``.
"""

from lapgrad._kernels.cpu.cho_solve import cho_solve, cho_solve_vjp
from lapgrad._kernels.cpu.congruence import congruence
from lapgrad._kernels.cpu.copyltu import copyltu
from lapgrad._kernels.cpu.det import det, det_vjp
from lapgrad._kernels.cpu.extracttrian import extracttrian
from lapgrad._kernels.cpu.gelqf import dependent_row, dependent_row_later, gelqf, gelqf_l_vjp, gelqf_vjp
from lapgrad._kernels.cpu.gemmt import gemmt
from lapgrad._kernels.cpu.gemmt_sum import gemmt_sum
from lapgrad._kernels.cpu.gesvd import gesvd, gesvd_vjp
from lapgrad._kernels.cpu.inverse import inverse, inverse_vjp
from lapgrad._kernels.cpu.kalman_nll import kalman_nll, kalman_nll_vjp
from lapgrad._kernels.cpu.maketrian import maketrian
from lapgrad._kernels.cpu.potrf import potrf, potrf_vjp
from lapgrad._kernels.cpu.potri import potri, potri_update, potri_vjp
from lapgrad._kernels.cpu.slogdet import slogdet, slogdet_vjp
from lapgrad._kernels.cpu.sumlogdiag import sum_logs_and_squares, sumlogdiag
from lapgrad._kernels.cpu.syevd import syevd, syevd_vjp
from lapgrad._kernels.cpu.syrk import syrk, syrk_vjp
from lapgrad._kernels.cpu.trmm import trmm
from lapgrad._kernels.cpu.trsm import trsm
from lapgrad._kernels.native import ISA_VARIANTS, UNAVAILABLE, available, core, describe, switched_off

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
