"""pivoted_cholesky: a low rank factor of a kernel matrix that is never formed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lapgrad import _exceptions, gemm, potrf, trsm
from lapgrad.fused import KernelFunction
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.models import _checks

_NAME = "pivoted_cholesky"

#: Numbers of a chunk of the kernel matrix: 4 MB in float64.
_CHUNK = 2**19
#: The gradient of a factor with more numbers than this keeps nothing but the factor.
_LARGE = 2**22
#: The least number of candidates for the next pivots. The variances of all other points are updated once per
#: block.
_CANDIDATES = 2048
#: A block with fewer pivots than this is followed by one with twice as many candidates.
_SHORT_BLOCK = 16


class KernelFactor(NamedTuple):
    """Low rank factor of a kernel matrix: what ``pivoted_cholesky`` returns.

    Attributes:
        L: (n, r), with K = L L^T up to ``residual``; rows in the order of the points.
        pivots: int64 (r): the points that were chosen, the first one first.
        residual: (n): the diagonal of K - L L^T, the variance of f at each point given f at the pivots.
    """

    L: Tensor
    pivots: Tensor
    residual: Tensor


def pivoted_cholesky(
    kernel: KernelFunction | nn.Module, X: Tensor, *, rank: int, tol: float | None = None
) -> KernelFactor:
    """Low rank factor of a kernel matrix that is never formed: K = L L^T + rest, K = kernel(X).

    Each step chooses the point with the largest variance given f at those chosen before, which is the pivot
    that ``lapgrad.pstrf`` takes: a good set of inducing inputs (Burt, Rasmussen and van der Wilk 2020,
    "Convergence of sparse variational inference in Gaussian processes regression"). Only rank columns of K
    are computed.

    Args:
        kernel: A ``torch.nn.Module`` with ``forward(A, B)`` and ``diag(A)``, or a ``fused.KernelFunction``.
        X: (n, d) or (n,), float32 or float64.
        rank: How many pivots at most.
        tol: No point whose variance is not larger becomes a pivot; None: n times the rounding unit times
            the largest entry of the diagonal.

    Returns:
        The named tuple (L, pivots, residual): L (n, r) with rows in the order of X, which may be
        column-major, the points that were chosen (r), and the diagonal of K - L L^T (n). r is ``rank`` or
        the number of pivots larger than ``tol``.

    Raises:
        NonFiniteError: X, or what the kernel returns, has a NaN or an infinity.
        OptionError: ``rank`` is negative, ``tol`` is not a number >= 0, or ``kernel`` is not one.
        DTypeError, ShapeError: ``X`` is not a float32 or float64 matrix.

    Gradient:
        For X and the parameters of the kernel, for fixed pivots: that of L = K_fu Lu^-T, Lu Lu^T = K_uu with
        the pivots as inducing inputs u. Saves K_fu, Lu and L; of a factor of more than 32 MB L alone, and has
        no forward mode then. Without a gradient nothing is saved.

    Memory:
        n rank numbers for L, and chunks of a few MB; with a gradient, for more than 32 MB, too.

    Cost:
        n rank^2 flops and n rank evaluations of the kernel, most of it in matrix products: of the points,
        only those with the largest variances are brought up to date after each pivot, because a variance
        never grows; the others once they may be the next pivot.

    Example:
        >>> import torch, lapgrad
        >>> from lapgrad.models.kernels import RBF, pivoted_cholesky
        >>> X = torch.linspace(0, 1, 5, dtype=torch.float64)
        >>> factor = pivoted_cholesky(RBF(lengthscale=0.5), X, rank=3)
        >>> factor.pivots.tolist()
        [0, 4, 2]
    """
    X = _checks.check_inputs(_NAME, X)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise _exceptions.OptionError(f"{_NAME}: rank must be a number >= 0, got {rank!r}.")
    if tol is not None and not tol >= 0.0:
        raise _exceptions.OptionError(f"{_NAME}: tol must be None or a number >= 0, got {tol!r}.")
    function = _kernel_function.as_kernel_function(_NAME, kernel)
    with torch.no_grad():
        factor = _kernel_function.call_with_parameters(
            function, X, lambda: _Selection(function, X, min(rank, len(X)), tol).run()
        )
    tensors = (X, *function.parameters)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return factor
    if factor.L.numel() > _LARGE:
        L, residual = _LargeFactor.apply(function, factor, *tensors)
        return KernelFactor(L, factor.pivots, residual)
    return _differentiate(function, X, factor.pivots)


class _LargeFactor(torch.autograd.Function):
    """A factor whose gradient is computed by chunks of rows, so that nothing but L is kept.

    With G = gL - 2 gres L and L_f = K_fu Lu^-T for all rows but the pivots, whose rows of L are Lu,

        gK_fu = G_f Lu^-1,    gLu = tril(G_u - gK_fu^T L_f)
    """

    @staticmethod
    def forward(
        ctx: Any, kernel: KernelFunction, factor: KernelFactor, X: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.kernel, ctx.pivots = kernel, factor.pivots
        ctx.save_for_backward(factor.L, X, *parameters)
        return factor.L, factor.residual

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        L, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives: by operators, with all that they keep
            X, *parameters = tensors
            kernel = KernelFunction(ctx.kernel.matrix, ctx.kernel.diagonal, tuple(parameters))
            again = _differentiate(kernel, X, ctx.pivots)
            wanted = [tensor for tensor in tensors if tensor.requires_grad]
            found = iter(
                torch.autograd.grad(
                    (again.L, again.residual), wanted, grads, create_graph=True, allow_unused=True
                )
            )
            return None, None, *(next(found) if tensor.requires_grad else None for tensor in tensors)
        sums = _GradientSums(ctx.kernel, tensors, ctx.needs_input_grad[2:])
        return None, None, *sums.run(L, ctx.pivots, *grads)


class _GradientSums:
    """Gradients with respect to points and parameters, summed over chunks of rows.

    Args:
        kernel: The kernel.
        tensors: X (n, d), and the parameters.
        is_wanted: Which of them need a gradient.
    """

    def __init__(self, kernel: KernelFunction, tensors: Sequence[Tensor], is_wanted: Sequence[bool]) -> None:
        self._kernel, self._X, self._is_wanted = kernel, tensors[0], is_wanted
        self._parameters = [
            tensor.detach().requires_grad_(wanted)
            for tensor, wanted in zip(tensors[1:], is_wanted[1:], strict=True)
        ]
        self._sums = [
            torch.zeros_like(tensor) if wanted else None
            for tensor, wanted in zip(tensors, is_wanted, strict=True)
        ]

    def run(self, L: Tensor, pivots: Tensor, gL: Tensor, gres: Tensor) -> list[Tensor | None]:
        """Return the gradients for those of L (n, r) and of the residual (n)."""
        Lu, Z = L[pivots], self._X[pivots]
        is_pivot = torch.zeros(len(L), dtype=torch.bool, device=L.device)
        is_pivot[pivots] = True
        gLu = gL[pivots] - 2.0 * gres[pivots, None] * Lu
        step = max(1, _CHUNK // max(1, len(pivots)))
        for start in range(0, len(L), step):
            part = slice(start, start + step)
            G = gL[part] - 2.0 * gres[part, None] * L[part]
            gK = trsm(Lu, G.masked_fill(is_pivot[part, None], 0.0), rightside=True)
            gLu.addmm_(gK.mT, L[part], alpha=-1.0)
            self._add(pivots, part, lambda Z, C, *p: self._kernel.matrix(Z, C, *p), Z, gK.mT)
            self._add(pivots, part, lambda Z, C, *p: self._kernel.diagonal(C, *p), Z, gres[part])
        nothing = slice(0, 0)
        self._add(pivots, nothing, lambda Z, C, *p: potrf(self._kernel.matrix(Z, Z, *p)), Z, gLu.tril())
        return self._sums

    def _add(
        self, pivots: Tensor, part: slice, function: Callable[..., Tensor], Z: Tensor, cotangent: Tensor
    ) -> None:
        """Add the gradient of function(Z, X[part], *parameters)."""
        of_points = self._is_wanted[0]
        Z, C = (points.detach().requires_grad_(of_points) for points in (Z, self._X[part]))
        inputs = [tensor for tensor in (Z, C, *self._parameters) if tensor.requires_grad]
        with torch.enable_grad():
            value = function(Z, C, *self._parameters)
        if not value.requires_grad:
            return
        found = list(torch.autograd.grad(value, inputs, cotangent.to(value.dtype), allow_unused=True))
        gX = self._sums[0]
        if gX is not None:
            gZ, gC = found.pop(0), found.pop(0)
            if gZ is not None:
                gX.index_add_(0, pivots, gZ)
            if gC is not None:
                gX[part] += gC
        for own in self._sums[1:]:
            if own is not None:
                gradient = found.pop(0)
                if gradient is not None:
                    own += gradient


def _differentiate(kernel: KernelFunction, X: Tensor, pivots: Tensor) -> KernelFactor:
    """L = K_fu Lu^-T and the residual diag(K) - sum L^2 as functions of X and of the parameters."""
    Z = X[pivots]
    Lu = potrf(kernel.matrix(Z, Z, *kernel.parameters))
    L = trsm(Lu, kernel.matrix(Z, X, *kernel.parameters)).mT
    # A term that is independent for each point (White) appears in K_uu only.
    L = L.index_put((pivots,), Lu)
    return KernelFactor(L, pivots, kernel.diagonal(X, *kernel.parameters) - L.square().sum(-1))


class _Selection:
    """The greedy choice of pivots of a kernel matrix.

    Args:
        kernel: The kernel; called without gradients.
        X: (n, d).
        most: How many pivots at most.
        tol: See ``pivoted_cholesky``.
    """

    def __init__(self, kernel: KernelFunction, X: Tensor, most: int, tol: float | None) -> None:
        self._kernel, self._X, self._most = kernel, X, most
        #: Variances given all pivots of the blocks that are done: later ones only make them smaller.
        self._variances = kernel.diagonal(X, *kernel.parameters).to(X.dtype).clone()
        self._check_finite(self._variances)
        largest = float(self._variances.max()) if len(X) else 0.0
        self._tol = 0.5 * torch.finfo(X.dtype).eps * len(X) * largest if tol is None else tol
        #: Columns of L as rows: a column is written at once, and a block of columns is a product of matrices.
        self._columns = X.new_empty((most, len(X)))
        self._pivots: list[int] = []

    def run(self) -> KernelFactor:
        """Return the factor."""
        candidates = _CANDIDATES
        while len(self._pivots) < self._most:
            found = self._choose_block(candidates)
            if not found:
                break
            if found < _SHORT_BLOCK:
                candidates = min(2 * candidates, max(_CANDIDATES, len(self._X) // 16))
        pivots = torch.tensor(self._pivots, dtype=torch.int64, device=self._X.device)
        return KernelFactor(self._columns[: len(self._pivots)].mT, pivots, self._variances)

    def _choose_block(self, candidates: int) -> int:
        """Choose pivots among the points with the largest variances, and return how many.

        Variances only decrease, so a point outside has at most its variance before this block: while the best
        candidate has more than all of these, it is the best of all points.
        """
        done, room = len(self._pivots), self._most - len(self._pivots)
        points, outside = self._choose_candidates(candidates)
        left, C = self._variances[points], self._X[points]
        columns = C.new_empty((min(self._most, done + min(room, len(C))), len(C)))
        columns[:done] = self._columns[:done, points]
        chosen: list[int] = []
        while len(chosen) < min(room, len(C)):
            place = int(left.argmax())
            variance = float(left[place])
            if not variance > self._tol or (chosen and variance < outside):
                break
            k = done + len(chosen)
            column = self._kernel.matrix(C[place : place + 1], C, *self._kernel.parameters)[0]
            column = torch.addmv(column, columns[:k].mT, columns[:k, place], alpha=-1.0) / variance**0.5
            column[place] = variance**0.5
            columns[k] = column
            left -= column.square()
            left[place] = 0.0
            chosen.append(place)
        if chosen:
            places = torch.tensor(chosen, device=points.device)
            self._update(points[places], columns[: done + len(chosen), places])
        return len(chosen)

    def _choose_candidates(self, count: int) -> tuple[Tensor, float]:
        """Return up to ``count`` points with the largest variances, and the largest variance outside."""
        if count >= len(self._X):
            return torch.arange(len(self._X), device=self._X.device), -1.0
        outside = self._variances.topk(count + 1).values[-1]
        points = (self._variances > outside).nonzero().squeeze(-1)
        if not len(points):  # all are equal: the first ones
            points = (self._variances == outside).nonzero().squeeze(-1)[:count]
        return points, float(outside)

    def _update(self, pivots: Tensor, rows: Tensor) -> None:
        """Compute the columns of a block for all points: L_b = (K_b - L_done rows_done^T) rows_b^-T."""
        done, width = len(self._pivots), len(pivots)
        Z, before, triangle = self._X[pivots], rows[:done].mT, rows[done:].mT.tril()
        for start in range(0, len(self._X), max(1, _CHUNK // width)):
            part = slice(start, start + max(1, _CHUNK // width))
            K = self._kernel.matrix(Z, self._X[part], *self._kernel.parameters)
            if done:
                K = gemm(before, self._columns[:done, part], K, alpha=-1.0)
            block = self._columns[done : done + width, part]
            block.copy_(trsm(triangle, K))
            self._variances[part] -= block.square().sum(0)
        self._columns[done : done + width, pivots] = triangle.mT
        self._variances.clamp_min_(0.0)
        self._variances[pivots] = 0.0
        self._pivots += pivots.tolist()
        self._check_finite(self._variances)

    def _check_finite(self, variances: Tensor) -> None:
        if not variances.isfinite().all():
            point = int((~variances.isfinite()).int().argmax())
            raise _exceptions.NonFiniteError(
                f"{_NAME}: the kernel gives NaN or infinity at point {point} of X."
            )
