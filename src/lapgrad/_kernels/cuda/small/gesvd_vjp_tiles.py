"""The gradient of singular value decompositions above the small sides: four products around own kernels.

    X = gU Uᵀ,  Y = gV Vᵀ,  G = weigh(X, Y),  gA = Uᵀ (G V), for a wide A gA = Uᵀ (G V + S⁻¹ gV)

See ``kernels/gesvd_vjp_tiles.cu``. X and G lie in the memory of gA; one more matrix as large as gA is
allocated, and for a wide or tall A a square one. The host waits for the check of G only, while the device
computes the last two products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address
from lapgrad._kernels.cuda.small import tiles as _tiles
from lapgrad._torch.precision import in_full_precision


def serves(U: Tensor, V: Tensor) -> bool:
    """Return whether ``gesvd_vjp`` below takes factors of this shape; strides do not matter."""
    return U.numel() > 0 < V.numel()


@in_full_precision
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
    """``_fallback.gesvd_vjp`` for operands that it serves. Only the first ambiguous item is marked."""
    check = _tiles.Check(U)
    written = gA if gA.is_contiguous() else torch.empty_like(gA, memory_format=torch.contiguous_format)
    result = flatten_batch(written)
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV, result = V, U, gV, gU, result.mT
    left, right, values = flatten_batch(U), flatten_batch(V), S.contiguous()
    slope = None if gS is None else gS.contiguous()
    of_u, of_v = (None if given is None else flatten_batch(given) for given in (gU, gV))
    inner = torch.empty(right.shape, dtype=S.dtype, device=S.device)
    if of_u is None and of_v is None:
        assert slope is not None
        _launch.launch(*plan_scaling(inner, right, values, slope, degeneracy, tol, check.cell))
        check.send()
    else:
        _compute_inner(inner, written, left, right, values, of_u, slope, of_v, degeneracy, tol, check)
    _tiles.multiply(left.mT, inner, result)
    if written is not gA:
        gA.copy_(written)
    found = check.receive()
    if found is None:
        return None
    ambiguous = torch.zeros(S.shape[:-1], dtype=torch.bool)
    ambiguous.view(-1)[found[0]] = True
    return ambiguous


def _compute_inner(
    inner: Tensor,
    work: Tensor,
    U: Tensor,
    V: Tensor,
    S: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
    check: _tiles.Check,
) -> None:
    """Inner := G V, + S⁻¹ gV for a wide matrix. ``work`` is contiguous memory for G."""
    items, k, n = V.shape
    G = work.view(-1)[: items * k * k].view(items, k, k)
    outside = gV is not None and k < n
    Y = None
    if gU is not None:
        _tiles.multiply(gU, U.mT, G)
    if gV is not None:
        # The memory of ``inner`` is free until Y has been read, unless S⁻¹ gV is written there before.
        Y = torch.empty_like(G) if outside else inner.view(-1)[: items * k * k].view(items, k, k)
        _tiles.multiply(gV, V.mT, Y)
    sizes = S.new_empty((3, items * k))
    kept = (
        sizes[0] if gU is not None else None,
        sizes[1] if gV is not None else None,
        sizes[2] if outside else None,
    )
    _launch.launch(*plan_measuring(kept, inner if outside else None, Y, S, gS, gU, gV, V, degeneracy, tol))
    _launch.launch(*plan_weighting(G, Y, kept, S, gS, gV, V, degeneracy, tol, check.cell))
    check.send()
    if not outside:
        _tiles.multiply(G, V, inner)
    elif items == 1:
        inner[0].addmm_(G[0], V[0])
    else:
        inner.baddbmm_(G, V)


#: The largest entries of the rows of gU and of gV, and what replaces 1 / S: items * k numbers each, or None.
RowNumbers = tuple[Tensor | None, Tensor | None, Tensor | None]


def plan_measuring(
    rows: RowNumbers,
    inner: Tensor | None,
    Y: Tensor | None,
    S: Tensor,
    gS: Tensor | None,
    gU: Tensor | None,
    gV: Tensor | None,
    V: Tensor,
    degeneracy: str,
    tol: float,
) -> Launch:
    """The launch that fills ``rows``, and inner := S⁻¹ gV unless that is None."""
    items, k, n = V.shape
    return (
        "gesvd_vjp_tiles",
        "measure<{T}>",
        V,
        (_tiles.count_row_blocks(items * k),),
        _tiles.THREADS,
        0,
        *(get_address(numbers) for numbers in rows),
        get_address(inner),
        get_address(Y),
        S.data_ptr(),
        get_address(gS),
        *_tiles.pack_operand(gU),
        *_tiles.pack_operand(gV),
        *_tiles.pack_operand(V),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        items * k,
        k,
        n,
    )


def plan_weighting(
    G: Tensor,
    Y: Tensor | None,
    rows: RowNumbers,
    S: Tensor,
    gS: Tensor | None,
    gV: Tensor | None,
    V: Tensor,
    degeneracy: str,
    tol: float,
    cell: Tensor | None,
) -> Launch:
    """The launch that replaces gU Uᵀ in G, (items, k, k) and contiguous, by the middle matrix."""
    items, k, n = V.shape
    return (
        "gesvd_vjp_tiles",
        "weigh<{T}>",
        G,
        (_tiles.count_pairs(items, k),),
        _tiles.THREADS,
        _tiles.count_bytes(4, G.dtype),
        G.data_ptr(),
        get_address(Y),
        *(get_address(numbers) for numbers in rows),
        S.data_ptr(),
        get_address(gS),
        *_tiles.pack_operand(gV),
        *_tiles.pack_operand(V),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        get_address(cell),
        k,
        n,
    )


def plan_scaling(
    target: Tensor, V: Tensor, S: Tensor, gS: Tensor, degeneracy: str, tol: float, cell: Tensor | None
) -> Launch:
    """The launch that computes target := diag(gS) V, and checks the slopes of equal singular values."""
    items, k, n = V.shape
    return (
        "gesvd_vjp_tiles",
        "scale_rows<{T}>",
        V,
        (_tiles.count_warp_blocks(items * k),),
        _tiles.THREADS,
        0,
        target.data_ptr(),
        *_tiles.pack_operand(V),
        S.data_ptr(),
        gS.data_ptr(),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        get_address(cell),
        items * k,
        k,
        n,
    )
