"""The gradient of eigenvalues and eigenvectors above the small orders: three products around own kernels.

    P = gU Uᵀ,  M = weigh(P),  gA = Uᵀ (M U)

See ``kernels/syevd_vjp_tiles.cu``. P and M lie in the memory of gA; one more matrix per item is allocated.
The core launches everything; then the host waits for the check of M, while the device computes products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.small import tiles as _tiles
from lapgrad._kernels.native import core

#: In the order of ``SyevdKernel`` in csrc/gpu/device_spectral.h.
KERNELS = ("measure<{T}>", "weigh<{T}>", "scale_rows<{T}>", "mirror<{T}>")


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

    U is not empty; gU and slope, if given, are cotangents of all eigenvectors and eigenvalues.
    """
    check = _tiles.Check(U)
    written = gA if gA.is_contiguous() else torch.empty_like(gA, memory_format=torch.contiguous_format)
    result, vectors = flatten_batch(written), _tiles.flatten_operand(U)
    given = None if gU is None else _tiles.flatten_operand(gU)
    values, steps = eigenvalues.contiguous(), None if slope is None else slope.contiguous()
    inner = values.new_empty(result.numel() + 2 * values.numel())
    n = U.shape[-1]
    core.device_syevd_vjp(
        *_tiles.get_queue("syevd_vjp_tiles", KERNELS, U),
        _tiles.describe_operand(result),
        _tiles.describe_operand(vectors),
        _tiles.describe_operand(given),
        check.pack_rule(values, steps, degeneracy, tol),
        inner.data_ptr(),
        inner.data_ptr() + result.numel() * inner.element_size(),
        _thresholds.SYEVD_VJP_TRIANGLE,
        _thresholds.choose_product_cut(n),
        check.get_mailbox(),
    )
    if written is not gA:
        gA.copy_(written)
    return check.receive()
