"""trmm of batches of triangular matrices up to order 128."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import flatten_batch, view_batch
from lapgrad._kernels.cuda.small.triangular import plan_application, serves
from lapgrad._kernels.torch import trmm as _fallback

__all__ = ["serves", "trmm"]


def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    target = view_batch(B)
    if target is None:
        _fallback.trmm(B, L, A, lower, transpose, rightside)
        return
    plan = plan_application(
        target, flatten_batch(L), flatten_batch(A), lower, transpose, rightside, solve=False, cell=None
    )
    _launch.launch(*plan)
