"""Raw CUDA kernels: cuBLAS and cuSOLVER through NVIDIA's Python bindings, and own kernels compiled by NVRTC.

The signatures are those of ``_fallback``. One file per stem, with its kernels in ``kernels/<stem>.cu``.
Importing this package asks for no NVIDIA package and no device: they are looked for when a kernel is called.
Routines that gain nothing from own code are those of ``_fallback``.
"""

from lapgrad._cuda._native import available, missing_packages, switched_off
from lapgrad._cuda.syevd import syevd, syevd_vjp

__all__ = ["available", "missing_packages", "switched_off", "syevd", "syevd_vjp"]
