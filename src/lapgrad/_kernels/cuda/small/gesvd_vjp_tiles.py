"""The gradient of singular value decompositions above the small sides: four products around own kernels.

    X = gU Uᵀ,  Y = gV Vᵀ,  G = weigh(X, Y),  gA = Uᵀ (G V), for a wide A gA = Uᵀ (G V + S⁻¹ gV)

See ``kernels/gesvd_vjp_tiles.cu``. X and G lie in the memory of gA; one more matrix as large as gA is
allocated, and for a wide or tall A a square one. Unless singular values are known to be distinct
(``ties.py``), the host waits until G is computed, which shows whether the loss has a derivative, but not for
the last products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import tiles as _tiles
from lapgrad._kernels.cuda.small.ties import are_distinct
from lapgrad._kernels.native import core

#: In the order of ``GesvdKernel`` in csrc/gpu/device_spectral.h.
KERNELS = ("measure<{T}>", "weigh<{T}>", "scale_rows<{T}>")


def serves(U: Tensor, V: Tensor) -> bool:
    """Return whether ``gesvd_vjp`` below takes factors of this shape; strides do not matter."""
    return U.numel() > 0 < V.numel()


def gesvd_vjp(
    gA: Tensor,
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Tensor | None:
    """Same as in ``_kernels.torch``, for operands that it serves. Only the first ambiguous item is marked."""
    values, slope = S.contiguous(), None if gS is None else gS.contiguous()
    checked = degeneracy != "nan" and not are_distinct(values, tol)
    status = _items.DeferredStatus.acquire(values) if checked else None
    written = gA if gA.is_contiguous() else torch.empty_like(gA, memory_format=torch.contiguous_format)
    result, _ = _tiles.describe_operand(written)
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV, result = V, U, gV, gU, _tiles.transpose_blocks(result)
    described = [_tiles.describe_operand(operand) for operand in (U, V, gU, gV)]
    items, k, n = S.shape[:-1].numel(), *V.shape[-2:]
    # The memory of ``inner`` is free until gV Vᵀ has been read, unless S⁻¹ gV is written there before.
    moved = 0 if gV is None or k == n else V.numel()
    place = V.numel() + (items * k * k if moved else 0)
    inner = values.new_empty(place + 3 * items * k)
    core.device_gesvd_vjp(
        *_tiles.get_queue("gesvd_vjp_tiles", KERNELS, U),
        result,
        *(blocks for blocks, _ in described),
        *_tiles.pack_rule(values, slope, degeneracy, tol, status),
        written.data_ptr(),
        *(inner.data_ptr() + start * inner.element_size() for start in (0, moved, place)),
    )
    if written is not gA:
        gA.copy_(written)
    found = None if status is None else status.receive()
    if found is None:
        return None
    ambiguous = torch.zeros(S.shape[:-1], dtype=torch.bool)
    ambiguous.view(-1)[found[0]] = True
    return ambiguous
