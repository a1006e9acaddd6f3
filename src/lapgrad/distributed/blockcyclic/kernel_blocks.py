"""The covariance matrix on a grid of processes: each process computes its own blocks, and their gradient.

With A = K + diag(v), K_ij = k(x_i, x_j), only entries on and below the diagonal are computed. They are
computed in panels: some columns of this process, and its rows from the first of these columns on. The
diagonal is computed by itself, as kernels know it exactly.

Backward, each panel is computed once more and differentiated immediately, so that besides the matrix there is
memory for one panel and what autograd keeps of it. With H the cotangent of A, which is symmetric, an entry
below the diagonal counts twice: <H, dA> = Σ_i h_ii da_ii + 2 Σ_{i > j} h_ij da_ij.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.layout import Layout

#: Entries of a panel: four megabytes (float64) stay in the cache of a CPU; a GPU needs more to be busy.
_ELEMENTS = {"cpu": 1 << 19}
_ELEMENTS_ELSEWHERE = 1 << 25

Points = tuple[Tensor, ...]
Parameters = tuple[Tensor, ...]


class BlockKernel(NamedTuple):
    """A kernel as pure functions of points and parameters.

    Attributes:
        matrix: ``matrix(rows, columns, parameters)``, (n, m) for rows and columns of n and m points.
        diagonal: ``diagonal(points, parameters)``, (n,): k(x, x).
        points: Tensors (N, ·) that together describe all points.
        parameters: The other tensors that gradients are wanted for.
    """

    matrix: Callable[[Points, Points, Parameters], Tensor]
    diagonal: Callable[[Points, Parameters], Tensor]
    points: Points
    parameters: Parameters

    def detach(self) -> BlockKernel:
        """Return the kernel without the history of its tensors."""
        points, parameters = (
            tuple(t.detach() for t in tensors) for tensors in (self.points, self.parameters)
        )
        return BlockKernel(self.matrix, self.diagonal, points, parameters)


class Panel(NamedTuple):
    """A part of the local matrix: all local rows from ``first_row`` on, and some local columns."""

    first_row: int
    columns: slice


class KernelGradient(NamedTuple):
    """What the blocks of this process contribute to a gradient; the sum over all processes is the gradient.

    Attributes:
        points, parameters: Of the tensors of the kernel, in their order; None where it was not asked for.
        diagonal: (n,), of what is added to the diagonal.
    """

    points: tuple[Tensor | None, ...]
    parameters: tuple[Tensor | None, ...]
    diagonal: Tensor


def iterate_panels(layout: Layout, device: torch.device) -> Iterator[Panel]:
    """Yield panels that together have all entries of this process on and below the diagonal."""
    rows, columns = layout.local_shape
    indices = layout.list_columns().tolist()
    elements = _ELEMENTS.get(device.type, _ELEMENTS_ELSEWHERE)
    begin = 0
    while begin < columns:
        first_row = layout.count_rows_before(indices[begin])
        width = max(1, elements // max(1, rows - first_row))
        if first_row < rows:
            yield Panel(first_row, slice(begin, min(begin + width, columns)))
        begin += width


@torch.no_grad()
def fill_covariance(blocks: Blocks, kernel: BlockKernel, added: Tensor) -> None:
    """Set the blocks of this process to the lower triangle of K + diag(added); the rest is undefined.

    Args:
        blocks: Are overwritten.
        kernel: Gives K.
        added: (n,).
    """
    layout, local = blocks
    kernel = kernel.detach()
    rows, columns = layout.list_rows(local.device), layout.list_columns(local.device)
    for first_row, part in iterate_panels(layout, local.device):
        here, there = _take(kernel.points, rows[first_row:]), _take(kernel.points, columns[part])
        local[first_row:, part] = kernel.matrix(here, there, kernel.parameters)
    index, row, column = layout.list_diagonal(local.device)
    diagonal = kernel.diagonal(_take(kernel.points, index), kernel.parameters)
    local[row, column] = diagonal + added[index]


def reduce_gradient(
    cotangent: Callable[[Panel], Tensor],
    diagonal_cotangent: Tensor,
    layout: Layout,
    kernel: BlockKernel,
    needs_points: Sequence[bool],
    needs_parameters: Sequence[bool],
) -> KernelGradient:
    """Return the gradient of <H, A> with respect to the tensors of the kernel: the part of this process.

    Args:
        cotangent: Returns 2 H at the entries of a panel; those on and above the diagonal are not used.
        diagonal_cotangent: The entries of H on the diagonal that this process holds.
        layout: Of A.
        kernel: Gives K.
        needs_points, needs_parameters: Which gradients are wanted.
    """
    device = diagonal_cotangent.device
    kernel = kernel.detach()
    parameters = tuple(
        t.requires_grad_(need) for t, need in zip(kernel.parameters, needs_parameters, strict=True)
    )
    of_points = tuple(
        torch.zeros_like(t) if need else None for t, need in zip(kernel.points, needs_points, strict=True)
    )
    of_parameters = tuple(torch.zeros_like(t) if t.requires_grad else None for t in parameters)
    totals = [*of_points, *of_points, *of_parameters]
    index, _, _ = layout.list_diagonal(device)
    of_diagonal = diagonal_cotangent.new_zeros(layout.rows)
    of_diagonal[index] = diagonal_cotangent
    if any(total is not None for total in totals):
        rows, columns = layout.list_rows(device), layout.list_columns(device)
        for panel in iterate_panels(layout, device):
            at_rows, at_columns = rows[panel.first_row :], columns[panel.columns]
            g = cotangent(panel).masked_fill_(at_rows[:, None] <= at_columns, 0.0)
            here = _take_leaves(kernel.points, at_rows, needs_points)
            there = _take_leaves(kernel.points, at_columns, needs_points)
            with torch.enable_grad():
                block = kernel.matrix(here, there, parameters)
            places = [*[at_rows] * len(here), *[at_columns] * len(there), *[None] * len(parameters)]
            _accumulate(block, g, (*here, *there, *parameters), totals, places)
        here = _take_leaves(kernel.points, index, needs_points)
        with torch.enable_grad():
            diagonal = kernel.diagonal(here, parameters)
        places = [*[index] * len(here), *[None] * len(parameters)]
        _accumulate(diagonal, diagonal_cotangent, (*here, *parameters), [*of_points, *of_parameters], places)
    return KernelGradient(of_points, of_parameters, of_diagonal)


def _take(points: Points, index: Tensor) -> Points:
    return tuple(t[index] for t in points)


def _take_leaves(points: Points, index: Tensor, needs: Sequence[bool]) -> Points:
    return tuple(t[index].requires_grad_(need) for t, need in zip(points, needs, strict=True))


def _accumulate(
    values: Tensor,
    g: Tensor,
    leaves: Sequence[Tensor],
    totals: Sequence[Tensor | None],
    places: Sequence[Tensor | None],
) -> None:
    """Add the gradients of <values, g> with respect to leaves to totals, at the rows in ``places``."""
    if not values.requires_grad:
        return
    wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
    found = torch.autograd.grad(values, [leaves[i] for i in wanted], g, allow_unused=True)
    for i, gradient in zip(wanted, found, strict=True):
        total, place = totals[i], places[i]
        if gradient is None or total is None:
            continue
        if place is None:
            total.add_(gradient)
        else:
            total.index_add_(0, place, gradient)
