"""The raw kernels in plain PyTorch: for devices without kernels of their own, and without the compiled core.

Each function writes its result into the tensors that come first, knows nothing of autograd, and trusts its
caller with the shapes: all operands have the same leading (batch) dimensions. Where an operator may overwrite
its operand, the output *is* that operand, so it is written last.

These kernels are correct everywhere; they make temporaries that the compiled ones do not. One file per stem.
"""

from lapgrad._kernels.torch.cho_solve import cho_solve, cho_solve_vjp
from lapgrad._kernels.torch.congruence import congruence
from lapgrad._kernels.torch.copyltu import copyltu
from lapgrad._kernels.torch.det import det, det_vjp
from lapgrad._kernels.torch.extractdiag import extractdiag
from lapgrad._kernels.torch.extracttrian import extracttrian
from lapgrad._kernels.torch.gelqf import dependent_row, dependent_row_later, gelqf, gelqf_l_vjp, gelqf_vjp
from lapgrad._kernels.torch.gemm import gemm
from lapgrad._kernels.torch.gemmt import gemmt
from lapgrad._kernels.torch.gemmt_sum import gemmt_sum
from lapgrad._kernels.torch.gesvd import gesvd, gesvd_vjp
from lapgrad._kernels.torch.inverse import inverse, inverse_vjp
from lapgrad._kernels.torch.kalman_nll import kalman_nll, kalman_nll_vjp
from lapgrad._kernels.torch.makediag import makediag
from lapgrad._kernels.torch.maketrian import maketrian
from lapgrad._kernels.torch.potrf import potrf, potrf_vjp
from lapgrad._kernels.torch.potri import potri, potri_update, potri_vjp
from lapgrad._kernels.torch.slogdet import slogdet, slogdet_vjp
from lapgrad._kernels.torch.sumlogdiag import sum_logs_and_squares, sumlogdiag, sumlogdiag_vjp
from lapgrad._kernels.torch.syevd import syevd, syevd_vjp
from lapgrad._kernels.torch.syrk import syrk, syrk_add, syrk_vjp
from lapgrad._kernels.torch.trmm import trmm
from lapgrad._kernels.torch.trsm import trsm

__all__ = [
    "cho_solve",
    "cho_solve_vjp",
    "congruence",
    "copyltu",
    "dependent_row",
    "dependent_row_later",
    "det",
    "det_vjp",
    "extractdiag",
    "extracttrian",
    "gelqf",
    "gelqf_l_vjp",
    "gelqf_vjp",
    "gemm",
    "gemmt",
    "gemmt_sum",
    "gesvd",
    "gesvd_vjp",
    "inverse",
    "inverse_vjp",
    "kalman_nll",
    "kalman_nll_vjp",
    "makediag",
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
    "sumlogdiag_vjp",
    "syevd",
    "syevd_vjp",
    "syrk",
    "syrk_add",
    "syrk_vjp",
    "trmm",
    "trsm",
]
