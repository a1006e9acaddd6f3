"""Models keep the precision of float32 where torch is set to round products, and under autocast.

Autocast rounds products to 7 bits on every machine: there the tests do not depend on what a CPU can do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from device import DEVICE
from rounding import Watching, let_torch_round
from tolerances import FLOAT32_PRODUCTS, assert_all_close
from torch import Tensor

from lapgrad.models import (
    BayesianLinearRegression,
    GPRegression,
    LinearGaussianSSM,
    RandomFourierFeatures,
    kalman_filter,
    kalman_smoother,
)
from lapgrad.models._deep.mean_functions import LinearMean
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models._sampling import draw_each_normal, draw_normal
from lapgrad.models.components import AR, LocalLinearTrend
from lapgrad.models.kernels import RBF, Kernel, Linear, Matern32, Polynomial

Evaluated = list[Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def compute_derivatives(results: Tensor | tuple[Tensor, ...], leaves: list[Tensor]) -> Evaluated:
    """Return results, gradients, and gradients of a smooth function of the gradients.

    Gradients are divided by their largest entry first: the sine of a large number has few digits.
    """
    results = (results,) if isinstance(results, Tensor) else results
    loss = torch.stack([(result * draw(*result.shape, seed=1)).sum() for result in results]).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    recorded = [
        (gradient / gradient.detach().abs().amax().clamp_min(1.0)).sin().sum()
        for gradient in first
        if gradient.requires_grad and gradient.numel()
    ]
    second = torch.autograd.grad(recorded, leaves, materialize_grads=True) if recorded else ()
    return [part.detach().float() for part in (*results, *first, *second)]  # parameters are float64


def of_kernel(kernel: Kernel) -> Evaluated:
    """Return kernel matrices of shifted points, in enough dimensions that distances come from products."""
    kernel = kernel.to(DEVICE)
    X, Z = (draw(20, 6, seed=2) + 1.0).requires_grad_(), (draw(15, 6, seed=3) + 1.0).requires_grad_()
    parameters = list(kernel.parameters())
    return [
        *compute_derivatives(kernel(X), [X, *parameters]),
        *compute_derivatives(kernel(X, Z), [X, Z, *parameters]),
    ]


def state_space() -> list[Tensor]:
    """y, A, B, Q, R, m, P."""
    y = draw(3, 6, 2)
    y[0, 2] = y[1, 1, 0] = torch.nan
    A = 0.3 * draw(3, 3, seed=1) + 0.5 * torch.eye(3, device=DEVICE)
    Q, R, P = (torch.eye(n, device=DEVICE) * scale for n, scale in ((3, 0.5), (2, 0.3), (3, 2.0)))
    return [y, *(X.requires_grad_() for X in (A, draw(2, 3, seed=2), Q, R, draw(3, seed=4), P))]


def filtered(form: str) -> Evaluated:
    model = state_space()
    found = kalman_filter(*model, form=form)
    return compute_derivatives((found.mean, found.covariance, found.log_likelihood), model[1:])


def run_smoother(method: str) -> Evaluated:
    model = state_space()
    found = kalman_smoother(*model, method=method)
    return compute_derivatives((found.mean, found.covariance, found.cross_covariance), model[1:])


def structural() -> Evaluated:
    y = draw(20).cumsum(0)
    model = LinearGaussianSSM(y, LocalLinearTrend(0.3, 0.1) + AR(2, 0.2), noise_var=0.5)
    found, forecast, filtered = model.smooth(), model.forecast(3), model.filter()
    start = model._start
    return [
        *(found.mean, found.covariance, found.cross_covariance, forecast.mean, forecast.variance),
        *(filtered.mean[start:], filtered.log_likelihood[start:], model.sample(3, 2, generator=0)),
        *(part for answer in model.decompose() for part in (answer.mean, answer.variance)),
        *compute_derivatives(model(), list(model.parameters())),
    ]


def gp_regression() -> Evaluated:
    X = draw(30, 2)
    model = GPRegression(X, X[:, 0].sin(), RBF(1.0) + Linear(), noise_var=0.1, normalise=False)
    new = draw(5, 2, seed=1)
    found = model.predict(new)
    return [found.mean, found.variance, model.sample(new, 2, generator=0)]


def blr() -> Evaluated:
    X = draw(30, 2)
    features = RandomFourierFeatures(2, 8, generator=0)
    model = BayesianLinearRegression(X, X[:, 0].sin(), features, noise_var=0.1, normalise=False)
    new = draw(5, 2, seed=1)
    found = model.predict(new)
    draws = model.sample(new, 2, generator=0)
    return [found.mean, found.variance, draws, *compute_derivatives(features(X), list(features.parameters()))]


def layer() -> Evaluated:
    Z, H = draw(8, 3), draw(2, 5, 3, seed=1).requires_grad_()
    functions = SparseLayer(Z, 2, RBF(2.0), mean=LinearMean(draw(3, 2, seed=2))).to(DEVICE)
    functions.set_posterior(draw(8, 2, seed=3), torch.eye(8, device=DEVICE))
    learned = [parameter for parameter in functions.parameters() if parameter.requires_grad]
    return [
        *compute_derivatives(functions(H), [H, *learned]),
        *compute_derivatives(functions.predict_jointly(H), [H]),
    ]


def draws() -> Evaluated:
    generator = torch.Generator(DEVICE).manual_seed(0)
    S = torch.eye(4, device=DEVICE) + draw(4, 1) * draw(4, 1).mT
    mean = draw(4, 2, seed=1)
    return [
        draw_normal(mean, S, 3, generator),
        draw_normal(mean, S.expand(2, 4, 4), 3, generator),
        draw_each_normal(mean.expand(3, 4, 2), S.expand(3, 4, 4), generator),
        draw_each_normal(mean.expand(3, 4, 2), S.expand(3, 2, 4, 4), generator),
    ]


CASES: dict[str, Callable[[], Evaluated]] = {
    "RBF": lambda: of_kernel(RBF(2.0)),
    "Matern32": lambda: of_kernel(Matern32(2.0)),
    "Linear": lambda: of_kernel(Linear()),
    "Polynomial": lambda: of_kernel(Polynomial(2, 0.5, 0.1)),
    "filter": lambda: filtered("covariance"),
    "square root filter": lambda: filtered("square_root"),
    "smoother": lambda: run_smoother("rts"),
    "Bryson and Frazier": lambda: run_smoother("bryson_frazier"),
    "structural": structural,
    "GPRegression": gp_regression,
    "BayesianLinearRegression": blr,
    "SparseLayer": layer,
    "draws": draws,
}


def autocast() -> contextlib.AbstractContextManager[None]:
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16)


@pytest.mark.parametrize("rounding", [let_torch_round, autocast])
@pytest.mark.parametrize("case", CASES)
def test_float32_stays_float32(
    case: str, rounding: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Values, first and second derivatives."""
    expected = CASES[case]()
    with rounding():
        found = CASES[case]()
    assert_all_close(found, expected, FLOAT32_PRODUCTS)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_multiplied_while_torch_would_round(case: str) -> None:
    """Also on a machine whose products are never rounded."""
    with let_torch_round(), Watching() as watching:
        CASES[case]()
    assert not watching.rounded
