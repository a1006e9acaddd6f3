"""The numbers of the bound of a sparse Gaussian process: CUDA kernels against the formulas in torch."""

from __future__ import annotations

import pytest
import tolerances
import torch
from kernel_packages import in_torch as _fallback
from kernel_packages import on_cuda
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._kernels.cuda.runtime import stream as _stream

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
]

ROWS = 11


def draw(*shape: int) -> Tensor:
    return 0.5 + torch.rand(shape, dtype=torch.float64)


@pytest.mark.parametrize(("U", "k"), [(1, 1), (40, 1), (300, 3)])
@pytest.mark.parametrize("are_reciprocal", [False, True])
def test_bound_and_gradient(U: int, k: int, are_reciprocal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagonals are read from parts of larger matrices."""
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    total, Lm, inverse, pivots = (draw(U + k, U + k) for _ in range(4))
    c, a, g, variances, norm, v = draw(U, k), draw(U, k), draw(U, k), draw(), draw(), draw()
    results = []
    for package in (_fallback, on_cuda):
        bound, numbers, changed = draw(3), draw(2), inverse.clone()[:U, :U]
        with replace_gpu():
            package.sgp_bound(bound, total[:U, :U], total.diagonal()[U:], Lm[:U, :U], c, variances, v, ROWS)
            package.sgp_bound_vjp(
                numbers, bound, changed, a, g, pivots.diagonal()[:U], are_reciprocal, norm, v, ROWS, 1e-3
            )
        results.append([bound, numbers, changed])
    tolerances.assert_all_close(results[1], results[0])
