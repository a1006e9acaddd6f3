"""Eigenvalues and eigenvectors of small symmetric matrices: own kernel, see ``kernels/syevd_batch.cu``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._cuda import _failure, _launch

#: The largest order: beyond it the memory of a multiprocessor holds too few matrices to hide latencies.
LARGEST = 64

#: (largest order, lanes for one matrix, threads of a block). A lane has one column, at order 64 two. Blocks
#: are as large as it takes to fill a multiprocessor with at most 32 blocks, and no larger: one is over when
#: the slowest of its matrices is.
_KINDS = ((8, 8, 128), (16, 16, 128), (32, 32, 64), (64, 32, 32))

#: What the kernel reports, as ``_fallback`` does.
CODES = {1: -1, 2: 1}


def serves(A: Tensor) -> bool:
    """Whether the kernel takes these matrices; their strides do not matter."""
    return 0 < A.shape[-1] <= LARGEST and A.numel() > 0


def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """As ``_fallback.syevd``, for what is served."""
    values, rows = _contiguous(eigenvalues), None if U is None else _contiguous(U)
    reported = _failure.cell(A)
    source = A.reshape(-1, *A.shape[-2:])
    _launch.launch(*geometry(values, rows, source, lower, reported))
    if values is not eigenvalues:
        eigenvalues.copy_(values)
    if U is not None and rows is not None and rows is not U:
        U.copy_(rows)
    failure = _failure.first(reported)
    return None if failure is None else (failure[0], CODES[failure[1]])


def geometry(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool, reported: Tensor) -> Any:
    """What ``_launch.launch`` takes, for A with one batch dimension and contiguous results."""
    items, n, _ = A.shape
    order, lanes, threads = next(kind for kind in _KINDS if n <= kind[0])
    matrices = threads // lanes
    step, rows, columns = A.stride()
    return (
        "syevd_batch",
        f"syevd<{{T}}, {order}, {lanes}, {'false' if U is None else 'true'}>",
        A,
        (-(-items // matrices),),
        threads,
        matrices * (n * (n | 1) + 5 * n) * A.element_size(),
        A.data_ptr(),
        step,
        *((rows, columns) if lower else (columns, rows)),
        eigenvalues.data_ptr(),
        0 if U is None else U.data_ptr(),
        reported.data_ptr(),
        items,
        n,
    )


def _contiguous(result: Tensor) -> Tensor:
    """``result`` itself if the kernel can write into it, else memory to be copied from."""
    return (
        result if result.is_contiguous() else torch.empty_like(result, memory_format=torch.contiguous_format)
    )
