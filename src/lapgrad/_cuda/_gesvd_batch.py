"""Singular value decompositions of small matrices: own kernel, see ``kernels/gesvd_batch.cu``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._cuda import _failure, _launch

#: The largest number of rows and of columns.
LARGEST = 64

#: (rows, columns, lanes that share a pair of rows, threads of a block), for at most as many rows and columns,
#: the shorter side counted as rows. A thread has columns / lanes numbers of each of two rows, and of their
#: rotations rows / lanes: few enough for its registers, enough to pay for a sum over the lanes. Up to 16 rows
#: rows / 2 * lanes threads are at most one warp, which needs no barriers, and blocks have several matrices.
_KINDS = (
    (8, 8, 2, 64),
    (8, 64, 8, 64),
    (16, 16, 4, 64),
    (16, 64, 4, 64),
    (32, 32, 4, 64),
    (32, 64, 8, 128),
    (64, 64, 8, 256),
)


def serves(A: Tensor) -> bool:
    """Whether the kernel takes these matrices; their strides do not matter."""
    return A.numel() > 0 and max(A.shape[-2:]) <= LARGEST


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """As ``_fallback.gesvd``, for what is served."""
    if U is None or V is None:
        U = V = None
    results = [result for result in (S, U, V) if result is not None]
    written = [_contiguous(result) for result in results]
    values, left, right = written if len(written) == 3 else (written[0], None, None)
    reported = _failure.cell(A)
    _launch.launch(*geometry(values, left, right, A.reshape(-1, *A.shape[-2:]), reported))
    for result, filled in zip(results, written, strict=True):
        if filled is not result:
            result.copy_(filled)
    return _failure.first(reported)


def geometry(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor, reported: Tensor) -> Any:
    """What ``_launch.launch`` takes, for A with one batch dimension and contiguous results."""
    items, m, n = A.shape
    k, width, tall = min(m, n), max(m, n), m > n
    rows, columns, lanes, threads = next(kind for kind in _KINDS if k <= kind[0] and width <= kind[1])
    team = rows // 2 * lanes
    matrices, vectors = threads // team, U is not None and V is not None
    exchanged = 2 * team * (columns + (rows if vectors else 0)) // lanes if team > 32 else 0
    step, row, column = A.stride()
    short, long = (V, U) if tall else (U, V)
    return (
        "gesvd_batch",
        f"gesvd<{{T}}, {rows}, {columns}, {lanes}, {'true' if vectors else 'false'}>",
        A,
        (-(-items // matrices),),
        threads,
        (matrices * (rows + max(rows, columns)) + exchanged) * A.element_size(),
        A.data_ptr(),
        step,
        *((column, row) if tall else (row, column)),
        S.data_ptr(),
        short.data_ptr() if short is not None else 0,
        long.data_ptr() if long is not None else 0,
        reported.data_ptr(),
        items,
        k,
        width,
        int(tall),
    )


def _contiguous(result: Tensor) -> Tensor:
    """``result`` itself if the kernel can write into it, else memory to be copied from."""
    if result.is_contiguous():
        return result
    return torch.empty_like(result, memory_format=torch.contiguous_format)
