"""kalman_nll of models with up to 32 states and 16 observations: one block for each series.

``kernels/kalman_nll_steps.cuh`` has the steps.

The adjoint walks back over predicted moments: n (n + 3) / 2 numbers per step. They are kept for one segment
of the steps at a time, and at the start of each segment, from where the filter runs again. A gradient that
series share is summed over the steps of each series, and then over the series in a fixed order: the result is
the same to the last bit in every run. Where the moments or these sums of all series would take more than
``thresholds.KALMAN_WORKSPACE`` bytes, the series are served in chunks, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

#: Threads of a block by states, rounded up. Steps depend on each other, so the latency of one step counts. Up
#: to 8 states one warp computes a step, two elements of a matrix per lane, because its barriers cost least.
#: Above that, fewer elements per thread are worth the barriers of a block.
THREADS = {4: 32, 8: 32, 16: 128, 32: 256}

#: Which operands have a dimension of time: y, A, B, Q, R, m, P, c.
_HAS_TIMES = (True, True, True, True, True, False, False, True)

# How a failure is written into one number: see report_step in the kernel.
_CODES, _STEPS = 1 << 6, 1 << 28

Results = Sequence[Tensor | None]


def serves(y: Tensor, A: Tensor) -> bool:
    """Whether these kernels take a model of this shape and type."""
    series, times, p = y.shape
    n = A.shape[-1]
    if not (0 < n <= _thresholds.KALMAN_STATES and 0 < p <= _thresholds.KALMAN_OBSERVATIONS):
        return False
    if not (0 < times < _STEPS and 0 < series < 1 << 29) or y.dtype not in (torch.float32, torch.float64):
        return False
    return _items.has_block_memory(_count_bytes(n, p, y, adjoint=True), y)


def compute_vjp(
    launch: Callable[..., None],
    gs: Tensor,
    results: Results,
    model: Sequence[Tensor],
    workspace: int = _thresholds.KALMAN_WORKSPACE,
) -> None:
    """Results := the gradients, in as many launches as the limit on the workspace makes necessary."""
    if not all(result is None or result.is_contiguous() for result in results):
        dense_results = [
            None if result is None else result.new_empty(result.shape) for result in results
        ]  # the kernel writes row by row
        compute_vjp(launch, gs, dense_results, model, workspace)
        for result, found in zip(results, dense_results, strict=True):
            if result is not None and found is not None:
                result.copy_(found)
        return
    series = model[0].shape[0]
    segment, chunk = _divide_work(results, model, workspace)
    moments = gs.new_empty(chunk * _count_kept_numbers(model, segment))
    for result, has_times in zip(results, _HAS_TIMES, strict=True):
        # Past the last observation of a series nothing is written.
        if result is not None and has_times:
            result.zero_()
    for first in range(0, series, chunk):
        end = min(series, first + chunk)
        sums = [_place_sums(result, first, end, series) for result in results]
        part = [_select_series(operand, first, end) for operand in model]
        launch(*plan_vjp(sums, gs[first:end], part, moments, segment))
        for result, found in zip(results, sums, strict=True):
            if result is None or found is None or not _is_shared(result, series):
                continue
            if first == 0:
                torch.sum(found, 0, keepdim=True, out=result)
            else:
                result.add_(found.sum(0, keepdim=True))


def plan_filter(s: Tensor, model: Sequence[Tensor], cell: Tensor | None) -> Launch:
    """Return the launch that computes values."""
    n, p = _get_sizes(model)
    shared = _count_bytes(n, p, s, adjoint=False)
    name, threads = _name_kernel("filter", n, p)
    grid = (model[0].shape[0],)
    return "kalman_nll", name, s, grid, threads, shared, *_pack_model(model), s.data_ptr(), get_address(cell)


def plan_vjp(
    gradients: Results, gs: Tensor, model: Sequence[Tensor], moments: Tensor, segment: int
) -> Launch:
    """Return the launch that computes gradients; each series writes to separate memory."""
    n, p = _get_sizes(model)
    shared = _count_bytes(n, p, gs, adjoint=True)
    name, threads = _name_kernel("pull_back", n, p)
    operands = [gs.data_ptr(), gs.stride(0)]
    for i, gradient in enumerate(gradients):
        operands += _pack_operand(gradient, _HAS_TIMES[i], always_varies=i == 0)
    return (
        "kalman_nll", name, gs, (gs.shape[0],), threads, shared,
        *_pack_model(model), *operands, moments.data_ptr(), segment,
    )  # fmt: skip


def make_dense(operands: Sequence[Tensor]) -> list[Tensor]:
    """Return the operands with matrices and vectors that lie row by row; copied only where they do not."""
    return [
        operand if operand[:1, :1].is_contiguous() and (has_times or operand[:1].is_contiguous())
        else operand.contiguous()
        for operand, has_times in zip(operands, _HAS_TIMES, strict=True)
    ]  # fmt: skip


def read_first_failure(cell: Tensor | None) -> tuple[int, int, int] | None:
    """(series, step, code) of the first failure that was reported; resets the cell."""
    found = _items.read_status(cell)
    if found is None:
        return None
    place, code = divmod(found, _CODES)
    return *divmod(place, _STEPS), code - _CODES // 2


def _divide_work(results: Results, model: Sequence[Tensor], workspace: int) -> tuple[int, int]:
    """Steps whose moments are kept at a time, and series that are served at a time."""
    series, times, _ = model[0].shape
    itemsize = model[0].element_size()
    n, _ = _get_sizes(model)
    moments = n * (n + 3) // 2 * itemsize
    root = math.isqrt(times - 1) + 1  # the least memory
    segment = min(times, max(root, min(_thresholds.KALMAN_KEPT, workspace // series) // moments))
    sums = sum(
        result.numel() * itemsize for result in results if result is not None and _is_shared(result, series)
    )
    of_one = _count_kept_numbers(model, segment) * itemsize + sums
    return segment, max(1, min(series, workspace // of_one))


def _count_kept_numbers(model: Sequence[Tensor], segment: int) -> int:
    """Numbers kept for one series: the moments of one segment, and those at the start of each segment."""
    times, n = model[0].shape[1], model[1].shape[-1]
    return n * (n + 3) // 2 * (segment + -(-times // segment))


def _is_shared(result: Tensor, series: int) -> bool:
    return result.shape[0] != series


def _place_sums(result: Tensor | None, first: int, end: int, series: int) -> Tensor | None:
    """Where the kernel writes gradients of some series: their rows of the result, or new sums per series."""
    if result is None or not _is_shared(result, series):
        return result if result is None else result[first:end]
    return result.new_zeros(end - first, *result.shape[1:])


def _select_series(operand: Tensor, first: int, end: int) -> Tensor:
    return operand if operand.shape[0] == 1 else operand[first:end]


def _get_sizes(model: Sequence[Tensor]) -> tuple[int, int]:
    """States and observations."""
    return model[1].shape[-1], model[0].shape[-1]


def _pack_model(model: Sequence[Tensor]) -> Iterator[int]:
    for i, operand in enumerate(model):
        yield from _pack_operand(operand, _HAS_TIMES[i], always_varies=i == 0)
    yield from (model[0].shape[1], *_get_sizes(model))


def _pack_operand(operand: Tensor | None, has_times: bool, always_varies: bool) -> list[int]:
    """Return address, stride between series and, if it has times, between times; 0 for shared operands."""
    if operand is None:
        return [0] * (3 if has_times else 2)
    strides = [0 if operand.shape[0] == 1 else operand.stride(0)]
    if has_times:
        strides.append(0 if operand.shape[1] == 1 and not always_varies else operand.stride(1))
    return [operand.data_ptr(), *strides]


def _round_up(n: int, least: int) -> int:
    """n rounded up to a power of two, at least ``least``."""
    return max(least, 1 << (n - 1).bit_length())


def _name_kernel(name: str, n: int, p: int) -> tuple[str, int]:
    states = _round_up(n, 4)
    return f"{name}<{{T}}, {states}, {_round_up(p, 1)}, {THREADS[states]}>", THREADS[states]


def _count_bytes(n: int, p: int, like: Tensor, adjoint: bool) -> int:
    """Return the bytes of shared memory of a block: those of ``Steps``, and more for ``compute_vjp``."""
    N, D = _round_up(n, 4), _round_up(p, 1)
    square, wide, small = N * (N | 1), D * (N | 1), D * (D | 1)
    numbers = 5 * square + 5 * wide + 2 * small + 2 * N + 5 * D
    if adjoint:
        numbers += 3 * square + wide + 2 * small + 4 * N + 2 * D
    return numbers * like.element_size()
