"""Gaussian process regression with the covariance of observations spread over a grid of processes.

At new inputs with K* = k(X, X_new) and S = A⁻¹ K*, the explained part of the covariance is P = K*ᵀ S, with
dP = dK*ᵀ S + Sᵀ dK*. One solve gives value and gradient. K* and S are spread over the grid like A.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.kernel_blocks import BlockKernel, Parameters, Points
from lapgrad.distributed.blockcyclic.layout import allocate_local
from lapgrad.distributed.blockcyclic.matrix import collect, spread
from lapgrad.distributed.blockcyclic.mvn_nll import (
    evaluate_on_grid,
    factorise_on_grid,
    wrap_kernel_function,
)
from lapgrad.fused._sgp.kernel_function import as_kernel_function
from lapgrad.models._parameters import ParametrisedModule
from lapgrad.models.kernels._blocks import fill_structure, flatten_tree, get_structure
from lapgrad.models.kernels.base import Kernel, get_scalars_like

_NAME = "GPRegression"


class WithGrid(ParametrisedModule):
    """A mixin for models whose covariance can be spread over a grid of processes.

    Attributes:
        distributed: The grid; None: this process has all of the covariance.
    """

    X: Tensor
    y: Tensor
    _grid: ProcessGrid | None = None

    @property
    def distributed(self) -> ProcessGrid | None:
        """The grid of processes over which the covariance of observations is spread; None: one process."""
        return self._grid

    @distributed.setter
    def distributed(self, grid: ProcessGrid | None) -> None:
        who = type(self).__name__
        if grid is not None:
            if not isinstance(grid, ProcessGrid):
                raise _exceptions.OptionError(
                    f"{who}: distributed must be a ProcessGrid of lapgrad.distributed.make_grid, got "
                    f"{type(grid).__name__}."
                )
            if grid.device.type != self.X.device.type:
                raise _exceptions.DeviceError(
                    f"{who}: the grid computes on {grid.device.type}, and the data are on "
                    f"{self.X.device.type}."
                )
            grid.check_replicated(who, {"X": self.X, "y": self.y, **dict(self.named_parameters())})
        self._grid = grid
        self.clear_cache()

    def clear_cache(self) -> None:
        """Free the cached posterior."""

    def agree_on_parameters(self) -> None:
        """Set the parameters to those of the first process of the grid, if there is one."""
        if self._grid is not None:
            self._grid.copy_from_first(list(self.parameters()))

    def refuse_on_grid(self, function: str) -> None:
        """Raise if the covariance is spread over a grid, for functions that need all of it in one place."""
        if self._grid is not None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}.{function} needs the whole covariance in one process, and it is "
                f"spread over {self._grid.size}. Set model.distributed = None if one process can hold it."
            )


def evaluate_criterion(
    grid: ProcessGrid, kernel: Kernel, inputs: Tensor, added: Tensor, residuals: Tensor
) -> Tensor:
    """Return -log N(residuals | 0, kernel(inputs) + diag(added)), with its gradient: a scalar."""
    return evaluate_on_grid(_NAME, grid, make_block_kernel(kernel, inputs), added, residuals)


class GridPosterior(NamedTuple):
    """The blocks of the factor of A on a grid, and weights = A⁻¹ r, (n, k), on every process."""

    grid: ProcessGrid
    L: Blocks
    weights: Tensor

    def project(self, kernel: Kernel, inputs: Tensor, X_new: Tensor, full_cov: bool) -> tuple[Tensor, Tensor]:
        """Return K*ᵀ A⁻¹ r (m, k), and K*ᵀ A⁻¹ K*: its diagonal (m,), or with ``full_cov`` the matrix (m, m).

        The same on all processes, and differentiable with respect to ``X_new``.

        Args:
            kernel: Gives K* = kernel(inputs, X_new).
            inputs: (n, d), of the observations.
            X_new: (m, d).
            full_cov: Return the whole matrix.
        """
        m, k = len(X_new), self.weights.shape[1]
        # With all columns in one column of processes, products of columns need sums over processes only.
        layout = self.grid.make_layout(len(inputs), m, column_block=max(1, m) if full_cov else None)
        rows, columns = layout.list_rows(X_new.device), layout.list_columns(X_new.device)
        points = spread(X_new, self.grid)
        cross = _evaluate_cross(kernel, inputs[rows], points[columns])
        S = Blocks(layout, allocate_local(layout, cross.dtype, cross.device).copy_(cross.detach()))
        self.grid.engine.potrs(self.L, S)
        mean = cross.new_zeros(m, k).index_add(0, columns, cross.mT @ self.weights[rows])
        if full_cov:
            P = cross.new_zeros(m, m)
            P = P + cross.mT @ S.local if len(columns) else P
            held = P.detach()
            explained = P + P.mT - 0.5 * (held + held.mT)
        else:
            per_column = (2.0 * cross - cross.detach()).mul(S.local).sum(0)
            explained = cross.new_zeros(m).index_add(0, columns, per_column)
        own = torch.cat([mean.flatten(), explained.flatten()])
        if torch.is_grad_enabled() and X_new.requires_grad:
            # Backward adds up gradients of ``points``, in which every process must take part: also one that
            # has no rows or columns, or a kernel that does not depend on them.
            own = own + 0.0 * points.sum()
        both = collect(own, self.grid)
        return both[: m * k].view(m, k), both[m * k :].view(explained.shape)


def factorise_covariance(
    grid: ProcessGrid, kernel: Kernel, inputs: Tensor, added: Tensor, residuals: Tensor
) -> GridPosterior:
    """Return the posterior of a process with covariance kernel(inputs) + diag(added) of the observations."""
    with torch.no_grad():
        added = added.expand(len(inputs))
        found = factorise_on_grid(_NAME, grid, make_block_kernel(kernel, inputs), added, residuals)
    return GridPosterior(grid, found.L, found.weights)


def make_block_kernel(kernel: Kernel, inputs: Tensor) -> BlockKernel:
    """Return a kernel for evaluation in blocks.

    The points of a pure kernel are its features, which are computed once. Those of other kernels are computed
    again for every panel.
    """
    if not kernel.pure:
        return wrap_kernel_function(as_kernel_function(_NAME, kernel), inputs)
    scalars, features = get_scalars_like(kernel, inputs), kernel.features(inputs)
    of_scalars, of_features = get_structure(scalars), get_structure(features)
    near: Any
    near, flag = kernel.find_shortcuts(inputs, inputs)
    if flag is not None and not bool(flag):
        near = frozenset()

    def evaluate_matrix(rows: Points, columns: Points, parameters: Parameters) -> Tensor:
        F, G = (fill_structure(of_features, iter(points)) for points in (rows, columns))
        return kernel.evaluate_matrix(fill_structure(of_scalars, iter(parameters)), F, G, near)

    def evaluate_diagonal(points: Points, parameters: Parameters) -> Tensor:
        F = fill_structure(of_features, iter(points))
        return kernel.diagonal(fill_structure(of_scalars, iter(parameters)), F)

    return BlockKernel(
        evaluate_matrix, evaluate_diagonal, tuple(flatten_tree(features)), tuple(flatten_tree(scalars))
    )


def _evaluate_cross(kernel: Kernel, rows: Tensor, columns: Tensor) -> Tensor:
    if not (len(rows) and len(columns)):
        return rows.new_zeros(len(rows), len(columns))
    return kernel(rows, columns)
