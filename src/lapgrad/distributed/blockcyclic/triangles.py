"""Triangles and diagonals of matrices that are spread over a grid, in the blocks of this process."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.layout import Layout, allocate_local


def clear_upper_triangle(blocks: Blocks) -> None:
    """Set the entries above the diagonal to 0, in place."""
    layout, local = blocks
    rows, columns = layout.list_rows(local.device)[:, None], layout.list_columns(local.device)
    local.masked_fill_(rows < columns, 0.0)


def get_diagonal(blocks: Blocks) -> Tensor:
    """Return the diagonal entries that this process holds."""
    _, row, column = blocks.layout.list_diagonal(blocks.local.device)
    return blocks.local[row, column]


def scale_diagonal(blocks: Blocks, factor: float) -> None:
    """Multiply the diagonal by a number, in place."""
    _, row, column = blocks.layout.list_diagonal(blocks.local.device)
    blocks.local[row, column] *= factor


def add_transpose(blocks: Blocks, grid: ProcessGrid) -> Blocks:
    """Return A + Aᵀ."""
    result = allocate_blocks(blocks.layout.transpose(), blocks.local)
    grid.engine.transpose(blocks, result)
    result.local.add_(blocks.local)
    return result


def mirror_lower_triangle(blocks: Blocks, grid: ProcessGrid) -> Blocks:
    """Return the symmetric matrix with this lower triangle; the upper one is cleared."""
    clear_upper_triangle(blocks)
    diagonal = get_diagonal(blocks)
    result = add_transpose(blocks, grid)
    _, row, column = blocks.layout.list_diagonal(blocks.local.device)
    result.local[row, column] = diagonal
    return result


def allocate_blocks(layout: Layout, like: Tensor) -> Blocks:
    """Return undefined blocks with the dtype and device of a tensor."""
    return Blocks(layout, allocate_local(layout, like.dtype, like.device))


def check_factor(who: str, info: int, L: Blocks, grid: ProcessGrid) -> Tensor:
    """Return the sum of the logarithms of the diagonal of a Cholesky factor, or raise on all processes.

    Args:
        who: Name of the function, for messages.
        info: What ``Engine.potrf`` has returned.
        L: The factor.
        grid: The processes.

    Raises:
        NotPositiveDefiniteError: Names the leading minor that is not positive.
        NonFiniteError: Names the first pivot that is NaN or infinite.
    """
    if info > 0:
        raise _exceptions.NotPositiveDefiniteError(
            f"{who}: A is not positive definite: its leading minor of order {info} is not positive. Add "
            f"jitter to the diagonal.",
            (),
            info,
        )
    total = grid.sum(get_diagonal(L).double().log().sum())
    if bool(total.isfinite()):
        return total
    index, row, column = L.layout.list_diagonal(L.local.device)
    bad = index[~L.local[row, column].isfinite()]
    # Processes exchange sums only, so each has a place of its own in the sum for the first bad pivot that it
    # holds.
    first = torch.zeros(grid.size, dtype=torch.float64, device=L.local.device)
    first[grid.rank] = bad[0] + 1 if len(bad) else L.layout.rows + 1
    pivot = int(grid.sum(first).min())
    raise _exceptions.NonFiniteError(
        f"{who}: A contains NaN or infinity: pivot {pivot} is not finite. Check the input.", (), pivot
    )
