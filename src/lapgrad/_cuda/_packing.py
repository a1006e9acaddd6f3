"""extracttrian and maketrian on CUDA: one launch for all items. See ``kernels/packing.cu``."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cuda._items import Launch

_THREADS = 256
_TILE = 32

#: Rows that a group of threads takes one after the other while rows are short: a thread that moves one number
#: spends more time on finding it than on moving it.
_PASSES = 4
_SHORT = 128


def packing(v: Tensor, A: Tensor, offset: int, lower: bool) -> Launch:
    """The launch of v := the entries of a triangle of A; (items, 1, length) and (items, n, n)."""
    return _moving(A, v, offset, lower, unpacks=False)


def unpacking(A: Tensor, v: Tensor, offset: int, lower: bool) -> Launch:
    """The launch of A := zero, with v in a triangle; (items, n, n) and (items, 1, length)."""
    return _moving(A, v, offset, lower, unpacks=True)


def _moving(A: Tensor, v: Tensor, offset: int, lower: bool, unpacks: bool) -> Launch:
    items, n = A.shape[:2]
    skip = abs(offset)
    item, row, column = A.stride()
    v_item, _, v_step = v.stride()
    if offset > 0 or (offset == 0 and not lower):  # columns of an upper triangle are rows of A^T
        row, column = column, row
    operands = (A.data_ptr(), item, row, column, v.data_ptr(), v_item, v_step, n, skip)
    way = "true" if unpacks else "false"
    if n > _TILE and column > row:
        tiles = -(-n // _TILE)
        shared = _TILE * (_TILE + 1) * A.element_size()
        name = f"move_tiles<{{T}}, {way}>"
        return "packing", name, A, (items * tiles * tiles,), _THREADS, shared, *operands, tiles
    rows = items * (n if unpacks else n - skip)
    lanes = min(1 << max(n - 1, 0).bit_length(), _THREADS)
    passes = _PASSES if n <= _SHORT else 1
    grid = (-(-rows // (_THREADS // lanes * passes)),)
    return "packing", f"move_rows<{{T}}, {way}>", A, grid, _THREADS, 0, *operands, items, lanes, passes
