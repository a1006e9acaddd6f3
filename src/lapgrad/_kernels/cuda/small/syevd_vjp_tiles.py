"""The gradient of eigenvalues and eigenvectors above the small orders: three products around own kernels.

    P = gU Uᵀ,  M = weigh(P),  gA = Uᵀ (M U)

See ``kernels/syevd_vjp_tiles.cu``. P and M lie in the memory of gA; one more matrix per item is allocated.
Unless eigenvalues are known to be distinct (``ties.py``), the host waits until M is computed, which shows
whether the loss has a derivative, but not for the last products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import tiles as _tiles
from lapgrad._kernels.cuda.small.ties import are_distinct
from lapgrad._kernels.native import core

#: In the order of ``SyevdKernel`` in csrc/gpu/device_spectral.h.
KERNELS = ("measure<{T}>", "weigh<{T}>", "scale_rows<{T}>", "mirror<{T}>")

#: Policies under which it is not checked whether the loss has a derivative.
_UNREPORTED = ("nan", "quiet")


def syevd_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
) -> tuple[int, int] | None:
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None.

    The policies "nan" and "quiet" are not checked. U is not empty; gU and slope, if given, are cotangents of
    all eigenvectors and eigenvalues.
    """
    values, steps = eigenvalues.contiguous(), None if slope is None else slope.contiguous()
    checked = degeneracy not in _UNREPORTED and not are_distinct(values, tol)
    status = _items.DeferredStatus.acquire(values) if checked else None
    written = gA if gA.is_contiguous() else torch.empty_like(gA, memory_format=torch.contiguous_format)
    described = [_tiles.describe_operand(operand) for operand in (written, U, gU)]
    inner = values.new_empty(written.numel() + 2 * values.numel())
    core.device_syevd_vjp(
        *_tiles.get_queue("syevd_vjp_tiles", KERNELS, U),
        *(blocks for blocks, _ in described),
        *_tiles.pack_rule(values, steps, degeneracy, tol, status),
        inner.data_ptr(),
        inner.data_ptr() + written.numel() * inner.element_size(),
        _thresholds.SYEVD_VJP_TRIANGLE,
        _thresholds.choose_product_cut(U.shape[-1]),
    )
    if written is not gA:
        gA.copy_(written)
    return None if status is None else status.receive()
