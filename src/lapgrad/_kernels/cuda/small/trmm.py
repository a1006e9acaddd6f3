"""trmm of batches of triangular matrices up to order 128."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import readable, writable
from lapgrad._kernels.cuda.small.triangular import applying, serves
from lapgrad._kernels.torch import trmm as _fallback

__all__ = ["serves", "trmm"]


def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    """As ``_fallback.trmm``, for what ``serves`` takes."""
    target = writable(B)
    if target is None:
        _fallback.trmm(B, L, A, lower, transpose, rightside)
        return
    plan = applying(target, readable(L), readable(A), lower, transpose, rightside, False, None)
    _launch.launch(*plan)
