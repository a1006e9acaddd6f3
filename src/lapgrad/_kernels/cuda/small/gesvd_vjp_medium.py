"""The gradient of singular value decompositions of batches of medium matrices: products around a kernel.

See ``kernels/gesvd_vjp_medium.cu``. Of the workspace, three matrices per item, only a part of the batch has
it at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address, view_batch
from lapgrad._torch.precision import in_full_precision

_THREADS = 256


def serves(U: Tensor, V: Tensor) -> bool:
    """Return whether ``gesvd_vjp`` below takes factors of this shape and type; strides do not matter."""
    return U.numel() > 0 < V.numel() and U.dim() > 2 and U.shape[-2] <= _thresholds.GESVD_VJP_MEDIUM


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
    cell = _items.get_status_cell(U)
    target = view_batch(gA)
    written = torch.empty((S.shape[:-1].numel(), *gA.shape[-2:]), dtype=S.dtype, device=S.device)
    result = written if target is None else target
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV, result = V, U, gV, gU, result.mT
    U, V, values = flatten_batch(U), flatten_batch(V), S.reshape(-1, S.shape[-1]).contiguous()
    slope = None if gS is None else gS.reshape(values.shape).contiguous()
    gU, gV = (None if given is None else flatten_batch(given) for given in (gU, gV))
    items, k, n = V.shape
    together = min(items, max(1, _thresholds.GESVD_WORKSPACE // (k * (2 * k + n) * S.element_size())))
    middle, moved = (torch.empty((together, k, k), dtype=S.dtype, device=S.device) for _ in range(2))
    inner = torch.empty((together, k, n), dtype=S.dtype, device=S.device)
    inverse = None if gV is None or k == n else torch.empty_like(values)
    for begin in range(0, items, together):
        part = slice(begin, min(begin + together, items))
        count = part.stop - begin
        left, right = U[part], V[part]
        of_u, of_v = (None if whole is None else whole[part] for whole in (gU, gV))
        if of_u is not None:
            torch.bmm(of_u, left.mT, out=middle[:count])
        if of_v is not None:
            torch.bmm(of_v, right.mT, out=moved[:count])
        own_slope, own_inverse = (None if whole is None else whole[part] for whole in (slope, inverse))
        given = (values[part], own_slope, of_u, of_v, right, own_inverse)
        _launch.launch(*plan_weighting(middle[:count], moved, *given, degeneracy, tol, cell, begin))
        torch.bmm(middle[:count], right, out=inner[:count])
        if own_inverse is not None and of_v is not None:
            inner[:count].addcmul_(own_inverse[..., None], of_v)
        torch.bmm(left.mT, inner[:count], out=result[part])
    if target is None:
        gA.copy_(written.view(gA.shape))
    found = _items.read_first_failure(cell)
    if found is None:
        return None
    ambiguous = torch.zeros(S.shape[:-1], dtype=torch.bool)
    ambiguous.view(-1)[found[0]] = True
    return ambiguous


def plan_weighting(
    G: Tensor,
    Y: Tensor,
    S: Tensor,
    gS: Tensor | None,
    gU: Tensor | None,
    gV: Tensor | None,
    V: Tensor,
    inverse: Tensor | None,
    degeneracy: str,
    tol: float,
    cell: Tensor | None,
    first: int,
) -> Launch:
    """The launch between the products."""
    items, k, n = V.shape
    operands: list[int] = []
    for operand in (gU, gV, V):
        operands += (0, 0, 0, 0) if operand is None else (operand.data_ptr(), *operand.stride())
    return (
        "gesvd_vjp_medium",
        f"weigh<{{T}}, {_THREADS}>",
        G,
        (items,),
        _THREADS,
        (6 * k + 32) * G.element_size(),
        G.data_ptr(),
        Y.data_ptr(),
        S.data_ptr(),
        get_address(gS),
        *operands,
        get_address(inverse),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        get_address(cell),
        first,
        k,
        n,
    )
