"""mvn_nll: the criterion of exact Gaussian process regression, with the covariance spread over a grid.

With A = K + diag(v) = L Lᵀ and α = A⁻¹ Y, for Y with k columns:

    s = 1/2 <Y, α> + k Σ log l_ii + n k / 2 log 2π,   gA = gs/2 (k A⁻¹ - α αᵀ),   gY = gs α

Each process builds its blocks of A and overwrites them twice: by L in the forward, by A⁻¹ in the backward. Y
and α are replicated. Processes exchange α and the logarithm of the determinant forward, and the gradients of
the kernel's parameters backward: in one sum each, besides the messages of the engine.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad._torch import layout as _checks
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.kernel_blocks import (
    BlockKernel,
    Panel,
    fill_covariance,
    reduce_gradient,
)
from lapgrad.distributed.blockcyclic.layout import allocate_local
from lapgrad.distributed.blockcyclic.triangles import check_factor, get_diagonal
from lapgrad.fused._sgp.kernel_function import KernelFunction, as_kernel_function, prepare_points

_NAME = "distributed.mvn_nll"
_LOG_2_PI = math.log(2.0 * math.pi)


def mvn_nll(
    kernel: KernelFunction | nn.Module,
    X: Tensor,
    Y: Tensor,
    noise_var: Tensor | float,
    *,
    grid: ProcessGrid,
) -> Tensor:
    """Criterion of a GP on a grid of processes: s = -sum_j log N(y_j | 0, A), A = K + diag(noise_var).

    The matrix is never in one place: each process computes the blocks of K = kernel(X) that it holds, and
    all of them factorise and invert A together. Arguments and result are the same on all processes, and so
    are the gradients.

    Args:
        kernel: A ``torch.nn.Module`` with ``forward(A, B)``, (n, m) for A (n, d) and B (m, d), and
            ``diag(A)``, (n,): gradients reach its parameters. Or a ``KernelFunction``.
        X: (n, d), inputs.
        Y: (n, k), outputs, independent of each other. A single vector y is ``y[:, None]``.
        noise_var: Variance of the noise: a number, a scalar tensor, or (n,).
        grid: The processes, of ``make_grid``.

    Returns:
        s, a scalar of the dtype of X.

    Raises:
        NotPositiveDefiniteError: A is not positive definite; names the leading minor, on all processes.
        NonFiniteError: There is a NaN or an infinity in A.
        OptionError: ``kernel`` is not one.
        DTypeError, DeviceError, ShapeError: The tensors are not float32 or float64, or do not fit.

    Gradient:
        gA = gs/2 (k A^-1 - alpha alpha^T), and gY = gs alpha, with alpha = A^-1 Y. Each process reduces its
        blocks of gA to the parameters of the kernel, and one sum over all processes follows. The blocks of
        the factor are overwritten by those of the inverse.

    Memory:
        once the blocks of a process, n^2 / p, forward and backward together, and one panel of 4 MB (GPU: 256
        MB)
        Besides: X, Y and alpha on each process.

    Cost:
        n^3 flops over all processes, n^3/3 of them forward.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import make_grid, mvn_nll
        >>> from lapgrad.models.kernels import RBF
        >>> X, kernel = torch.linspace(0, 1, 50)[:, None], RBF()
        >>> s = mvn_nll(kernel, X, torch.sin(6 * X), 0.1, grid=make_grid(block=16))
        >>> s.backward()
        >>> kernel.raw_lengthscale.grad.shape
        torch.Size([])
    """
    function = as_kernel_function(_NAME, kernel)
    _check_data(X, Y, grid)
    noise = torch.as_tensor(noise_var, dtype=X.dtype, device=X.device)
    if noise.dim() > 1 or (noise.dim() and len(noise) != len(X)):
        raise _exceptions.ShapeError(
            f"{_NAME}: noise_var must be a scalar or have n = {len(X)} entries, got {tuple(noise.shape)}."
        )
    return evaluate_on_grid(_NAME, grid, wrap_kernel_function(function, X), noise, Y)


def evaluate_on_grid(who: str, grid: ProcessGrid, kernel: BlockKernel, added: Tensor, Y: Tensor) -> Tensor:
    """Return ``mvn_nll`` for any ``BlockKernel``, without checks of the arguments.

    Args:
        who: Name of the caller, for messages.
        grid: The processes.
        kernel: Gives K, n x n.
        added: Added to the diagonal: a scalar, or (n,).
        Y: (n, k).
    """
    added = added.expand(len(Y))
    result: Tensor = _GridCriterion.apply(who, grid, kernel, added, Y, *kernel.points, *kernel.parameters)
    return result


class Factorisation(NamedTuple):
    """A covariance on a grid, factorised.

    Attributes:
        L: The blocks of the factor that this process holds.
        weights: (n, k), A⁻¹ Y, replicated.
        half_logdet: Σ log l_ii, replicated.
    """

    L: Blocks
    weights: Tensor
    half_logdet: Tensor


@torch.no_grad()
def factorise_on_grid(
    who: str, grid: ProcessGrid, kernel: BlockKernel, added: Tensor, Y: Tensor
) -> Factorisation:
    """Return the factor of K + diag(added), with added (n,), and A⁻¹ Y.

    Raises:
        NotPositiveDefiniteError, NonFiniteError: On all processes.
    """
    L = _allocate_square(grid, Y)
    fill_covariance(L, kernel, added)
    half_logdet = check_factor(who, grid.engine.potrf(L), L, grid)
    return Factorisation(L, solve_on_grid(grid, L, Y), half_logdet)


@torch.no_grad()
def solve_on_grid(grid: ProcessGrid, L: Blocks, Y: Tensor) -> Tensor:
    """Return (L Lᵀ)⁻¹ Y for a replicated Y (n, k), replicated."""
    layout = grid.make_layout(*Y.shape)
    rows, columns = layout.list_rows(Y.device)[:, None], layout.list_columns(Y.device)
    B = Blocks(layout, allocate_local(layout, Y.dtype, Y.device).copy_(Y[rows, columns]))
    grid.engine.potrs(L, B)
    whole = torch.zeros_like(Y, memory_format=torch.contiguous_format)
    whole[rows, columns] = B.local
    return grid.sum(whole)


class _GridCriterion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        who: str,
        grid: ProcessGrid,
        kernel: BlockKernel,
        added: Tensor,
        Y: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        n, k = Y.shape
        L, weights, half_logdet = factorise_on_grid(who, grid, kernel.detach(), added, Y)
        value = 0.5 * (Y * weights).double().sum() + k * half_logdet + 0.5 * n * k * _LOG_2_PI
        if any(ctx.needs_input_grad):
            ctx.grid, ctx.kernel, ctx.weights, ctx.factor = grid, kernel.detach(), weights, L
            ctx.gradients = None
        return value.to(Y.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
        _, _, _, needs_added, needs_Y, *needs = ctx.needs_input_grad
        if ctx.gradients is None and (needs_added or any(needs)):
            # The inverse takes the place of the factor. What is kept for a second backward is the gradient.
            factor, ctx.factor = ctx.factor, None
            ctx.gradients = _compute_gradients(ctx.grid, ctx.kernel, factor, ctx.weights, needs)
        found: list[Tensor | None] = [None] * (1 + len(needs)) if ctx.gradients is None else ctx.gradients
        of_added, *of_tensors = (None if g is None else g * gs for g in found)
        gY = ctx.weights * gs if needs_Y else None
        return None, None, None, of_added if needs_added else None, gY, *of_tensors


def _compute_gradients(
    grid: ProcessGrid, kernel: BlockKernel, L: Blocks, weights: Tensor, needs: list[bool]
) -> list[Tensor | None]:
    """Return the gradients of s with respect to the added diagonal, points and parameters, replicated."""
    k = weights.shape[1]
    grid.engine.potri(L)
    layout, inverse = L
    rows, columns = layout.list_rows(weights.device), layout.list_columns(weights.device)
    index, _, _ = layout.list_diagonal(weights.device)

    def compute_cotangent(panel: Panel) -> Tensor:
        left, right = weights[rows[panel.first_row :]], weights[columns[panel.columns]]
        return torch.addmm(inverse[panel.first_row :, panel.columns], left, right.mT, beta=k, alpha=-1.0)

    diagonal = 0.5 * (k * get_diagonal(L) - weights[index].square().sum(1))
    count = len(kernel.points)
    found = reduce_gradient(compute_cotangent, diagonal, layout, kernel, needs[:count], needs[count:])
    return _sum_gradients(grid, [found.diagonal, *found.points, *found.parameters])


def _sum_gradients(grid: ProcessGrid, gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Return the sums over all processes, in one message."""
    parts = [g for g in gradients if g is not None]
    total = grid.sum(torch.cat([part.flatten() for part in parts]))
    sums = iter(total.split([part.numel() for part in parts]))
    return [None if g is None else next(sums).view_as(g).to(g) for g in gradients]


def _allocate_square(grid: ProcessGrid, like: Tensor) -> Blocks:
    layout = grid.make_layout(len(like), len(like))
    return Blocks(layout, allocate_local(layout, like.dtype, like.device))


def wrap_kernel_function(function: KernelFunction, X: Tensor) -> BlockKernel:
    """Return a kernel of points X (n, d) for evaluation in blocks."""
    with torch.no_grad():
        prepared, flag = prepare_points(function, X, X)
    function = function if flag is not None and not bool(flag) else prepared
    return BlockKernel(
        functools.partial(_evaluate_matrix, function),
        functools.partial(_evaluate_diagonal, function),
        (X,),
        function.parameters,
    )


def _evaluate_matrix(
    function: KernelFunction, rows: tuple[Tensor, ...], columns: tuple[Tensor, ...], parameters: Any
) -> Tensor:
    return function.matrix(rows[0], columns[0], *parameters)


def _evaluate_diagonal(function: KernelFunction, points: tuple[Tensor, ...], parameters: Any) -> Tensor:
    return function.diagonal(points[0], *parameters)


def _check_data(X: Tensor, Y: Tensor, grid: ProcessGrid) -> None:
    tensors = {"X": X, "Y": Y}
    for name, value in tensors.items():
        if _checks.check_matrix(_NAME, name, value).dim() != 2:
            raise _exceptions.ShapeError(
                f"{_NAME}: {name} must be one matrix, got shape {tuple(value.shape)}."
            )
    _checks.check_same_kind(_NAME, **tensors)
    if len(X) != len(Y):
        raise _errors.shapes_do_not_fit(_NAME, tensors, "X must be n x d and Y n x k")
    if X.device.type != grid.device.type:
        raise _exceptions.DeviceError(
            f"{_NAME}: the grid computes on {grid.device.type}, and X is on {X.device.type}."
        )
