"""kernel_matrix: matrices of covariance functions and their gradients, on CUDA, in one pass each.

The function is a formula, the name of a type of ``kernels/covariance.cuh`` such as
``Sum<Rbf<2>, Product<Rbf<4>, Matern32<1>>>``, and is compiled at its first use. The numbers in brackets say
how many columns of the features belong to each part, in the order in which the parts are named.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import kernel_matrix as _plans
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device


def serves_kernel_matrix(features: int, like: Tensor) -> bool:
    """Whether a thread can hold that many features of a point, and their gradient, in registers."""
    return features <= _thresholds.FEATURES_IN_REGISTERS and like.dtype in (torch.float64, torch.float32)


@on_its_device
def kernel_matrix(
    K: Tensor,
    formula: str,
    scalars: Tensor,
    F: Tensor,
    G: Tensor | None,
    noise: Tensor | None,
    lower_only: bool,
) -> None:
    """K (n, m) := k(F, G), for contiguous features F (n, d) and G (m, d); K has columns side by side.

    G None: the matrix of F with itself, exactly symmetric, with ``noise`` () or (n,) added to the diagonal.
    With ``lower_only`` entries above the diagonal are undefined.
    """
    _launch.launch(*_plans.plan_fill(K, formula, scalars, F, G, noise, lower_only))


@on_its_device
def kernel_matrix_vjp(
    F: Tensor, formula: str, scalars: Tensor, G: Tensor | None, gK: Tensor, is_symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of <gK, k(F, G)> for the scalars (p,) and for F (n, d).

    G None: that of F is for rows and columns together, in one pass if gK ``is_symmetric``, else in two.
    """
    is_single = G is not None or is_symmetric
    slices, width = _plans.choose_slices(len(F), gK.shape[1])
    parts, blocks = slices if is_single else 2 * slices, _plans.count_row_blocks(F)
    of_rows = F.new_empty(parts, *F.shape)
    sums = torch.empty(parts * blocks, len(scalars), dtype=torch.float64, device=F.device)
    operands, cut = (formula, scalars, F, G), (slices, width)
    if G is None and is_symmetric:
        # gK is symmetric, so its transpose can be passed: threads then read consecutive addresses.
        _launch.launch(*_plans.plan_gradient(of_rows, sums, *operands, gK.mT, cut, 2.0))
    else:
        _launch.launch(*_plans.plan_gradient(of_rows, sums, *operands, gK, cut, 1.0))
    if not is_single:
        others, unused = of_rows[slices:], sums[slices * blocks :]
        _launch.launch(*_plans.plan_gradient(others, unused, *operands, gK.mT, cut, 1.0))
        sums = sums[: slices * blocks]
    g_scalars = sums.sum(0) if scalars.dtype is torch.float64 else sums.sum(0).to(scalars.dtype)
    return g_scalars, of_rows[0] if parts == 1 else of_rows.sum(0)
