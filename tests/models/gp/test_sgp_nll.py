"""The bound of a sparse Gaussian process: against its definition, streamed and from matrices."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from device import DEVICE
from tolerances import (
    HIGHER_ORDER,
    INDUCING,
    INDUCING_FLOAT32,
    LITTLE_NOISE,
    OF_JITTER,
    assert_all_close,
    assert_close,
)
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.fused import KernelFunction
from lapgrad.fused._sgp import evaluation as _evaluation
from lapgrad.fused._sgp import gradient as _gradient
from lapgrad.models import kernels, sgp_nll, sgp_nll_from_matrices

DOUBLE = torch.float64
Tensors = tuple[Tensor, ...]


def rbf(A: Tensor, B: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    difference = A[..., :, None, :] / lengthscale - B[..., None, :, :] / lengthscale
    return variance * torch.exp(-0.5 * difference.square().sum(-1))


def rbf_diagonal(A: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    return variance.expand(A.shape[:-1])


class RBF(nn.Module):
    """The RBF kernel as a module, with buffers that select and scale columns."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.logarithms = nn.Parameter(torch.linspace(-0.2, 0.3, d, device=DEVICE))
        self.log_variance = nn.Parameter(torch.tensor(0.4, device=DEVICE))
        self.unused = nn.Parameter(torch.tensor(1.0, device=DEVICE))
        self.register_buffer("columns", torch.arange(d, device=DEVICE))
        self.register_buffer("unit", torch.tensor(2.0, device=DEVICE))

    def forward(self, A: Tensor, B: Tensor | None = None) -> Tensor:
        B = A if B is None else B
        scale = self.logarithms.exp() * self.unit
        return rbf(A[:, self.columns], B[:, self.columns], scale, self.log_variance.exp())

    def diag(self, A: Tensor) -> Tensor:
        return self.log_variance.exp().expand(len(A))


def make_problem(n: int = 30, U: int = 6, d: int = 2, k: int = 1, dtype: torch.dtype = DOUBLE) -> Tensors:
    """Return Z, X, Y, noise_var, lengthscale and variance."""
    generator = torch.Generator().manual_seed(n + 100 * U + 1000 * d)
    X = torch.randn(n, d, dtype=DOUBLE, generator=generator).to(DEVICE)
    Z = torch.randn(U, d, dtype=DOUBLE, generator=generator).to(DEVICE)
    Y = torch.sin(X.sum(-1, keepdim=True) + torch.arange(k, device=DEVICE)) + 0.1 * torch.randn(
        n, k, dtype=DOUBLE, generator=generator
    ).to(DEVICE)
    noise_var, variance = (
        torch.tensor(0.2, dtype=DOUBLE, device=DEVICE),
        torch.tensor(1.5, dtype=DOUBLE, device=DEVICE),
    )
    tensors = (Z, X, Y, noise_var, torch.linspace(0.8, 1.2, d, dtype=DOUBLE, device=DEVICE), variance)
    return tuple(tensor.to(dtype).requires_grad_() for tensor in tensors)


def compute_by_definition(
    Z: Tensor,
    X: Tensor,
    Y: Tensor,
    noise_var: Tensor,
    lengthscale: Tensor,
    variance: Tensor,
    jitter: float = 1e-6,
) -> Tensor:
    """Return the bound by its definition, with the whole n x n matrix Q."""
    Kuu, Kuf = rbf(Z, Z, lengthscale, variance), rbf(Z, X, lengthscale, variance)
    Q = Kuf.mT @ torch_lu.solve(
        Kuu + jitter * variance * torch.eye(len(Z), dtype=Z.dtype, device=DEVICE), Kuf
    )
    n, k = Y.shape
    covariance = Q + noise_var * torch.eye(n, dtype=Z.dtype, device=DEVICE)
    density = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=Z.dtype, device=DEVICE), covariance)
    return -density.log_prob(Y.mT).sum() + 0.5 * k / noise_var * (n * variance - Q.trace())


def compute_streamed(
    Z: Tensor, X: Tensor, Y: Tensor, noise_var: Tensor, *parameters: Tensor, **options: Any
) -> Tensor:
    return lapgrad.fused.sgp_nll(KernelFunction(rbf, rbf_diagonal, parameters), Z, X, Y, noise_var, **options)


def compute_value_and_gradients(
    criterion: Callable[..., Tensor], tensors: Tensors, **options: Any
) -> Tensors:
    value = criterion(*tensors, **options)
    return (value.detach(), *torch.autograd.grad(value, tensors))


@pytest.mark.parametrize("chunk", [None, 7, 30, 100])
@pytest.mark.parametrize("k", [1, 3])
def test_streamed_is_the_definition(k: int, chunk: int | None) -> None:
    tensors = make_problem(k=k)
    expected = compute_value_and_gradients(compute_by_definition, tensors)
    assert_all_close(
        compute_value_and_gradients(compute_streamed, tensors, chunk=chunk), expected, HIGHER_ORDER
    )
    with torch.no_grad():
        assert_close(compute_streamed(*tensors, chunk=chunk), expected[0])


@pytest.mark.parametrize(("n", "U"), [(1, 1), (5, 1), (1, 4), (4, 9), (5, 0), (0, 3), (0, 0)])
def test_few_points(n: int, U: int) -> None:
    tensors = make_problem(n, U)
    if n:
        expected = compute_value_and_gradients(compute_by_definition, tensors)
        assert_all_close(compute_value_and_gradients(compute_streamed, tensors), expected, HIGHER_ORDER)
    else:
        assert all(not part.abs().sum() for part in compute_value_and_gradients(compute_streamed, tensors))


def test_blocks_of_inducing_inputs() -> None:
    """More inducing inputs than one block column of the symmetric matrices has."""
    tensors = make_problem(n=500, U=401, d=3)
    expected = compute_value_and_gradients(compute_from_matrices, tensors, jitter=1e-2)
    assert_all_close(
        compute_value_and_gradients(compute_streamed, tensors, chunk=210, jitter=1e-2), expected, INDUCING
    )


def compute_from_matrices(
    Z: Tensor, X: Tensor, Y: Tensor, noise_var: Tensor, *parameters: Tensor, jitter: float = 1e-6
) -> Tensor:
    Kuu = rbf(Z, Z, *parameters)
    Kuu = Kuu + jitter * Kuu.diagonal().mean() * torch.eye(len(Z), dtype=Z.dtype, device=DEVICE)
    return sgp_nll_from_matrices(Kuu, rbf(Z, X, *parameters), rbf_diagonal(X, *parameters), Y, noise_var)


def test_exact_when_all_points_are_inducing() -> None:
    Z, X, Y, noise_var, *parameters = [tensor.detach() for tensor in make_problem(n=12)]
    exact = lapgrad.fused.mvn_nll(
        rbf(X, X, *parameters) + noise_var * torch.eye(12, dtype=DOUBLE, device=DEVICE), Y
    )
    at_data = compute_streamed(X, X, Y, noise_var, *parameters, jitter=1e-13)
    assert_close(at_data, exact, OF_JITTER)
    assert compute_streamed(Z, X, Y, noise_var, *parameters) > exact


@pytest.mark.parametrize("wanted", [[0], [1], [2], [3], [4, 5], [0, 3], []])
def test_gradients_of_a_part(wanted: list[int]) -> None:
    """Gradients that are not needed are not computed, and the others stay the same."""
    tensors = make_problem()
    expected = compute_value_and_gradients(compute_by_definition, tensors)[1:]
    detached = [tensor if i in wanted else tensor.detach() for i, tensor in enumerate(tensors)]
    value = compute_streamed(*detached, chunk=11)
    assert value.requires_grad == bool(wanted)
    if wanted:
        found = torch.autograd.grad(value, [tensors[i] for i in wanted])
        assert_all_close(found, [expected[i] for i in wanted], HIGHER_ORDER)


def test_gradcheck_and_second_derivatives() -> None:
    tensors = make_problem(n=5, U=3)
    assert gradcheck(lambda *t: compute_streamed(*t, chunk=2), tensors)
    assert gradgradcheck(lambda *t: compute_streamed(*t, chunk=2), tensors)


def test_gradient_is_scaled() -> None:
    tensors = make_problem()
    (once,) = torch.autograd.grad(compute_streamed(*tensors), tensors[:1])
    (scaled,) = torch.autograd.grad(3.0 * compute_streamed(*tensors), tensors[:1])
    assert_close(scaled, 3.0 * once)


def test_transforms_run_through_the_matrices() -> None:
    tensors = tuple(tensor.detach() for tensor in make_problem())
    expected = compute_value_and_gradients(compute_streamed, make_problem())
    assert_close(torch.func.grad(compute_streamed)(*tensors), expected[1], HIGHER_ORDER)
    tangents = tuple(torch.ones_like(tensor) for tensor in tensors)
    value, slope = torch.func.jvp(compute_streamed, tensors, tangents)
    assert_close(value, expected[0])
    assert_close(
        slope,
        sum((gradient.sum() for gradient in expected[1:]), torch.zeros((), dtype=DOUBLE, device=DEVICE)),
        HIGHER_ORDER,
    )


def test_module_as_a_kernel() -> None:
    kernel = RBF(2)
    Z, X, Y, noise_var, *_ = make_problem(dtype=torch.float32)
    value = lapgrad.fused.sgp_nll(kernel, Z, X, Y, noise_var, chunk=8)
    value.backward()
    scale, variance = (
        2.0 * kernel.logarithms.detach().double().exp(),
        kernel.log_variance.detach().double().exp(),
    )
    leaves = [Z.detach().double().requires_grad_(), scale.requires_grad_(), variance.requires_grad_()]
    data = (X.detach().double(), Y.detach().double(), noise_var.detach().double())
    expected = compute_by_definition(leaves[0], *data, *leaves[1:])
    gZ, g_scale, g_variance = torch.autograd.grad(expected, leaves)
    assert_close(value, expected.float())
    assert_close(Z.grad, gZ.float())
    assert_close(kernel.logarithms.grad, (g_scale * scale).float())
    assert_close(kernel.log_variance.grad, (g_variance * variance).float())
    assert kernel.unused.grad == 0
    assert all(parameter.dtype is torch.float32 for parameter in kernel.parameters())


def test_float32_where_its_own_arithmetic_fails() -> None:
    """500 inducing inputs in a small box: K_uu has no Cholesky factor in float32."""
    tensors = make_problem(n=700, U=500)
    single = tuple(tensor.detach().float().requires_grad_() for tensor in tensors)
    double = tuple(tensor.detach().double().requires_grad_() for tensor in single)
    with pytest.raises(lapgrad.NotPositiveDefiniteError):
        compute_from_matrices(*single)
    expected = compute_value_and_gradients(compute_streamed, double)
    found = compute_value_and_gradients(compute_streamed, single)
    assert_all_close(found, [part.float() for part in expected], INDUCING_FLOAT32)


def test_gradient_of_inputs_in_float32_where_most_cancels() -> None:
    """With a linear kernel and little noise, the two parts of the gradient of inputs nearly cancel."""

    def linear(A: Tensor, B: Tensor) -> Tensor:
        return A @ B.mT

    kernel = KernelFunction(linear, lambda A: A.square().sum(-1))
    Z, X, Y, *_ = (tensor.detach().float() for tensor in make_problem(n=60, U=6, d=3))
    gradients = []
    for dtype in (torch.float32, DOUBLE):
        inputs = (5.0 + X).to(dtype).requires_grad_()
        value = lapgrad.fused.sgp_nll(kernel, Z.to(dtype), inputs, 0.01 * Y.to(dtype), 1e-3, jitter=1e-9)
        gradients += torch.autograd.grad(value, inputs)
    assert_close(gradients[0], gradients[1].float(), INDUCING_FLOAT32)


def test_a_value_alone_asks_for_no_gradient() -> None:
    kernel = RBF(2)
    Z, X, Y, *_ = (tensor.detach().float() for tensor in make_problem())
    expected = lapgrad.fused.sgp_nll(kernel, Z, X, Y, 0.1)
    with mock.patch.object(_gradient, "differentiate_matrices", side_effect=AssertionError), torch.no_grad():
        found = lapgrad.fused.sgp_nll(kernel, Z, X, Y, 0.1)
    assert_close(found, expected.detach(), 0)
    assert not found.requires_grad


def test_memory_does_not_grow_with_the_data() -> None:
    """No tensor is larger than U x U or U x chunk (or the data)."""
    n, U, chunk, largest = 2000, 20, 100, 0
    Z, X, Y, noise_var, *parameters = make_problem(n, U)

    def watch_sizes(A: Tensor, B: Tensor, *parameters: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, len(A) * len(B))
        return rbf(A, B, *parameters)

    kernel = KernelFunction(watch_sizes, rbf_diagonal, tuple(parameters))
    lapgrad.fused.sgp_nll(kernel, Z, X.detach(), Y.detach(), noise_var, chunk=chunk).backward()
    assert largest == U * chunk


# The function of matrices.


def make_matrices(*batch: int, n: int = 7, U: int = 3, k: int | None = None) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    Z, X = (torch.randn(*batch, size, 2, dtype=DOUBLE, generator=generator).to(DEVICE) for size in (U, n))
    one = torch.ones((), dtype=DOUBLE, device=DEVICE)
    Y = torch.randn(*batch, n, *([] if k is None else [k]), dtype=DOUBLE, generator=generator).to(DEVICE)
    Kuu, Kuf = rbf(Z, Z, one, one) + 0.01 * torch.eye(U, dtype=DOUBLE, device=DEVICE), rbf(Z, X, one, one)
    diagonal = rbf_diagonal(X, one, one).clone()
    return Kuu, Kuf, diagonal, Y, torch.full(batch, 0.3, dtype=DOUBLE, device=DEVICE)


@pytest.mark.parametrize("k", [None, 2])
def test_function_of_matrices_has_derivatives(k: int | None) -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in make_matrices(k=k))

    def symmetric(Kuu: Tensor, *others: Tensor) -> Tensor:
        return sgp_nll_from_matrices(0.5 * (Kuu + Kuu.mT), *others)

    assert gradcheck(symmetric, tensors, check_forward_ad=True)
    assert gradgradcheck(symmetric, tensors)


@pytest.mark.parametrize("k", [None, 2])
def test_function_of_matrices_takes_batches(k: int | None) -> None:
    Kuu, Kuf, diagonal, Y, noise_var = make_matrices(4, k=k)
    values = sgp_nll_from_matrices(Kuu, Kuf, diagonal, Y, noise_var)
    assert values.shape == (4,)
    for i in range(4):
        assert_close(values[i], sgp_nll_from_matrices(Kuu[i], Kuf[i], diagonal[i], Y[i], 0.3))
    one_kernel = sgp_nll_from_matrices(Kuu[0], Kuf[0], diagonal[0], Y if k else Y[..., None], noise_var)
    for i in range(4):
        assert_close(one_kernel[i], sgp_nll_from_matrices(Kuu[0], Kuf[0], diagonal[0], Y[i], 0.3))


# Errors.


def test_errors_of_the_streamed_one() -> None:
    Z, X, Y, noise_var, *parameters = [tensor.detach() for tensor in make_problem()]
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (lapgrad.ShapeError, "Z must be U x d", (Z[:, :1], X, Y, noise_var), {}),
        (lapgrad.ShapeError, "Y n x k", (Z, X, Y[1:], noise_var), {}),
        (lapgrad.ShapeError, "Y must be", (Z, X, Y[:, 0], noise_var), {}),
        (lapgrad.ShapeError, "X must be one matrix", (Z, X[None], Y, noise_var), {}),
        (lapgrad.ShapeError, "noise_var must be a scalar", (Z, X, Y, noise_var.expand(2)), {}),
        (lapgrad.DTypeError, "same dtype", (Z.float(), X, Y, noise_var), {}),
        (lapgrad.DTypeError, "same dtype", (Z, X, Y, noise_var.float()), {}),
        (lapgrad.OptionError, "noise_var must be positive", (Z, X, Y, -1.0), {}),
        (lapgrad.OptionError, "jitter", (Z, X, Y, noise_var), {"jitter": -1e-6}),
        (lapgrad.OptionError, "chunk", (Z, X, Y, noise_var), {"chunk": 0}),
        (lapgrad.NotPositiveDefiniteError, "K_uu", (Z[[0, 0]], X, Y, noise_var), {"jitter": 0.0}),
        (lapgrad.NonFiniteError, "K_uu", (Z * torch.nan, X, Y, noise_var), {}),
        (lapgrad.NonFiniteError, "K_uf", (Z, X * torch.nan, Y, noise_var), {}),
        (lapgrad.NonFiniteError, "Y contains", (Z, X, Y * torch.inf, noise_var), {}),
    ]
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=rf"^fused.sgp_nll: .*{message}"):
            compute_streamed(*arguments, *parameters, **options)
    with pytest.raises(lapgrad.OptionError, match="kernel must be a KernelFunction"):
        lapgrad.fused.sgp_nll(rbf, Z, X, Y, noise_var)  # type: ignore[arg-type]


def test_errors_of_the_function_of_matrices() -> None:
    Kuu, Kuf, diagonal, Y, noise_var = make_matrices()
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match="from_matrices: Kuu is not positive definite"):
        sgp_nll_from_matrices(-Kuu, Kuf, diagonal, Y, noise_var)
    with pytest.raises(lapgrad.NonFiniteError, match="sgp_nll_from_matrices: I \\+"):
        sgp_nll_from_matrices(Kuu, Kuf * torch.nan, diagonal, Y, noise_var)
    with pytest.raises(lapgrad.ShapeError, match="kff_diag have n entries"):
        sgp_nll_from_matrices(Kuu, Kuf, diagonal[1:], Y, noise_var)
    with pytest.raises(lapgrad.OptionError, match="noise_var must be positive"):
        sgp_nll_from_matrices(Kuu, Kuf, diagonal, Y, 0.0)
    with pytest.raises(lapgrad.DTypeError, match="same dtype"):
        sgp_nll_from_matrices(Kuu, Kuf, diagonal.float(), Y, noise_var)


@pytest.mark.parametrize("k", [1, 3])
def test_gradient_with_little_noise(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K_uu is nearly singular and noise small: products with G would lose what solves keep."""
    X = torch.linspace(-3, 3, 150, dtype=DOUBLE, device=DEVICE)[:, None]
    Y = torch.sin(X + torch.arange(k, device=DEVICE)) + 1e-3 * torch.cos(40.0 * X)
    values = (
        X[::10] + 0.01,
        X,
        Y,
        torch.tensor(1e-5, device=DEVICE),
        torch.tensor([1.0], device=DEVICE),
        torch.tensor(2.0, device=DEVICE),
    )
    tensors = tuple(value.to(DOUBLE).requires_grad_() for value in values)
    Z, X, Y, noise_var, *parameters = tensors

    def evaluate_streamed(chunk: int | None = None) -> Tensors:
        kernel = KernelFunction(rbf, rbf_diagonal, tuple(parameters))
        s = lapgrad.fused.sgp_nll(kernel, Z, X, Y, noise_var, jitter=1e-8, chunk=chunk)
        return torch.autograd.grad(s, tensors)

    Kuu = rbf(Z, Z, *parameters) + 1e-8 * parameters[1] * torch.eye(len(Z), dtype=DOUBLE, device=DEVICE)
    of_matrices = sgp_nll_from_matrices(
        Kuu, rbf(Z, X, *parameters), rbf_diagonal(X, *parameters), Y, noise_var
    )
    wanted = torch.autograd.grad(of_matrices, tensors)
    for chunk in (None, 40):
        assert_all_close(evaluate_streamed(chunk), wanted, LITTLE_NOISE)
    monkeypatch.setattr(_evaluation, "IMPRECISE", math.inf)
    with pytest.raises(AssertionError):
        assert_all_close(evaluate_streamed(), wanted, LITTLE_NOISE)


def test_the_criterion_of_models_is_the_fused_one() -> None:
    """One signature; the arguments of ``sgp_nll_from_matrices`` are still taken, with a warning."""
    X = torch.linspace(0.0, 3.0, 12, dtype=torch.float64)[:, None]
    Z, Y, kernel = X[::4].clone(), torch.sin(X), kernels.RBF().double()
    assert inspect.signature(sgp_nll) == inspect.signature(lapgrad.fused.sgp_nll)
    expected = lapgrad.fused.sgp_nll(kernel, Z, X, Y, 0.1, jitter=1e-4, chunk=5)
    assert_close(sgp_nll(kernel, Z, X, Y, 0.1, jitter=1e-4, chunk=5), expected, 0)
    matrices = (kernel(Z) + 1e-6 * torch.eye(3, dtype=torch.float64), kernel(Z, X), kernel.diag(X), Y, 0.1)
    with pytest.warns(DeprecationWarning, match="sgp_nll_from_matrices"):
        assert_close(sgp_nll(*matrices), sgp_nll_from_matrices(*matrices), 0)  # type: ignore[arg-type]
