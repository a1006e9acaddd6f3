"""kalman_nll with directions in which the prior is flat: limits, gradients, invariances, errors."""

from __future__ import annotations

import math

import pytest
import torch
from device import DEVICE
from tolerances import DIFFUSE_LIMIT, HIGHER_ORDER, SUMS_OVER_STEPS, assert_close
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import lapgrad
from lapgrad.fused import kalman_nll


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE)


def make_problem(times: int = 8, n: int = 3, p: int = 2, d: int = 2) -> tuple[Tensor, ...]:
    identity, noise = torch.eye(n, dtype=torch.float64), torch.eye(p, dtype=torch.float64)
    y = draw(times, p)
    y[2, 0], y[3] = torch.nan, torch.nan
    A = 0.7 * identity + 0.2 * draw(n, n).cpu()
    return (
        y, A.to(DEVICE), draw(p, n), 0.3 * identity.to(DEVICE), 0.5 * noise.to(DEVICE), draw(n),
        identity.to(DEVICE), draw(n, d),
    )  # fmt: skip


def test_is_the_limit_of_wide_priors() -> None:
    *model, D = make_problem()
    P, wide, d = model[-1], 1e5, D.shape[-1]
    limit = kalman_nll(*model[:-1], P + wide * D @ D.mT) - 0.5 * d * math.log(wide)
    assert_close(kalman_nll(*model, diffuse=D), limit, DIFFUSE_LIMIT * 100)


def test_proper_variance_in_flat_directions_changes_nothing() -> None:
    *model, D = make_problem()
    expected = kalman_nll(*model, diffuse=D)
    model[5] = model[5] + D @ draw(2)
    model[6] = model[6] + 3.0 * D @ D.mT
    assert_close(kalman_nll(*model, diffuse=D), expected, SUMS_OVER_STEPS)
    assert_close(kalman_nll(*model, diffuse=2.0 * D), expected + 2 * math.log(2.0), SUMS_OVER_STEPS)


def test_no_directions_are_a_proper_prior() -> None:
    *model, D = make_problem()
    assert_close(kalman_nll(*model, diffuse=D[:, :0]), kalman_nll(*model))


def test_series_in_lanes_are_those_alone() -> None:
    *model, D = make_problem()
    y = torch.stack([model[0] + 0.1 * i for i in range(9)])
    together = kalman_nll(y, *model[1:], diffuse=D)
    alone = torch.stack([kalman_nll(one, *model[1:], diffuse=D) for one in y])
    assert_close(together, alone, SUMS_OVER_STEPS)
    one_each = kalman_nll(y, *model[1:], diffuse=D.expand(9, -1, -1))
    assert_close(one_each, alone, SUMS_OVER_STEPS)


def test_derivatives() -> None:
    y, A, B, Q, R, m, P, D = make_problem(times=4, n=2, p=1, d=1)

    def nll(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, m: Tensor, P: Tensor, D: Tensor) -> Tensor:
        Q, R, P = (0.5 * (X + X.mT) for X in (Q, R, P))
        return kalman_nll(y, A, B, Q, R, m, P, diffuse=D)

    inputs = [X.clone().requires_grad_() for X in (A, B, Q, R, m, P, D)]
    assert gradcheck(nll, inputs)
    assert gradgradcheck(nll, inputs)


def test_gradient_of_long_series_is_that_of_the_formulas() -> None:
    """Longer than the moments that are kept at a time, with a sparse transition and one that varies."""
    n, times = 14, 700
    A = torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    A[0] = -0.9 / n
    B = torch.eye(1, n, dtype=torch.float64)
    y = torch.randn(times, 1, dtype=torch.float64)
    y[5], y[400:420] = torch.nan, torch.nan
    Q = (0.1 * B.mT @ B).requires_grad_()
    R = torch.eye(1, dtype=torch.float64).requires_grad_()
    D = torch.eye(n, dtype=torch.float64)[:, :3]
    P = torch.eye(n, dtype=torch.float64)
    for transition in (A, A.expand(times, n, n)):
        value = kalman_nll(y, transition, B, Q, R, torch.zeros(n, dtype=torch.float64), P, diffuse=D)
        first = torch.autograd.grad(value, (Q, R))
        step = 1e-6
        moved = [
            kalman_nll(y, transition, B, Q, R + s * step, torch.zeros(n, dtype=torch.float64), P, diffuse=D)
            for s in (1, -1)
        ]
        assert float((moved[0] - moved[1]).detach() / (2 * step)) == pytest.approx(
            float(first[1].detach()), rel=1e-6
        )


def test_undetermined_directions_are_named() -> None:
    *model, D = make_problem(times=8, p=1)
    model[0] = torch.full_like(model[0], torch.nan)
    model[0][0] = 1.0
    with pytest.raises(
        lapgrad.DomainError, match="too few observations: they do not determine the diffuse states"
    ):
        kalman_nll(*model, diffuse=D)
    with pytest.raises(lapgrad.ShapeError, match="diffuse"):
        kalman_nll(*model, diffuse=torch.ones(3, 4, dtype=torch.float64, device=DEVICE))
    for number in (-1, len(D) + 1):
        with pytest.raises(lapgrad.OptionError, match="diffuse must be a matrix or a number from 0 to"):
            kalman_nll(*model, diffuse=number)


def test_forward_mode_and_vmap() -> None:
    *model, D = make_problem(times=5)
    tangent = draw(*D.shape)
    value, ds = torch.func.jvp(lambda D: kalman_nll(*model, diffuse=D), (D,), (tangent,))
    gradient = torch.func.grad(lambda D: kalman_nll(*model, diffuse=D))(D)
    assert_close(ds, (gradient * tangent).sum(), HIGHER_ORDER)
    both = torch.func.vmap(lambda D: kalman_nll(*model, diffuse=D))(torch.stack((D, 2.0 * D)))
    assert_close(both[0], value, SUMS_OVER_STEPS)
