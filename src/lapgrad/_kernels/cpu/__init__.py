"""Raw CPU kernels over the compiled core: tensors in, addresses and strides down. One file per stem.

Routines that gain nothing from compiled code have no kernel here: the table takes that of ``_kernels.torch``.
"""

from lapgrad._kernels.cpu._shortcuts import list_shortcuts
from lapgrad._kernels.native import ISA_VARIANTS, UNAVAILABLE, core, describe, is_available, is_switched_off

__all__ = [
    "ISA_VARIANTS",
    "UNAVAILABLE",
    "core",
    "describe",
    "is_available",
    "is_switched_off",
    "list_shortcuts",
]
