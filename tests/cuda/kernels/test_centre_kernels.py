"""Centred observations: the CUDA kernels against tensor operations."""

from __future__ import annotations

import pytest
import torch
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.small import centre as _centre
from lapgrad.linalg import _centring

machines = pytest.mark.parametrize("machine", MACHINES)


def run_centring(
    machine: Machine, X: Tensor, least: float = 0.0, degrees: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    results = _centring._fake(X, least, degrees, X.shape[-2])
    machine.launch(_centre.plan_centring(*results, X, least, degrees))
    return results


@machines
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_means_centred_and_unit(machine: Machine, dtype: torch.dtype) -> None:
    X = torch.randn(3, 40, 21, dtype=torch.float64).mT.to(machine.device, dtype)
    X[1] *= 1e-30
    X[2] = 5.0
    for least in (0.0, 100.0):
        found, wanted = run_centring(machine, X, least), _centring._centre(X.cpu(), least, 0, X.shape[-2])
        for result, reference in zip(found, wanted, strict=True):
            assert_close(result.cpu(), reference, of_order(40))


@machines
def test_variances_that_overflow_and_numbers_that_are_not_finite(machine: Machine) -> None:
    X = torch.randn(4, 6, 3, dtype=torch.float64).to(machine.device)
    X[0] *= 1e160
    X[1] *= 1e153
    X[2, 1, 1] = torch.inf
    spoilt = run_centring(machine, X, degrees=5)[1].isnan()
    assert spoilt.all((-2, -1)).tolist() == [True, False, True, False]
    assert spoilt.any((-2, -1)).tolist() == [True, False, True, False]
    assert torch.equal(_centring._centre(X[:2].cpu(), 0.0, 5, X.shape[-2])[1].isnan(), spoilt[:2].cpu())


@machines
@pytest.mark.parametrize("has_mean", [True, False])
def test_gradient(machine: Machine, has_mean: bool) -> None:
    g = torch.randn(3, 40, 21, dtype=torch.float64).mT.to(machine.device)
    unit = torch.tensor([0.5, 4.0, 1.0], dtype=torch.float64, device=machine.device).view(3, 1, 1)
    g_mean = torch.randn(3, 40, dtype=torch.float64).to(machine.device) if has_mean else None
    gX = torch.full(g.shape, torch.nan, dtype=g.dtype, device=g.device)
    machine.launch(_centre.plan_vjp(gX, g, g_mean, unit))
    assert_close(gX, _centring._compute_vjp_composite(g, g_mean, unit), of_order(40))
