"""gp_nll: against the density of a multivariate normal, and its derivatives."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import gp_nll


def make_problem(*batch: int, n: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    root = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(n), dtype=dtype)
    return root @ root.mT / n


def compute_normal_nll(A: Tensor, Y: Tensor) -> Tensor:
    """Return the value by torch.distributions, column by column of Y (n, k)."""
    normal = torch.distributions.MultivariateNormal(torch.zeros_like(A[..., 0]), A)
    return -sum(normal.log_prob(y) for y in Y.unbind(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("noise", [0.3, torch.tensor(0.3), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_values(outputs: int | None, noise: Tensor | float, dtype: torch.dtype) -> None:
    K = make_problem(dtype=dtype)
    y = torch.randn(*((5,) if outputs is None else (5, outputs)), dtype=dtype)
    noise = noise.to(dtype) if isinstance(noise, Tensor) else noise
    A = K + torch.diag(torch.as_tensor(noise, dtype=dtype).expand(5))
    assert_close(gp_nll(K, y, noise), compute_normal_nll(A, y if outputs else y[:, None]))


def test_batches() -> None:
    K, Y = make_problem(2, 3), torch.randn(2, 3, 5, 2, dtype=torch.float64)
    noise = torch.rand(2, 3, 5, dtype=torch.float64) + 0.1
    values = gp_nll(K, Y, noise)
    assert values.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert_close(values[i, j], gp_nll(K[i, j], Y[i, j], noise[i, j]))
    assert_close(gp_nll(K, Y[..., 0], 0.5), gp_nll(K, Y[..., :1], 0.5))
    one = gp_nll(K[0, 0], Y[0], 0.5)
    assert_close(one, torch.stack([gp_nll(K[0, 0], Y[0, j], 0.5) for j in range(3)]))


def test_derivatives() -> None:
    root = make_problem().requires_grad_()
    y = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    noise = torch.full((5,), 0.4, dtype=torch.float64, requires_grad=True)

    def function(root: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        return gp_nll(root @ root.mT, y, noise)

    assert torch.autograd.gradcheck(function, (root, y, noise))
    assert torch.autograd.gradgradcheck(function, (root, y, noise))


def test_operands_stay_as_they_are() -> None:
    K, y = make_problem(), torch.randn(5, dtype=torch.float64)
    kept = K.clone(), y.clone()
    gp_nll(K, y, 0.1)
    assert torch.equal(K, kept[0])
    assert torch.equal(y, kept[1])


@pytest.mark.parametrize(
    ("K", "y", "noise", "message"),
    [
        (torch.eye(3)[:2], torch.ones(2), 0.1, "K must be square"),
        (torch.eye(3), torch.ones(2), 0.1, "n = 3 rows"),
        (torch.eye(3), torch.ones(3), torch.ones(2), "noise_var must be a scalar or have n = 3"),
        (torch.eye(3), torch.ones(3), -2.0, "not positive definite"),
    ],
)
def test_wrong_operands(K: Tensor, y: Tensor, noise: Tensor | float, message: str) -> None:
    with pytest.raises(lapgrad.LapgradError, match=message):
        gp_nll(K, y, noise)
