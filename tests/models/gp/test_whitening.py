"""Products with the inverse of a Cholesky factor do what solves do, to rounding."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import tolerances
import torch
from torch import Tensor

import lapgrad
from lapgrad.fused._sgp import gradient as _gradient
from lapgrad.fused._sgp import inverse_factor as _whitening
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.models.kernels import RBF

DOUBLE = torch.float64


def factor(n: int) -> Tensor:
    X = torch.randn(n, n, dtype=DOUBLE, generator=torch.Generator().manual_seed(n))
    return torch.linalg.cholesky(X @ X.mT / max(n, 1) + torch.eye(n, dtype=DOUBLE))


def find_least_pivot(whitening: _whitening.Inverse | _whitening.Substitution) -> Tensor:
    pivots, are_reciprocal = whitening.get_pivots()
    return pivots.max().reciprocal() if are_reciprocal else pivots.min()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 130, 256, 257, 300])
def test_inverse_and_substitution(n: int) -> None:
    L, source = factor(n), torch.Generator().manual_seed(0)
    K, a = (torch.randn(n, k, dtype=DOUBLE, generator=source) for k in (7, 1))
    S = K @ K.mT
    inverse, substitution = _whitening.invert_factor(L.clone()), _whitening.Substitution(L)
    tolerances.assert_close(inverse.W @ L, torch.eye(n, dtype=DOUBLE), tolerances.DEFAULT)
    assert not inverse.W.triu(1).any()
    results = []
    for whitening in (inverse, substitution):
        B = torch.empty_like(K)
        whitening.apply(K, B)
        X = whitening.sandwich(S.clone())
        assert torch.equal(X, X.mT)
        results.append([B, whitening.apply_transposed(a), X, find_least_pivot(whitening)])
    tolerances.assert_all_close(*results, tolerances.DEFAULT)


@pytest.mark.parametrize("inducing", [100, 150])
def test_criterion_and_gradient(inducing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the inverse is used as long as products are precise."""
    source = torch.Generator().manual_seed(0)
    X = torch.rand(400, 4, dtype=DOUBLE, generator=source)
    Y = torch.sin(6.0 * X.sum(1, keepdim=True)) + 0.1 * torch.randn(400, 1, dtype=DOUBLE, generator=source)

    def evaluate_all() -> list[Tensor]:
        kernel = RBF(torch.full((4,), 0.2, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE))
        Z = X[:inducing].clone().requires_grad_()
        v = torch.tensor(0.01, dtype=DOUBLE, requires_grad=True)
        value = lapgrad.fused.sgp_nll(kernel, Z, X, Y, v, chunk=130)
        return [value.detach(), *torch.autograd.grad(value, [Z, v, *kernel.parameters()])]

    expected = evaluate_all()
    used: list[Any] = []
    whitened = _whitening.invert_factor

    def count_inversion(Lu: Tensor) -> _whitening.Inverse:
        used.append(len(Lu))
        return whitened(Lu)

    monkeypatch.setattr(_statistics, "invert_factor", count_inversion)
    monkeypatch.setattr(_statistics, "_ON_CPU", _statistics._ON_CPU._replace(inverse=128))
    with mock.patch.object(_gradient, "_defers_checks", return_value=True):
        found = evaluate_all()
    assert used == ([inducing] if inducing >= 128 else [])
    tolerances.assert_all_close(found, expected, tolerances.INDUCING)


def test_widths_of_chunks() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert _statistics.choose_chunk_width(18611, 3200, None, gpu) % 64 == 0
    assert _statistics.choose_chunk_width(8611, 3200, 17, gpu) == 17
    for n in (0, 1, 63, 64, 65, 1000):
        for device in (gpu, cpu):
            assert _statistics.choose_chunk_width(n, 10, None, device) == max(n, 1)


@pytest.mark.parametrize(
    ("free", "kept", "part"), [(8 << 30, 0, 1.0), (1 << 27, 0, 1 / 24), (1 << 27, 1 << 27, 1 / 12)]
)
def test_chunks_fit_into_free_memory(free: int, kept: int, part: float) -> None:
    """Three buffers take at most a quarter of what the driver has free, and torch keeps for later."""
    gpu, inducing, rows = torch.device("cuda"), 500, 10**6
    wanted = _statistics.choose_chunk_width(rows, inducing, None, gpu)
    with mock.patch.multiple(
        torch.cuda,
        is_initialized=mock.Mock(return_value=True),
        is_current_stream_capturing=mock.Mock(return_value=False),
        mem_get_info=mock.Mock(return_value=(free, 8 << 30)),
        memory_reserved=mock.Mock(return_value=kept),
        memory_allocated=mock.Mock(return_value=0),
    ):
        found = _statistics.choose_chunk_width(rows, inducing, None, gpu)
    assert found == pytest.approx(part * wanted, rel=0.03)
