"""The criterion of Bayesian linear regression: value, gradients, and digits that Cholesky loses."""

from __future__ import annotations

import math

import mpmath
import pytest
import tolerances
import torch
from device import DEVICE
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lapgrad import (
    DTypeError,
    NonFiniteError,
    NotPositiveDefiniteError,
    OptionError,
    ShapeError,
)
from lapgrad.models import blr_nll

METHODS = ("lq", "cholesky")
SHAPES = ((7, 3), (3, 7), (4, 4), (1, 1), (1, 5), (5, 1))


def sample(n: int, d: int, *batch: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * 100 + d)
    X = torch.randn(*batch, n, d, dtype=dtype, generator=generator).to(DEVICE)
    return X, torch.randn(*batch, n, dtype=dtype, generator=generator).to(DEVICE)


def compute_density(X: Tensor, y: Tensor, noise_var: Tensor, prior_var: Tensor) -> Tensor:
    """Return the criterion by its definition, from the covariance of the targets."""
    covariance = X * prior_var @ X.mT + noise_var * torch.eye(len(y), dtype=X.dtype, device=DEVICE)
    return -torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_value_is_the_density_of_the_targets(n, d, method, dtype):
    X, y = sample(n, d, dtype=dtype)
    noise, prior = (
        torch.tensor(0.3, dtype=dtype, device=DEVICE),
        torch.linspace(0.5, 2.0, d, dtype=dtype, device=DEVICE),
    )
    tolerances.assert_close(blr_nll(X, y, noise, prior, method=method), compute_density(X, y, noise, prior))
    scalar = blr_nll(X, y, 0.3, 2.0, method=method)
    tolerances.assert_close(scalar, compute_density(X, y, noise, torch.full_like(prior, 2.0)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), [(5, 3), (3, 5)])
def test_gradients(n, d, method):
    X, y = sample(n, d)
    noise, prior = (
        torch.tensor(0.4, dtype=torch.float64, device=DEVICE),
        torch.linspace(0.5, 1.5, d, dtype=torch.float64, device=DEVICE),
    )
    arguments = [argument.requires_grad_() for argument in (X, y, noise, prior)]

    def criterion(*arguments: Tensor) -> Tensor:
        return blr_nll(*arguments, method=method)

    assert gradcheck(criterion, arguments, check_forward_ad=True)
    assert gradgradcheck(criterion, arguments, fast_mode=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), [(6, 2), (2, 6)])
def test_batches_broadcast(n, d, method):
    X, y = sample(n, d, 4, 3)
    noise, prior = (
        torch.rand(3, dtype=X.dtype).to(DEVICE) + 0.1,
        torch.rand(4, 1, d, dtype=X.dtype).to(DEVICE) + 0.1,
    )
    found = blr_nll(X, y, noise, prior, method=method)
    assert found.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            tolerances.assert_close(found[i, j], compute_density(X[i, j], y[i, j], noise[j], prior[i, 0]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), [(6, 2), (2, 6)])
def test_several_targets_add_up(n, d, method):
    X, _ = sample(n, d)
    Y = torch.randn(n, 3, dtype=X.dtype).to(DEVICE)
    each = sum(blr_nll(X, y, 0.2, 1.5, method=method) for y in Y.unbind(1))
    tolerances.assert_close(blr_nll(X, Y, 0.2, 1.5, method=method), each)


@pytest.mark.parametrize("method", METHODS)
def test_under_vmap_and_functional_gradients(method):
    X, y = sample(6, 2, 5)

    def criterion(X: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        return blr_nll(X, y, noise, 1.5, method=method)

    noise = torch.tensor(0.3, dtype=X.dtype, device=DEVICE)
    found = torch.func.vmap(torch.func.grad(criterion, argnums=2), in_dims=(0, 0, None))(X, y, noise)
    for i in range(5):
        single = noise.clone().requires_grad_()
        (expected,) = torch.autograd.grad(criterion(X[i], y[i], single), single)
        tolerances.assert_close(found[i], expected)


@pytest.mark.parametrize("method", METHODS)
def test_under_compile(method):
    X, y = sample(6, 2)

    def criterion(noise: Tensor) -> Tensor:
        return blr_nll(X, y, noise, 1.5, method=method)

    values, slopes = [], []
    for function in (criterion, torch.compile(criterion, fullgraph=True, backend="aot_eager")):
        noise = torch.tensor(0.3, dtype=X.dtype, requires_grad=True, device=DEVICE)
        values.append(function(noise))
        slopes.append(torch.autograd.grad(values[-1], noise)[0])
    tolerances.assert_close(values[1], values[0])
    tolerances.assert_close(slopes[1], slopes[0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "X",
    [torch.zeros(4, 2, device=DEVICE), torch.ones(4, 2, device=DEVICE), torch.ones(4, 7, device=DEVICE)],
    ids=["0", "1", "wide"],
)
def test_targets_of_zero_and_dependent_features_have_gradients(X, method):
    X = X.double().requires_grad_()
    y = torch.zeros(4, dtype=torch.float64, requires_grad=True, device=DEVICE)
    gradients = torch.autograd.grad(blr_nll(X, y, 0.5, 1.0, method=method), (X, y))
    assert all(gradient.isfinite().all() for gradient in gradients)


# The reference: the covariance of the targets, its Cholesky factor and its inverse in 50 digits.


def compute_with_fifty_digits(X: Tensor, y: Tensor, noise_var: float) -> tuple[float, float]:
    """Value, and derivative by noise_var, for prior variances of 1."""
    with mpmath.workdps(50):
        features, target = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        n = len(y)
        covariance = features * features.T + mpmath.mpf(noise_var) * mpmath.eye(n)
        L = mpmath.cholesky(covariance)
        inverse = covariance**-1
        solved = inverse * target
        log_det = 2 * sum(mpmath.log(L[i, i]) for i in range(n))
        value = (n * mpmath.log(2 * mpmath.pi) + log_det + (target.T * solved)[0]) / 2
        slope = (sum(inverse[i, i] for i in range(n)) - (solved.T * solved)[0]) / 2
        return float(value), float(slope)


def make_polynomial(shift: float) -> tuple[Tensor, Tensor]:
    """Powers 0 to 15 of (x + shift) / (1 + shift), x in [-1, 1], in units over 8 decades; noisy targets."""
    x = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64, device=DEVICE)
    units = 10 ** torch.linspace(0.0, 8.0, 16, dtype=torch.float64, device=DEVICE)
    X = ((x[:, None] + shift) / (1.0 + shift)) ** torch.arange(16, device=DEVICE) * units
    noise = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return X, torch.sin(3.0 * x) + 0.01 * noise


def measure_errors(
    X: Tensor, y: Tensor, noise_var: float, method: str, expected: tuple[float, float]
) -> tuple[float, float]:
    """Return relative errors of value and slope; infinite where the Cholesky factorisation fails."""
    value, slope = expected
    noise = torch.tensor(noise_var, dtype=torch.float64, requires_grad=True, device=DEVICE)
    try:
        found = blr_nll(X, y, noise, 1.0, method=method)
    except NotPositiveDefiniteError:
        assert method == "cholesky"
        return math.inf, math.inf
    (found_slope,) = torch.autograd.grad(found, noise)
    return abs(found.item() / value - 1.0), abs(found_slope.item() / slope - 1.0)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_lq_has_the_digits_that_cholesky_loses(shift):
    """Without the shift, value and gradient err by 2e-14 and 2e-12; by Cholesky by 3e-8 and 1e-5.

    With it, the product of the features is singular to working precision. Which roundings a machine makes
    decides whether the Cholesky factorisation fails, or returns numbers.
    """
    X, y = make_polynomial(shift)
    expected = compute_with_fifty_digits(X, y, 1e-4)
    lq, cholesky = (measure_errors(X, y, 1e-4, method, expected) for method in METHODS)
    assert max(lq) < tolerances.LQ_OF_POWERS * torch.finfo(torch.float64).eps
    for by_lq, by_cholesky in zip(lq, cholesky, strict=True):
        assert by_cholesky > 1e4 * by_lq
    assert max(lq) < 1e-6 < max(cholesky)


# Mistakes.


def test_cholesky_names_the_other_method_when_it_fails():
    X, y = make_polynomial(2.0)
    with pytest.raises(NotPositiveDefiniteError, match=r"blr_nll: .*method='lq'"):
        blr_nll(X.float(), y.float(), 1e-4, 1.0, method="cholesky")
    assert math.isfinite(blr_nll(X.float(), y.float(), 1e-4, 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_not_finite_is_named(method):
    X, y = sample(4, 2)
    X[1, 1] = math.nan
    with pytest.raises(NonFiniteError, match=r"blr_nll: the features"):
        blr_nll(X, y, 0.1, 1.0, method=method)
    X[1, 1] = 0.0
    with pytest.raises(NonFiniteError, match="positive"):
        blr_nll(X, y, torch.tensor(-0.1, dtype=X.dtype, device=DEVICE), 1.0, method=method)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"method": "qr"}, OptionError, "method must be one of 'lq', 'cholesky', got 'qr'"),
        ({"noise_var": 0.0}, OptionError, "noise_var must be positive"),
        ({"prior_var": math.inf}, OptionError, "prior_var must be positive"),
        (
            {"prior_var": torch.ones(3, device=DEVICE).double()},
            ShapeError,
            "last dimension 1 or the number of columns",
        ),
        ({"prior_var": torch.ones(2, device=DEVICE)}, DTypeError, "same dtype"),
        ({"y": torch.zeros(5, device=DEVICE).double()}, ShapeError, "as many entries"),
        (
            {
                "noise_var": torch.ones(2, device=DEVICE).double(),
                "X": torch.ones(3, 4, 2, device=DEVICE).double(),
            },
            ShapeError,
            "broadcast",
        ),
        ({"X": torch.zeros(4, 2, dtype=torch.int64, device=DEVICE)}, DTypeError, "X has dtype torch.int64"),
        ({"y": [0.0] * 4}, DTypeError, "y must be a torch.Tensor"),
    ],
)
def test_mistakes_are_named(changes, kind, message):
    X, y = sample(4, 2)
    arguments = {"X": X, "y": y, "noise_var": 0.1, "prior_var": 1.0, **changes}
    with pytest.raises(kind, match=rf"blr_nll: .*{message}"):
        blr_nll(**arguments)
