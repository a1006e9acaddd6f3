"""Raw CUDA kernels: cuBLAS and cuSOLVER on torch's stream, and own kernels compiled by NVRTC.

The signatures are those of ``_fallback``. One file per stem, with its kernels in ``kernels/<stem>.cu``.
Importing this package asks for no NVIDIA package and no device: they are looked for when a kernel is called.
Routines that gain nothing from own code are those of ``_fallback``.
"""

from typing import Any

from lapgrad._kernels import torch as _fallback
from lapgrad._kernels.cuda.copyltu import copyltu
from lapgrad._kernels.cuda.extracttrian import extracttrian
from lapgrad._kernels.cuda.gelqf import dependent_row, dependent_row_later, gelqf, gelqf_l_vjp, gelqf_vjp
from lapgrad._kernels.cuda.gemmt import gemmt
from lapgrad._kernels.cuda.gesvd import gesvd, gesvd_vjp
from lapgrad._kernels.cuda.kalman_nll import kalman_nll, kalman_nll_vjp
from lapgrad._kernels.cuda.maketrian import maketrian
from lapgrad._kernels.cuda.potrf import potrf, potrf_vjp
from lapgrad._kernels.cuda.potri import potri, potri_update, potri_vjp
from lapgrad._kernels.cuda.runtime.availability import available, missing_packages, switched_off
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.syevd import syevd, syevd_vjp
from lapgrad._kernels.cuda.syrk import syrk, syrk_add
from lapgrad._kernels.cuda.trmm import trmm
from lapgrad._kernels.cuda.trsm import trsm

__all__ = [
    "available",
    "copyltu",
    "dependent_row",
    "dependent_row_later",
    "extracttrian",
    "gelqf",
    "gelqf_l_vjp",
    "gelqf_vjp",
    "gemmt",
    "gesvd",
    "gesvd_vjp",
    "kalman_nll",
    "kalman_nll_vjp",
    "maketrian",
    "missing_packages",
    "potrf",
    "potrf_vjp",
    "potri",
    "potri_update",
    "potri_vjp",
    "switched_off",
    "syevd",
    "syevd_vjp",
    "syrk",
    "syrk_add",
    "trmm",
    "trsm",
]


def __getattr__(name: str) -> Any:
    """What has no kernel of its own, in plain PyTorch, on the device of its operands and in its context."""
    if name.startswith("_") or not hasattr(_fallback, name):
        raise AttributeError(name)
    return on_its_device(getattr(_fallback, name))
