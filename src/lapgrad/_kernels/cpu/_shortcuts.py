"""Shortcuts: operators on ordinary tensors, computed by the core without Python on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lapgrad._kernels.native import core
from lapgrad._torch.private import find_names_for_shortcuts


def list_shortcuts() -> dict[str, Callable[..., Any]]:
    """Return the shortcuts by name, ``trsm_shortcut`` and so on; none if this torch cannot be read from C."""
    names = find_names_for_shortcuts()
    if names is None or not core.bind_torch(names):
        return {}
    return {
        "trsm_shortcut": core.trsm_shortcut,
        "trmm_shortcut": core.trmm_shortcut,
        "syrk_shortcut": core.syrk_shortcut,
        "gemmt_shortcut": core.gemmt_shortcut,
        "potrf_shortcut": core.potrf_shortcut,
        "cho_solve_shortcut": core.cho_solve_shortcut,
        "potri_shortcut": core.potri_shortcut,
        "inverse_shortcut": core.inverse_shortcut,
        "gesv_shortcut": core.gesv_shortcut,
        "sumlogdiag_shortcut": core.sumlogdiag_shortcut,
        "makediag_shortcut": core.makediag_shortcut,
        "syevd_shortcut": core.syevd_shortcut,
        "gesvd_shortcut": core.gesvd_shortcut,
        "gelqf_shortcut": core.gelqf_shortcut,
        "extractdiag_shortcut": core.extractdiag_shortcut,
        "potrf_ex_shortcut": core.potrf_ex_shortcut,
        "gemm_shortcut": core.gemm_shortcut,
        "extracttrian_shortcut": core.extracttrian_shortcut,
        "maketrian_shortcut": core.maketrian_shortcut,
        "gemm2_shortcut": core.gemm2_shortcut,
    }
