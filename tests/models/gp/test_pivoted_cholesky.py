"""pivoted_cholesky, which forms no kernel matrix, gives the pivots and the factor that pstrf gives for it."""

from __future__ import annotations

import sys

import pytest
import torch
from device import DEVICE
from tolerances import assert_close, of_order
from torch import Tensor, nn

import lapgrad
from lapgrad.fused import KernelFunction
from lapgrad.models import SparseGPRegression
from lapgrad.models._gp import inducing_inputs
from lapgrad.models.kernels import RBF, Linear, Matern32, White, pivoted_cholesky

MODULE = sys.modules["lapgrad.models.kernels.pivoted_cholesky"]


def draw(n: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("candidates", [1, 7, 2048])
@pytest.mark.parametrize(
    "kernel",
    [RBF(lengthscale=2.0), Matern32(lengthscale=1.0) + White(0.1), Linear() + RBF()],
    ids=["RBF", "Matern and White", "Linear"],
)
def test_pivots_and_factor_are_those_of_the_matrix(
    kernel: nn.Module, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only a few points compete, and the data come in chunks."""
    monkeypatch.setattr(MODULE, "_CANDIDATES", candidates)
    monkeypatch.setattr(MODULE, "_CHUNK", 64)
    X, kernel = draw(120, 3), kernel.to(DEVICE)
    with torch.no_grad():
        K = kernel(X)
        L, pivots, residual = pivoted_cholesky(kernel, X, rank=30)
        expected = lapgrad.pstrf(K, rank=30)
    assert pivots.equal(expected.pivots[:30])
    # The condition number of what the pivots choose is the ratio of the pivots.
    units = of_order(120) * float(expected.L[0, 0] / expected.L[29, 29]) ** 2
    assert_close(L[expected.pivots], expected.L, units)
    assert_close(residual, (K - L @ L.mT).diagonal(), units)


def test_ends_at_the_tolerance() -> None:
    kernel, X = RBF(lengthscale=5.0).to(DEVICE), draw(200, 1)
    with torch.no_grad():
        few, all_of_them = (pivoted_cholesky(kernel, X, rank=200, tol=tol) for tol in (1e-3, None))
    assert len(few.pivots) < len(all_of_them.pivots) < 40
    assert few.residual.max() <= 1e-3
    assert few.L.shape == (200, len(few.pivots))
    assert few.pivots.equal(all_of_them.pivots[: len(few.pivots)])


@pytest.mark.parametrize("large", [False, True])
def test_gradients_for_fixed_pivots(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(MODULE, "_LARGE", 0)
        monkeypatch.setattr(MODULE, "_CHUNK", 8)
    X, lengthscale = draw(9, 2), torch.tensor(0.8, dtype=torch.float64, device=DEVICE)
    weights = draw(9, 4)

    def loss(X: Tensor, lengthscale: Tensor) -> Tensor:
        def matrix(A: Tensor, B: Tensor, lengthscale: Tensor) -> Tensor:
            squares = (A[:, None] - B[None]).square().sum(-1)
            return torch.exp(-0.5 * squares / lengthscale.square())

        kernel = KernelFunction(matrix, lambda A, lengthscale: A.new_ones(len(A)), (lengthscale,))
        L, _, residual = pivoted_cholesky(kernel, X, rank=4)
        return (weights * L).sum() + residual.square().sum()

    assert torch.autograd.gradcheck(loss, (X.requires_grad_(), lengthscale.requires_grad_()))
    assert torch.autograd.gradgradcheck(loss, (X, lengthscale))


def test_gradients_of_large_factors_are_those_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    X, weights = draw(50, 2), draw(50, 12)

    def differentiate() -> list[Tensor]:
        kernel = (Matern32(lengthscale=[0.5, 0.8]) + White(0.2)).double().to(DEVICE)
        kernel.fix("parts.1.variance")
        L, _, residual = pivoted_cholesky(kernel, X, rank=12)
        learned = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
        return list(torch.autograd.grad((weights * L).sum() + residual.square().sum(), learned))

    expected = differentiate()
    monkeypatch.setattr(MODULE, "_LARGE", 0)
    monkeypatch.setattr(MODULE, "_CHUNK", 100)
    for found, wanted in zip(differentiate(), expected, strict=True):
        assert_close(found, wanted, of_order(50) * 10)


def test_values_with_and_without_gradients_agree() -> None:
    kernel, X = (Matern32() + White(0.2)).double().to(DEVICE), draw(50, 2)
    recorded = pivoted_cholesky(kernel, X, rank=12)
    assert recorded.L.requires_grad
    with torch.no_grad():
        plain = pivoted_cholesky(kernel, X, rank=12)
    assert_close(recorded.L.detach(), plain.L, of_order(50) * 10)
    assert_close(recorded.residual.detach(), plain.residual, of_order(50) * 10)


def test_errors() -> None:
    X = draw(5, 1)
    with pytest.raises(lapgrad.OptionError, match="rank must be a number >= 0"):
        pivoted_cholesky(RBF(), X, rank=-1)
    with pytest.raises(lapgrad.OptionError, match="kernel must be"):
        pivoted_cholesky(torch.ones, X, rank=1)  # type: ignore[arg-type]
    broken = KernelFunction(lambda A, B: A @ B.mT, lambda A: A[:, 0] * torch.nan)
    with pytest.raises(lapgrad.NonFiniteError, match="point 0 of X"):
        pivoted_cholesky(broken, X, rank=1)


# Pivots as initial inducing inputs.


def test_greedy_inducing_inputs_leave_no_point_with_a_large_variance() -> None:
    X, left = draw(400, 2), {}
    for init in ("greedy", "kmeans++", "random"):
        model = SparseGPRegression(X, X[:, 0], inducing=20, init=init, generator=0)
        with torch.no_grad():
            jitter = 1e-9 * torch.eye(20, device=DEVICE)
            half = lapgrad.trsm(
                lapgrad.potrf(model.kernel(model.inducing) + jitter), model.kernel(model.inducing, X)
            )
            left[init] = float((model.kernel.diag(X) - half.square().sum(0)).max())
    assert left["greedy"] < 0.5 * left["kmeans++"]
    assert left["greedy"] < 0.5 * left["random"]


def test_a_smooth_kernel_is_filled_up() -> None:
    """Its matrix has a numerical rank of less than the number of inducing inputs: the others are spread."""
    x = torch.linspace(0, 1, 300, dtype=torch.float64, device=DEVICE)
    model = SparseGPRegression(x, torch.sin(x), RBF(lengthscale=3.0), inducing=60, generator=0)
    assert model.inducing.shape == (60, 1)
    assert len(model.inducing.unique()) == 60


def test_kmeans_where_the_factor_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inducing_inputs, "_LARGEST_FACTOR", 999)
    X = draw(100, 2)
    chosen = [
        SparseGPRegression(X, X[:, 0], inducing=10, init=init, generator=0).inducing
        for init in ("greedy", "kmeans++")
    ]
    assert chosen[0].equal(chosen[1])
