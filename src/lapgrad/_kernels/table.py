"""One table: routine x device -> the raw kernel, an in-place function that knows nothing of autograd.

The signatures are those of ``_fallback``, which has every routine and works on every device. A device with
kernels of its own replaces them name by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from lapgrad._kernels import torch as _fallback

Kernel = Callable[..., Any]

ROUTINES = (
    "potrf",
    "potrf_vjp",
    "cho_solve",
    "cho_solve_vjp",
    "potri",
    "potri_update",
    "potri_vjp",
    "trsm",
    "trmm",
    "gemmt",
    "gemmt_sum",
    "syrk",
    "syrk_add",
    "syrk_vjp",
    "gemm",
    "copyltu",
    "congruence",
    "syevd",
    "syevd_vjp",
    "sumlogdiag",
    "sum_logs_and_squares",
    "sumlogdiag_vjp",
    "gelqf",
    "gelqf_vjp",
    "gelqf_l_vjp",
    "dependent_row",
    "dependent_row_later",
    "extractdiag",
    "makediag",
    "extracttrian",
    "maketrian",
    "gesvd",
    "gesvd_vjp",
    "inverse",
    "inverse_vjp",
    "det",
    "det_vjp",
    "slogdet",
    "slogdet_vjp",
    "kalman_nll",
    "kalman_nll_vjp",
)


def lookup(routine: str, tensor: Tensor) -> Kernel:
    """The kernel of ``routine`` for the device of ``tensor``."""
    if tensor.is_cpu:
        return _CPU[routine]
    return _CUDA[routine] if tensor.is_cuda else _ELSEWHERE[routine]


def core_in_use() -> bool:
    """Whether CPU tensors run on the compiled core."""
    return _CPU["potrf"] is not _fallback.potrf


class _OnFirstUse(dict[str, Kernel]):
    """A table of kernels filled at the first question, so that importing lapgrad stays cheap and silent."""

    def __init__(self, find_module: Callable[[], ModuleType | None]) -> None:
        super().__init__()
        self._find_module = find_module

    def __missing__(self, routine: str) -> Kernel:
        module = self._find_module()
        self.update({name: getattr(module, name, getattr(_fallback, name)) for name in ROUTINES})
        return self[routine]


def _compiled_core() -> ModuleType | None:
    """The kernels over the compiled core. None when it is switched off, or missing: then with a warning."""
    from lapgrad._kernels import cpu as _cpu

    if _cpu.available():
        return _cpu
    if _cpu.switched_off():
        return None
    warnings.warn(
        f"lapgrad's compiled core is not available ({_cpu.UNAVAILABLE}); CPU tensors use the slower kernels "
        f"in plain PyTorch. Set LAPGRAD_CORE=off to choose them without this warning.",
        RuntimeWarning,
        stacklevel=4,
    )
    return None


def _nvidia_libraries() -> ModuleType | None:
    """The kernels over NVIDIA's libraries. None when switched off, or missing: then with a warning."""
    from lapgrad._kernels import cuda as _cuda

    if _cuda.available():
        return _cuda
    if not _cuda.switched_off():
        warnings.warn(
            f"lapgrad's CUDA kernels need {' and '.join(_cuda.missing_packages())} (pip install "
            f"'lapgrad[cuda]'); CUDA tensors use the slower kernels in plain PyTorch. Set LAPGRAD_CUDA=off "
            f"to choose them without this warning.",
            RuntimeWarning,
            stacklevel=4,
        )
    return None


_CPU = _OnFirstUse(_compiled_core)
_CUDA = _OnFirstUse(_nvidia_libraries)
_ELSEWHERE = _OnFirstUse(lambda: None)
