"""Gaussian processes, exact and sparse, learned on a GPU from recordings of their loss."""

from __future__ import annotations

import gc

import pytest
import tolerances
import torch

from lapgrad.models import GPRegression, SparseGPRegression
from lapgrad.models._training import cuda_graph as _cuda_graph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def model(inducing: int = 100, noise: float = 0.1, jitter: float = 1e-6) -> SparseGPRegression:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(3000, 3, dtype=torch.float64, generator=source)
    y = torch.sin(5.0 * X[:, 0]) * X[:, 1] + 0.1 * torch.randn(3000, dtype=torch.float64, generator=source)
    return SparseGPRegression(
        X.cuda(),
        y.cuda(),
        inducing=inducing,
        noise_var=noise,
        jitter=jitter,
        generator=0,
        normalise=False,
    )


@pytest.mark.parametrize("inducing", [100, 1100])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_same_fit(optimizer: str, inducing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []
    record = _cuda_graph.CudaRecorder.record

    def record_and_count(
        self: _cuda_graph.CudaRecorder, function: _cuda_graph.Function
    ) -> _cuda_graph.Function:
        recorded.append(True)
        return record(self, function)

    monkeypatch.setattr(_cuda_graph.CudaRecorder, "record", record_and_count)
    found = model(inducing).fit(optimizer, steps=20)
    assert recorded == [True]
    monkeypatch.setattr(SparseGPRegression, "replayable", False)
    expected = model(inducing).fit(optimizer, steps=20)
    assert recorded == [True]
    history = torch.tensor(found.history, dtype=torch.float64)
    tolerances.assert_close(
        history, torch.tensor(expected.history, dtype=torch.float64), tolerances.OF_JITTER
    )


@pytest.mark.parametrize("n", [60, 700])
def test_same_fit_of_an_exact_process(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = model()
    X, y = given.X[:n], given.y[:n]
    found = GPRegression(X, y, noise_var=0.1).fit("adam", steps=20)
    monkeypatch.setattr(GPRegression, "replayable", False)
    expected = GPRegression(X, y, noise_var=0.1).fit("adam", steps=20)
    histories = [torch.tensor(result.history, dtype=torch.float64) for result in (found, expected)]
    tolerances.assert_close(*histories, tolerances.ON_A_DEVICE)


def test_wrong_guesses() -> None:
    result = model(noise=1e-7, jitter=1e-10).fit("adam", steps=10, lr=1e-3)
    assert result.history[-1] < result.history[0]


def test_memory_is_given_back() -> None:
    learned = model(400)
    learned.fit("adam", steps=6)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    learned.fit("adam", steps=6)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
