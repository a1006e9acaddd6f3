"""kalman_nll: the Kalman filter as a log likelihood, and its adjoint, on CUDA.

Models with more than 32 states or 16 observations, those without states, observations or steps, and those
with a prior that is flat in some directions run in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import kalman as _kalman_batch
from lapgrad._kernels.torch import kalman_nll as _fallback


@on_its_device
def kalman_nll(s: Tensor, *operands: Tensor) -> tuple[int, int, int] | None:
    if not _serves(operands):
        return _fallback.kalman_nll(s, *operands)
    cell = _items.get_status_cell(s)
    _launch.launch(*_kalman_batch.plan_filter(s, _kalman_batch.make_dense(operands), cell))
    return _kalman_batch.read_first_failure(cell)


@on_its_device
def kalman_nll_vjp(gs: Tensor, results: Sequence[Tensor | None], *operands: Tensor) -> None:
    if not _serves(operands):
        _fallback.kalman_nll_vjp(gs, results, *operands)
        return
    _kalman_batch.compute_vjp(_launch.launch, gs, results, _kalman_batch.make_dense(operands))


def _serves(operands: Sequence[Tensor]) -> bool:
    y, A, m = operands[0], operands[1], operands[5]
    return m.dim() == 2 and _kalman_batch.serves(y, A)
