"""The gradient of eigenvalues and eigenvectors above the small orders: three products around own kernels.

    P = gU Uᵀ,  M = weigh(P),  gA = Uᵀ (M U)

See ``kernels/syevd_vjp_tiles.cu``. P and M lie in the memory of gA; one more matrix per item is allocated.
The host waits for the check of M only, while the device computes the last two products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address
from lapgrad._kernels.cuda.small import tiles as _tiles
from lapgrad._torch.precision import in_full_precision


def serves(U: Tensor, gU: Tensor | None, slope: Tensor | None) -> bool:
    """Return whether ``syevd_vjp`` below computes this gradient: with cotangents of all n eigenvectors."""
    n = U.shape[-1]
    return U.numel() > 0 and (gU is None or gU.shape[-2] == n) and (slope is None or slope.shape[-1] == n)


@in_full_precision
def syevd_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
) -> tuple[int, int] | None:
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None."""
    check = _tiles.Check(U)
    written = gA if gA.is_contiguous() else torch.empty_like(gA, memory_format=torch.contiguous_format)
    result, vectors, values = flatten_batch(written), flatten_batch(U), eigenvalues.contiguous()
    steps = None if slope is None else slope.contiguous()
    if gU is None:
        assert steps is not None
        inner = torch.empty_like(result)
        _launch.launch(*plan_scaling(inner, vectors, values, steps, tol, check.cell))
        check.send()
    else:
        given = flatten_batch(gU)
        _tiles.multiply(given, vectors.mT, result)
        sizes = values.new_empty((2, values.numel()))
        _launch.launch(*plan_measuring(sizes, given, result))
        _launch.launch(*plan_weighting(result, sizes, values, steps, degeneracy, tol, check.cell))
        check.send()
        inner = torch.empty_like(result)
        _tiles.multiply(result, vectors, inner)
    _multiply_symmetric(result, vectors.mT, inner)
    if written is not gA:
        gA.copy_(written)
    return check.receive()


def _multiply_symmetric(result: Tensor, A: Tensor, B: Tensor) -> None:
    """Result := A B, of which it is known that it is symmetric; the lower triangle decides."""
    if result.shape[-1] >= _thresholds.SYEVD_VJP_TRIANGLE:
        cut = _thresholds.choose_product_cut(result.shape[-1])
        readable = _device.make_readable(A)
        _device.multiply_triangle(result, readable, B, True, 1.0, 0.0, cut)
    else:
        _tiles.multiply(A, B, result)
    _launch.launch(*plan_mirroring(result))


def plan_measuring(sizes: Tensor, gU: Tensor, P: Tensor) -> Launch:
    """The launch after which ``sizes`` (2, rows) has the largest entries of the rows of gU and of P."""
    rows, n = sizes.shape[-1], P.shape[-1]
    return (
        "syevd_vjp_tiles",
        "measure<{T}>",
        P,
        (_tiles.count_row_blocks(rows),),
        _tiles.THREADS,
        0,
        sizes[0].data_ptr(),
        sizes[1].data_ptr(),
        *_tiles.pack_operand(gU),
        P.data_ptr(),
        rows,
        n,
    )


def plan_weighting(
    P: Tensor,
    sizes: Tensor,
    eigenvalues: Tensor,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
    cell: Tensor | None,
) -> Launch:
    """The launch that replaces P, (items, n, n) and contiguous, by M."""
    items, n, _ = P.shape
    return (
        "syevd_vjp_tiles",
        "weigh<{T}>",
        P,
        (_tiles.count_pairs(items, n),),
        _tiles.THREADS,
        _tiles.count_bytes(2, P.dtype),
        P.data_ptr(),
        sizes[0].data_ptr(),
        sizes[1].data_ptr(),
        eigenvalues.data_ptr(),
        get_address(slope),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        get_address(cell),
        n,
    )


def plan_scaling(
    target: Tensor, U: Tensor, eigenvalues: Tensor, slope: Tensor, tol: float, cell: Tensor | None
) -> Launch:
    """The launch that computes target := diag(slope) U, and checks the slopes of equal eigenvalues."""
    items, n, _ = U.shape
    return (
        "syevd_vjp_tiles",
        "scale_rows<{T}>",
        U,
        (_tiles.count_warp_blocks(items * n),),
        _tiles.THREADS,
        0,
        target.data_ptr(),
        *_tiles.pack_operand(U),
        eigenvalues.data_ptr(),
        slope.data_ptr(),
        float(tol),
        get_address(cell),
        items * n,
        n,
    )


def plan_mirroring(A: Tensor) -> Launch:
    """The launch that copies the lower triangle of each item, contiguous, to the upper one."""
    items, n, _ = A.shape
    return (
        "syevd_vjp_tiles",
        "mirror<{T}>",
        A,
        (_tiles.count_pairs(items, n),),
        _tiles.THREADS,
        _tiles.count_bytes(1, A.dtype),
        A.data_ptr(),
        n,
    )
