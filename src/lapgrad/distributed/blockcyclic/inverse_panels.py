"""The inverse of a matrix from its Cholesky factor by solves alone, for engines without potri.

With some columns J = {j, j + 1, ...} at a time:

    (A⁻¹)[j:, J] = (L[j:, j:] L[j:, j:]ᵀ)⁻¹ I[:, J]

because rows of A⁻¹ from j on in these columns depend on L[j:, j:] alone. That is the lower triangle of A⁻¹,
in the 2/3 n³ flops of potri. Columns J of L are needed no more afterwards, so the inverse overwrites the
factor, with memory for one panel of columns. Where j is a multiple of the block size times the rows and the
columns of the grid, L[j:, j:] is a matrix in blocks on the same grid: a later address in the memory of each
process.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.layout import allocate_local


def invert_by_panels(L: Blocks, solve: Callable[[Blocks, Blocks], None], columns: int) -> None:
    """Overwrite a Cholesky factor L of A by the lower triangle of A⁻¹.

    Args:
        L: In square blocks.
        solve: ``solve(L, B)`` overwrites B by (L Lᵀ)⁻¹ B. Its first argument is a part of ``L``, whose
            columns are not next to each other in memory.
        columns: How many are solved for at a time, about.
    """
    layout, local = L
    step = layout.row_block * math.lcm(layout.grid_rows, layout.grid_columns)
    width = step * max(1, columns // step)
    for begin in range(0, layout.rows, width):
        row, column = begin // layout.grid_rows, begin // layout.grid_columns
        left = layout.rows - begin
        trailing = layout.resize(left, left, layout.row_block, layout.column_block)
        panel = layout.resize(left, min(width, left), layout.row_block, layout.column_block)
        solution = allocate_local(panel, local.dtype, local.device).zero_()
        _, at_row, at_column = panel.list_diagonal(local.device)
        solution[at_row, at_column] = 1.0
        solve(Blocks(trailing, local[row:, column:]), Blocks(panel, solution))
        local[row:, column : column + solution.shape[1]] = solution
