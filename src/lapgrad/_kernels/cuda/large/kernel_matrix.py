"""The launches that fill kernel matrices and differentiate them: see ``kernels/kernel_matrix.cu``."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime.items import Launch

_STEM = "kernel_matrix"
#: Constants of ``kernels/kernel_matrix.cu``.
FILL_ROWS, POINTS, STEP = 32, 128, 16
_WARP = 32
_LARGEST_GRID = 65535
#: Blocks of threads of a gradient: several per multiprocessor, so that all end at about the same time.
_BLOCKS = 2048


def count_row_blocks(F: Tensor) -> int:
    """Return how many blocks of threads share the rows of a matrix."""
    return -(-len(F) // POINTS)


def choose_slices(rows: int, columns: int) -> tuple[int, int]:
    """Return the number of slices of a matrix and their columns, for enough blocks of threads."""
    steps = max(1, -(-columns // STEP))
    slices = min(steps, max(1, _BLOCKS // max(1, -(-rows // POINTS))), _LARGEST_GRID)
    width = -(-steps // slices) * STEP
    return max(1, -(-columns // width)), width


def plan_fill(
    K: Tensor,
    formula: str,
    scalars: Tensor,
    F: Tensor,
    G: Tensor | None,
    noise: Tensor | None,
    lower_only: bool,
) -> Launch:
    """Return the launch of ``kernel_matrix``."""
    columns = F if G is None else G
    (n, d), m = F.shape, len(columns)
    assert all(points.is_contiguous() for points in (F, columns))
    assert K.stride(1) == 1
    grid = (-(-m // POINTS), min(-(-n // FILL_ROWS), _LARGEST_GRID))
    noise_step = noise.stride(0) if noise is not None and noise.dim() else 0
    return (
        _STEM, f"fill_matrix<{{T}}, {formula}>", K, grid, POINTS, FILL_ROWS * d * K.element_size(),
        K.data_ptr(), K.stride(0), F.data_ptr(), columns.data_ptr(), scalars.data_ptr(),
        _items.get_address(noise), noise_step, n, m, int(G is None), int(lower_only),
    )  # fmt: skip


def plan_gradient(
    of_rows: Tensor,
    sums: Tensor,
    formula: str,
    scalars: Tensor,
    F: Tensor,
    G: Tensor | None,
    gK: Tensor,
    slices: tuple[int, int],
    weight: float,
) -> Launch:
    """Return the launch of ``kernel_matrix_vjp`` for of_rows (slices, n, d) and sums (slices · blocks, p).

    The first is multiplied by ``weight``. G None: rows and columns are the same points; the gradient is that
    of the rows.
    """
    columns = F if G is None else G
    (n, d), m = F.shape, len(columns)
    assert all(points.is_contiguous() for points in (F, columns))
    assert gK.shape == (n, m)
    row, column = gK.stride()
    itemsize = of_rows.element_size()
    grid = (count_row_blocks(F), slices[0])
    shared = 8 * POINTS // _WARP + (STEP * d + POINTS * (STEP + 1)) * itemsize
    return (
        _STEM, f"differentiate_matrix<{{T}}, {formula}>", of_rows, grid, POINTS, shared,
        of_rows.data_ptr(), sums.data_ptr(), gK.data_ptr(), row, column, F.data_ptr(), columns.data_ptr(),
        scalars.data_ptr(), n, m, slices[1], int(G is None), weight,
    )  # fmt: skip
