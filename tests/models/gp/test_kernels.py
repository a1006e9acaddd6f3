"""Kernels: values against formulas written pair by pair, derivatives, shapes, sums and products, memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from device import DEVICE
from tolerances import ROUNDED_DISTANCES, assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import GPRegression
from lapgrad.models.kernels import (
    RBF,
    Constant,
    Deep,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    White,
    _blocks,
    covariance,
    kernel_from_config,
)

#: A kernel of two-dimensional points, and the same function of one pair of them.
Case = tuple[Callable[[], Kernel], Callable[[Tensor, Tensor], Tensor]]


def scaled_distance(x: Tensor, z: Tensor, lengthscale: float | list[float]) -> Tensor:
    return torch.linalg.vector_norm((x - z) / torch.as_tensor(lengthscale, dtype=x.dtype, device=DEVICE))


CASES: dict[str, Case] = {
    "RBF": (
        lambda: RBF(0.7, 1.3),
        lambda x, z: 1.3 * torch.exp(-0.5 * scaled_distance(x, z, 0.7) ** 2),
    ),
    "RBF, ARD": (
        lambda: RBF([0.7, 2.0], 1.3),
        lambda x, z: 1.3 * torch.exp(-0.5 * scaled_distance(x, z, [0.7, 2.0]) ** 2),
    ),
    "RBF, active_dims": (
        lambda: RBF(0.7, active_dims=[1]),
        lambda x, z: torch.exp(-0.5 * scaled_distance(x[1:], z[1:], 0.7) ** 2),
    ),
    "Matern12": (
        lambda: Matern12([0.7, 2.0], 1.3),
        lambda x, z: 1.3 * torch.exp(-scaled_distance(x, z, [0.7, 2.0])),
    ),
    "Matern32": (
        lambda: Matern32(0.7, 1.3),
        lambda x, z: 1.3 * matern(x, z, 3.0, lambda t: 1 + t),
    ),
    "Matern52": (
        lambda: Matern52(0.7, 1.3),
        lambda x, z: 1.3 * matern(x, z, 5.0, lambda t: 1 + t + t**2 / 3),
    ),
    "RationalQuadratic": (
        lambda: RationalQuadratic(0.7, 1.3, 0.9),
        lambda x, z: 1.3 * (1 + scaled_distance(x, z, 0.7) ** 2 / 1.8) ** -0.9,
    ),
    "Periodic": (
        lambda: Periodic([1.5, 2.5], [0.8, 1.2], 1.3),
        lambda x, z: 1.3 * torch.exp(-2 * sum_of_sines(x, z, [1.5, 2.5], [0.8, 1.2])),
    ),
    "Linear": (lambda: Linear([0.5, 2.0]), lambda x, z: 0.5 * x[0] * z[0] + 2.0 * x[1] * z[1]),
    "Polynomial": (lambda: Polynomial(3, 0.6, 1.3), lambda x, z: 1.3 * (x @ z + 0.6) ** 3),
    "Constant": (lambda: Constant(1.3), lambda x, z: torch.tensor(1.3, dtype=x.dtype, device=DEVICE)),
    "White": (
        lambda: White(1.3),
        lambda x, z: torch.tensor(1.3 if x is z else 0.0, dtype=x.dtype, device=DEVICE),
    ),
    "sum and product": (
        lambda: RBF(0.7) + Constant(1.3) * (Linear(0.5) + White(0.2)),
        lambda x, z: (
            torch.exp(-0.5 * scaled_distance(x, z, 0.7) ** 2) + 1.3 * (0.5 * x @ z + (0.2 if x is z else 0.0))
        ),
    ),
    "Deep": (
        lambda: Deep(RBF(0.7), Squares(), active_dims=[1, 0]),
        lambda x, z: torch.exp(-0.5 * scaled_distance(squares(x), squares(z), 0.7) ** 2),
    ),
}


def matern(x: Tensor, z: Tensor, order: float, factor: Callable[[Tensor], Tensor]) -> Tensor:
    t = math.sqrt(order) * scaled_distance(x, z, 0.7)
    return factor(t) * torch.exp(-t)


def sum_of_sines(x: Tensor, z: Tensor, period: list[float], lengthscale: list[float]) -> Tensor:
    turns = [(a - b) / p for a, b, p in zip(x, z, period, strict=True)]
    return sum((torch.sin(math.pi * t) / s) ** 2 for t, s in zip(turns, lengthscale, strict=True))


def squares(x: Tensor) -> Tensor:
    return torch.stack([x[..., 0] ** 2, x[..., 0] * x[..., 1], torch.tanh(x[..., 1])], -1)


class Squares(torch.nn.Module):
    """A network with a parameter that is multiplied with its result, and is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64, device=DEVICE))

    def forward(self, X: Tensor) -> Tensor:
        return self.weight.to(X) * squares(X.flip(-1))


def draw_points(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def evaluate_pairs(function: Callable[[Tensor, Tensor], Tensor], X: Tensor, Z: Tensor) -> Tensor:
    rows = list(X)
    columns = rows if Z is X else list(Z)
    return torch.stack([torch.stack([function(x, z) for z in columns]) for x in rows])


@pytest.fixture(params=[False, True], ids=["whole", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate small matrices in one piece, as usual, and in blocks, as large ones are."""
    if request.param:
        monkeypatch.setitem(_blocks._ELEMENTS, DEVICE.type, 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("blocks")
def test_values(case: str, dtype: torch.dtype) -> None:
    make, function = CASES[case]
    kernel, X, Z = make(), draw_points(7, 2, dtype=dtype), draw_points(4, 2, dtype=dtype, seed=1)
    assert_close(kernel(X, Z).detach(), evaluate_pairs(function, X, Z))
    K = kernel(X)
    expected = evaluate_pairs(function, X, X)
    assert_close(K.detach(), expected)
    assert torch.equal(K, K.mT)
    assert_close(kernel.diag(X).detach(), expected.diagonal())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("blocks")
def test_derivatives(case: str) -> None:
    # With its parameters where the points are: a graph on two devices is walked by two threads, and autograd
    # adds up gradients in the order in which they come, which gradcheck takes for an error.
    kernel = CASES[case][0]().to(DEVICE)
    X, Z = draw_points(3, 2).requires_grad_(), draw_points(2, 2, seed=1).requires_grad_()
    parameters = list(kernel.parameters())

    def between(X: Tensor, Z: Tensor, *parameters: Tensor) -> Tensor:
        return kernel(X, Z)

    def within(X: Tensor, *parameters: Tensor) -> Tensor:
        return kernel(X)

    for function, arguments in ((between, (X, Z, *parameters)), (within, (X, *parameters))):
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("lower_only", [False, True])
@pytest.mark.parametrize(
    "noise", [torch.tensor(0.3, device=DEVICE), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], device=DEVICE)]
)
def test_covariance_of_observations(noise: Tensor, lower_only: bool) -> None:
    kernel, X, noise = RBF(0.7), draw_points(5, 2).requires_grad_(), noise.double().requires_grad_()
    expected = kernel(X) + torch.diag(noise.expand(5))
    A = covariance(kernel, X, noise, lower_only=lower_only)
    assert_close(A.tril() if lower_only else A, expected.tril() if lower_only else expected)
    weights = draw_points(5, 5)
    if lower_only:
        weights = weights + weights.mT
    wanted = [X, noise, *kernel.parameters()]
    found = torch.autograd.grad(A, wanted, weights)
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), wanted), strict=True):
        assert_close(one, other)


def test_batches_broadcast() -> None:
    kernel, X, Z = RBF(0.7), draw_points(3, 1, 5, 2), draw_points(2, 4, 2, seed=1)
    K = kernel(X, Z)
    assert K.shape == (3, 2, 5, 4)
    assert_close(K[1, 1].detach(), kernel(X[1, 0], Z[1]).detach())
    assert kernel.diag(X).shape == (3, 1, 5)
    assert kernel(X).shape == (3, 1, 5, 5)


def test_no_points() -> None:
    kernel = RBF(0.7)
    assert kernel(draw_points(0, 2), draw_points(3, 2)).shape == (0, 3)
    assert kernel(draw_points(0, 2)).shape == (0, 0)
    assert kernel.diag(draw_points(0, 2)).shape == (0,)


def test_vectors_are_points_of_one_dimension() -> None:
    assert_close(RBF(0.7)(draw_points(5)), RBF(0.7)(draw_points(5)[:, None]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RBF()(torch.zeros(3, dtype=torch.int64, device=DEVICE)), "RBF: X has dtype torch.int64"),
        (lambda: RBF()(draw_points(3, 2), draw_points(3, 2, dtype=torch.float32)), "same dtype"),
        (lambda: RBF()(draw_points(3, 2), draw_points(3, 4)), "same number of columns"),
        (lambda: RBF([1.0, 2.0, 3.0])(draw_points(3, 2)), "3 lengthscales for points of 2 dimensions"),
        (
            lambda: GPRegression(draw_points(3, 2), draw_points(3), RBF([1.0, 2.0, 3.0])),
            "3 lengthscales for points of 2 dimensions",
        ),
        (lambda: RBF(active_dims=[2])(draw_points(3, 2)), "active_dims"),
        (lambda: RBF(-1.0), "lengthscale must be positive"),
        (lambda: RBF(math.nan), "lengthscale must be positive"),
        (lambda: RBF(torch.ones(2, 2, device=DEVICE)), "must be a scalar or of shape"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(lapgrad.LapgradError, match=message):
        call()


@pytest.mark.parametrize("dimensions", [1, 3, 5, 20])
@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_many_dimensions(kernel: type[Kernel], dimensions: int) -> None:
    """Distances come from differences in few dimensions, from products in more."""
    X, Z = 100.0 + draw_points(6, dimensions), 100.0 + draw_points(4, dimensions, seed=1)
    S = (X[:, None] - Z).square().sum(-1)
    assert_close(kernel(3.0)(X, Z).detach(), kernel(3.0).profile(S / 9.0), ROUNDED_DISTANCES)
    K = kernel(3.0)(X)
    assert torch.equal(K, K.mT)
    assert torch.equal(K.diagonal(), torch.ones(6, dtype=torch.float64, device=DEVICE))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dimensions", [2, 6])
@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52, RationalQuadratic])
@pytest.mark.usefixtures("blocks")
def test_gradients_at_coinciding_points(kernel: type[Kernel], dimensions: int, dtype: torch.dtype) -> None:
    """Pairs of equal points contribute nothing to the gradient, and do not disturb other pairs."""
    model = kernel()
    X = draw_points(5, dimensions, dtype=dtype)
    twice = torch.cat([X, X]).requires_grad_()
    weights = draw_points(10, 10, dtype=dtype)
    found = torch.autograd.grad((model(twice) * weights).sum(), [twice, *model.parameters()])
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    # The same sum, with the pairs that coincide left out.
    once = X.clone().requires_grad_()
    folded = (weights + weights.mT)[:, :5] + (weights + weights.mT)[:, 5:]
    folded = (folded[:5] + folded[5:]) / 2.0
    folded.fill_diagonal_(0.0)
    apart = ~torch.eye(5, dtype=torch.bool, device=DEVICE)
    S = (once[:, None] - once).square().sum(-1)
    shape = model.shape_parameters()
    K = torch.zeros_like(folded).masked_scatter(apart, model.profile(S[apart], *shape))
    (expected,) = torch.autograd.grad((K * folded).sum(), [once])
    assert_close(found[0][:5] + found[0][5:], expected, ROUNDED_DISTANCES)


def test_large_offsets() -> None:
    """Years and periods of a year: differences of large numbers."""
    years = 1988.0 + torch.linspace(0, 1, 13, device=DEVICE)
    expected = Periodic(1.0)(years.double()).detach()
    assert (Periodic(1.0)(years).double() - expected).abs().max() < 1e-3
    assert torch.equal(Matern12(0.1)(years[:, None]).diagonal(), torch.ones(13, device=DEVICE))


def test_sums_and_products_are_flat() -> None:
    kernel = RBF() + Linear() + White() * Constant() * RBF()
    assert [type(part).__name__ for part in kernel.parts] == ["RBF", "Linear", "Product"]
    assert len(kernel.parts[2].parts) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        RBF() + "1.0"  # type: ignore[operator]


@pytest.mark.parametrize("case", CASES)
def test_description_and_state_make_the_same_kernel(case: str) -> None:
    kernel, X = CASES[case][0](), draw_points(4, 2)
    state = kernel.state_dict()
    again = kernel_from_config(kernel.config(), state, {"network": Squares()})
    again.load_state_dict(state)
    assert torch.equal(again(X), kernel(X))
    assert repr(again) == repr(kernel)


def test_unknown_kernels_and_networks_are_named() -> None:
    with pytest.raises(lapgrad.FileFormatError, match="the kernel Cubic is not known"):
        kernel_from_config({"kind": "Cubic"}, {}, {})
    deep = Deep(RBF(), Squares(), name="features")
    with pytest.raises(lapgrad.OptionError, match=r"modules=\{'features': \.\.\.\}"):
        kernel_from_config(deep.config(), deep.state_dict(), {})


class Brownian(Kernel):
    """A kernel as a user writes it: min(x, z), times a weight that ``matrix`` takes from the module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64, device=DEVICE))

    def matrix(self, scalars: object, F: Tensor, G: Tensor | None) -> Tensor:
        return self.weight * torch.minimum(F, (F if G is None else G).mT)

    def diagonal(self, scalars: object, F: Tensor) -> Tensor:
        return self.weight * F[..., 0]


@pytest.mark.usefixtures("blocks")
def test_kernels_of_users_have_gradients() -> None:
    kernel, X = Brownian(), torch.rand(6, dtype=torch.float64).to(DEVICE)
    total = torch.minimum(X[:, None], X).sum()
    for K in (
        kernel(X),
        (kernel + RBF())(X),
        covariance(kernel, X[:, None], torch.tensor(0.1, device=DEVICE).double()),
    ):
        assert_close(torch.autograd.grad(K.sum(), kernel.weight)[0], total)


def test_transforms_of_torch() -> None:
    """vmap over points, jacobians by forward and by reverse mode, and a batch of hyper-parameters."""
    kernel, X = Matern52(0.7) + Periodic(), draw_points(3, 4, 2)
    assert_close(torch.func.vmap(kernel)(X), torch.stack([kernel(x) for x in X]))
    forward, reverse = torch.func.jacfwd(kernel)(X[0]), torch.func.jacrev(kernel)(X[0])
    assert_close(forward, reverse)
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=DEVICE)

    def of(raw: Tensor) -> Tensor:
        return torch.func.functional_call(RBF(), {"raw_lengthscale": raw}, (X[0],))

    assert_close(torch.func.vmap(of)(scales.log()), torch.stack([RBF(s.item())(X[0]) for s in scales]))


def test_parameters_follow_the_points() -> None:
    kernel = RBF(0.1)
    K = kernel(draw_points(3, 2, dtype=torch.float32))
    assert K.dtype == torch.float32
    assert kernel.raw_lengthscale.dtype == torch.float64
    (gradient,) = torch.autograd.grad(K.sum(), kernel.raw_lengthscale)
    assert gradient.dtype == torch.float64
