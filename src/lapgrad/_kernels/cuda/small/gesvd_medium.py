"""Singular value decompositions of batches of matrices with a side up to 128: LQ, then one-sided Jacobi.

See ``kernels/gesvd_medium.cu``. The results are the workspace: L lies where the vectors of the short side
go, and Q where those of the long side go. Beside them a matrix takes one number for each row, and a second
one for each 128 columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch
from lapgrad._kernels.cuda.small import gelqf_wide as _gelqf_wide
from lapgrad._kernels.cuda.small.gesvd import make_contiguous

#: Rows of a warp, and of one of its two blocks; steps of a round, each with as many rotations as a block has
#: rows. Eight rows of up to 128 numbers are half of the registers that a thread may have when 16 warps share
#: a multiprocessor.
_ROWS, _BLOCK, _STEPS = 8, 4, 7

#: (largest order of L, columns per lane); the columns of a lane are 32 apart.
_COLUMNS = ((64, 2), (96, 3), (128, 4))

#: Thread blocks that share a multiprocessor. Rows of float32 take half of the registers, so that two blocks
#: fit: one computes rotations while the other applies its own.
_TOGETHER = {torch.float64: 1, torch.float32: 2}

#: Threads of a block that turns signs, a warp for a row.
_THREADS = 256


def serves(A: Tensor) -> bool:
    """Return whether ``gesvd`` below takes a batch of this shape and type; strides do not matter."""
    k, needed, items = min(A.shape[-2:]), 0, A.shape[:-2].numel()
    if items == 0 or not 0 < k <= _thresholds.GELQF_SMALL or A.dtype not in _TOGETHER:
        return False
    if max(A.shape[-2:]) > _thresholds.GELQF_SMALL:
        needed = _gelqf_wide.count_bytes(k, A)
    return _items.has_block_memory(max(needed, _count_bytes(k, True, A)), A)


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts, but a failed item is not named."""
    cell, source = _items.get_status_cell(A), flatten_batch(A)
    if U is None or V is None:
        values = make_contiguous(S)
        for plan in plan_values(values.view(-1, values.shape[-1]), source, cell):
            _launch.launch(*plan)
        written: list[Tensor] = [values]
    else:
        written = [make_contiguous(result) for result in (S, U, V)]
        for plan in plan_decomposition(
            written[0], flatten_batch(written[1]), flatten_batch(written[2]), source, cell
        ):
            _launch.launch(*plan)
    for result, filled in zip((S, U, V), written, strict=False):
        if result is not None and filled is not result:
            result.copy_(filled)
    return _items.read_first_failure(cell)


def plan_decomposition(S: Tensor, U: Tensor, V: Tensor, A: Tensor, cell: Tensor | None) -> Iterator[Launch]:
    """The launches for A with one batch dimension and contiguous results, each to run before the next."""
    items, m, n = A.shape
    tall = m > n
    short, long = (V, U) if tall else (U, V)
    order = _sort_rows(long, A.mT if tall else A)
    yield from _plan_factorisation(short, long, True)
    yield _plan_rotations(S, short, order, short, long, cell, tall)
    if tall:
        rows = items * n
        grid = (-(-rows * 32 // _THREADS),)
        operands = (long.data_ptr(), short.data_ptr(), rows, m, n)
        yield "gesvd_medium", "turn_rows<{T}>", long, grid, _THREADS, 0, *operands


def plan_values(S: Tensor, A: Tensor, cell: Tensor | None) -> Iterator[Launch]:
    """Return the launches that compute S alone, each to run before the next."""
    source = A.mT if A.shape[-2] > A.shape[-1] else A
    items, k, n = source.shape
    together = min(items, max(1, _thresholds.GESVD_WORKSPACE // (k * n * A.element_size())))
    work = torch.empty((together, k, n), dtype=A.dtype, device=A.device)
    for begin in range(0, items, together):
        part = source[begin : begin + together]
        rows = work[: len(part)]
        order, L = _sort_rows(rows, part), rows[..., :k]
        yield from _plan_factorisation(L, rows, False)
        yield _plan_rotations(S[begin:], L, order, None, None, cell, False)


def _sort_rows(target: Tensor, A: Tensor) -> Tensor:
    """target := the rows of A, large ones first, so that the triangle is graded. Returns their numbers."""
    order = torch.linalg.vector_norm(A, float("inf"), dim=-1).argsort(-1, descending=True)
    torch.gather(A, 1, order[..., None].expand(A.shape), out=target)
    return order


def _plan_factorisation(L: Tensor, rows: Tensor, with_q: bool) -> Iterator[Launch]:
    """Return the launches after which L, and ``rows`` if wanted, hold the factors of ``rows``."""
    if rows.shape[-1] > _thresholds.GELQF_SMALL:
        yield from _gelqf_wide.plan_factorisation(L, rows, None, with_q)
    else:
        yield _gelqf_batch.plan_factorisation(L, rows if with_q else None, rows, True, None)


def _plan_rotations(
    S: Tensor,
    L: Tensor,
    order: Tensor,
    short: Tensor | None,
    long: Tensor | None,
    cell: Tensor | None,
    tall: bool,
) -> Launch:
    """Return the launch that decomposes L by rotations, after the factorisation A = L Q."""
    items, k, _ = L.shape
    vectors = short is not None
    wanted = "true" if vectors else "false"
    name = f"gesvd_of_factors<{{T}}, {_choose_columns(k)}, {wanted}, {_TOGETHER[L.dtype]}>"
    return (
        "gesvd_medium",
        name,
        L,
        (items,),
        32 * _count_warps(k),
        _count_bytes(k, vectors, L),
        L.data_ptr(),
        *L.stride(),
        order.data_ptr(),
        S.data_ptr(),
        get_address(short),
        get_address(long),
        get_address(cell),
        k,
        k if long is None else long.shape[-1],
        int(tall),
    )


def _count_warps(k: int) -> int:
    return -(-k // _ROWS)


def _choose_columns(k: int) -> int:
    return next(columns for most, columns in _COLUMNS if k <= most)


def _count_bytes(k: int, vectors: bool, like: Tensor) -> int:
    """Bytes of a block, as ``kernels/gesvd_medium.cu`` counts them."""
    warps = _count_warps(k)
    size = _ROWS * warps
    numbers = size * size if vectors else 0
    numbers += warps * _BLOCK * (32 * _choose_columns(k) + 2 * _STEPS) + 3 * size
    return numbers * like.element_size() + 4 * (size + warps)
