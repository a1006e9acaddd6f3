"""Raw CUDA kernels: cuBLAS and cuSOLVER on torch's stream, and own kernels compiled by NVRTC.

The signatures are those of ``_kernels.torch``. One file per stem, with its kernels in ``kernels/<stem>.cu``.
Importing this package needs no NVIDIA package and no device: they are loaded when a kernel is called.
Routines that gain nothing from own code have no kernel here: the table takes that of ``_kernels.torch``.
"""

from lapgrad._kernels.cuda.runtime.availability import is_available, is_switched_off, list_missing_packages
from lapgrad._kernels.cuda.runtime.stream import on_its_device

__all__ = ["is_available", "is_switched_off", "list_missing_packages", "on_its_device"]
