"""linalg.cca: properties of canonical variates, the generalised eigenproblem, and errors."""

from __future__ import annotations

import pytest
import torch
from device import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from tolerances import assert_close
from torch import Tensor
from torch.autograd import grad

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.linalg import cca

#: Covariances square the condition number, and whitening divides by it: some hundreds for normal numbers.
WHITENED = 1e4


def draw_observations(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def compute_covariance(X: Tensor, Y: Tensor) -> Tensor:
    return (X - X.mean(-2, keepdim=True)).mT @ (Y - Y.mean(-2, keepdim=True)) / (X.shape[-2] - 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(p=st.integers(1, 6), q=st.integers(1, 6), extra=st.integers(2, 20), seed=st.integers(0, 1000))
def test_variates_are_white_and_correlated_in_pairs(p: int, q: int, extra: int, seed: int) -> None:
    X = draw_observations(3, max(p, q) + extra, p, seed=seed)
    Y = X[..., :1] + draw_observations(3, max(p, q) + extra, q, seed=seed + 1)
    correlations, A, B = cca(X, Y)
    k = min(p, q)
    identity = torch.eye(k, dtype=torch.float64, device=DEVICE).expand(3, k, k)
    assert_close(compute_covariance(X @ A, X @ A), identity, WHITENED)
    assert_close(compute_covariance(Y @ B, Y @ B), identity, WHITENED)
    assert_close(compute_covariance(X @ A, Y @ B), torch.diag_embed(correlations), WHITENED)
    assert (correlations <= 1 + 1e-12).all()
    assert (correlations.diff() <= 0).all()


def test_agrees_with_the_generalised_eigenproblem() -> None:
    X, Y = draw_observations(50, 4), draw_observations(50, 3, seed=1)
    Y = Y + X[:, :3]
    Cxx, Cyy, Cxy = compute_covariance(X, X), compute_covariance(Y, Y), compute_covariance(X, Y)
    squares = eigh((Cxy @ torch_lu.solve(Cyy, Cxy.mT)).cpu().numpy(), Cxx.cpu().numpy(), eigvals_only=True)[
        ::-1
    ]
    assert_close(
        cca(X, Y, k=2).correlations.square(), torch.tensor(squares[:2].copy(), device=DEVICE), WHITENED
    )


def test_correlations_do_not_change_with_the_scale_of_columns() -> None:
    X, Y = draw_observations(30, 3), draw_observations(30, 2, seed=1)
    mixed = X @ draw_observations(3, 3, seed=2) + 7.0
    assert_close(cca(mixed, 3.0 * Y).correlations, cca(X, Y).correlations, WHITENED)
    (gX,) = grad(cca(X.requires_grad_(), Y).correlations.sum(), X)
    assert abs((gX * X).sum()) < 1e-12
    assert gX.sum(0).abs().max() < 1e-12


def test_equal_data_have_correlation_one() -> None:
    """All correlations are equal: their sum still has a gradient, and no warning comes."""
    X = draw_observations(20, 3)
    leaf = X.clone().requires_grad_()
    correlations = cca(leaf, X).correlations
    assert_close(correlations, torch.ones(3, dtype=torch.float64, device=DEVICE), WHITENED)
    assert grad(correlations.sum(), leaf)[0].isfinite().all()


@pytest.mark.parametrize(
    ("shapes", "flags", "error", "message"),
    [
        (
            ((9, 3), (9, 2)),
            {"k": 3},
            "OptionError",
            r"k must be between 1 and min\(p, q\), which is 2, got 3",
        ),
        (((9, 3), (9, 2)), {"k": 0}, "OptionError", "k must be between 1"),
        (
            ((9, 3), (9, 2)),
            {"regularisation": -1.0},
            "OptionError",
            "must be a number >= 0, got -1.0",
        ),
        (
            ((4, 4), (4, 2)),
            {},
            "OptionError",
            "the covariance of X is singular: 4 columns, and its rows leave 3",
        ),
        (((4, 2), (4, 4)), {}, "OptionError", "the covariance of Y is singular"),
        (((1, 2), (1, 4)), {"regularisation": 1.0}, "OptionError", "its rows leave 0 degrees of freedom"),
        (((9, 3), (8, 2)), {}, "ShapeError", "X and Y must have equally many rows"),
        (((2, 9, 3), (3, 9, 2)), {}, "ShapeError", "batch"),
    ],
)
def test_refusals(shapes: tuple[tuple[int, ...], ...], flags: dict, error: str, message: str) -> None:
    with pytest.raises(getattr(lapgrad, error), match=f"^linalg.cca: .*{message}"):
        cca(*[draw_observations(*shape) for shape in shapes], **flags)


def test_dependent_columns_are_named() -> None:
    X, Y = draw_observations(2, 9, 3), draw_observations(2, 9, 2)
    Y[1, :, 1] = 0.0
    with pytest.raises(
        lapgrad.NotPositiveDefiniteError, match=r"covariance of Y \(batch item \(1,\)\)"
    ) as caught:
        cca(X, Y)
    assert caught.value.item == (1,)
    assert cca(X, Y, regularisation=0.1).correlations.isfinite().all()
    X[0, 0, 0] = torch.nan
    with pytest.raises(lapgrad.NonFiniteError, match=r"cca: the covariance of X \(batch item \(0,\)\)"):
        cca(X, Y, regularisation=0.1)


@pytest.mark.parametrize("exponent", [-1000, -508, 508, 1000])
def test_small_and_large_data(exponent: int) -> None:
    """Correlations and their gradients do not depend on the units of X and Y; directions scale with them."""
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(12, q, generator=generator, dtype=torch.float64).to(DEVICE) for q in (3, 2))
    unit = 2.0**exponent

    def results(unit: float) -> tuple[Tensor, ...]:
        leaf = (X * unit).requires_grad_()
        found = lapgrad.linalg.cca(leaf, Y)
        (gradient,) = torch.autograd.grad(found.correlations[0], leaf)
        return found[0].detach(), found[1].detach() * unit, found[2].detach(), gradient * unit

    for actual, expected in zip(results(unit), results(1.0), strict=True):
        assert torch.equal(actual, expected)


def test_regularisation_of_data_that_are_all_but_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(12, q, generator=generator, dtype=torch.float64).to(DEVICE) for q in (3, 2))
    found = cca(X * 2.0**-1000, Y, regularisation=1e-3)
    assert (found.correlations < 1e-290).all()
    assert found[1].isfinite().all()
