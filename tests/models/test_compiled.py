"""Kernels, criteria and losses under torch.compile: value and gradients are those without it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, assert_all_close, assert_close
from torch import Tensor

from lapgrad.models import (
    BayesianLinearRegression,
    GPRegression,
    LinearGaussianSSM,
    Model,
    RandomFourierFeatures,
    SparseGPRegression,
    gp_nll,
    kalman_filter,
    kernels,
    sgp_nll_from_matrices,
)
from lapgrad.models.components import LocalLevel
from lapgrad.models.kernels import RBF, Kernel


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(DEVICE)


def compare(
    function: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    backend: str = "aot_eager",
    fullgraph: bool = True,
) -> None:
    """Compare value and gradients of a function with and without torch.compile."""
    found = []
    for version in (torch.compile(function, backend=backend, fullgraph=fullgraph), function):
        inputs = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        value = version(*inputs)
        found.append((value.detach(), *torch.autograd.grad(value.sum(), inputs)))
    assert_all_close(*found, HIGHER_ORDER)


#: backend "eager" traces Python only; "aot_eager" traces autograd, too, and takes seconds.
KERNELS: dict[str, tuple[Callable[[], Kernel], str]] = {
    "one by one": (
        lambda: (
            kernels.Matern12(0.7)
            + kernels.Matern32(0.7)
            + kernels.RationalQuadratic(0.7)
            + kernels.Linear([0.5, 2.0])
            + kernels.Polynomial(2)
            + kernels.Constant(0.5)
        ),
        "eager",
    ),
    "sums and products": (
        lambda: (
            RBF([0.7, 1.2]) * kernels.Periodic(1.5) + kernels.Matern52(0.9, active_dims=[1]) + kernels.White()
        ),
        "aot_eager",
    ),
    "RBF alone": (lambda: RBF([0.7, 1.2]), "aot_eager"),
}


@pytest.mark.parametrize("case", KERNELS)
def test_kernels(case: str) -> None:
    make, backend = KERNELS[case]
    kernel, Z = make().to(DEVICE), draw(4, 2)
    parameters = dict(kernel.named_parameters())

    def total(X: Tensor, *values: Tensor) -> Tensor:
        def call(*arguments: Tensor) -> Tensor:
            return torch.func.functional_call(kernel, dict(zip(parameters, values, strict=True)), arguments)

        return call(X).sin().sum() + call(X, Z).sin().sum()

    compare(total, [draw(6, 2), *parameters.values()], backend)


def test_gp_nll() -> None:
    compare(lambda root, y: gp_nll(root @ root.mT, y, 0.3), [draw(6, 6), draw(6)])


def test_sgp_nll() -> None:
    def criterion(root: Tensor, Kuf: Tensor, Y: Tensor, noise: Tensor) -> Tensor:
        Kuu = root @ root.mT + torch.eye(3, dtype=root.dtype, device=root.device)
        return sgp_nll_from_matrices(Kuu, Kuf, Kuf.square().sum(0) + 1.0, Y, noise.exp())

    compare(criterion, [draw(3, 3), draw(3, 6), draw(6, 2), draw()])


def test_kalman_filter() -> None:
    """torch.compile unrolls the loop over the steps."""
    y, one = draw(2, 1), torch.eye(2, dtype=torch.float64, device=DEVICE)

    def criterion(A: Tensor, B: Tensor, noise: Tensor) -> Tensor:
        return kalman_filter(y, A, B, one, noise.exp() * one[:1, :1], one[0], one).log_likelihood.sum()

    compare(criterion, [draw(2, 2), draw(1, 2), draw()], "eager")


def models() -> dict[str, Callable[[], Model]]:
    X, y = draw(8, 2), draw(8)
    return {
        "GPRegression": lambda: GPRegression(X, y, RBF([0.7, 1.2]), normalise=False),
        "SparseGPRegression": lambda: SparseGPRegression(
            X, y, RBF(0.7), inducing=3, generator=0, normalise=False
        ),
        "BayesianLinearRegression": lambda: BayesianLinearRegression(X, y, normalise=False),
        "BayesianLinearRegression, cholesky": lambda: BayesianLinearRegression(
            X, y, method="cholesky", normalise=False
        ),
        "BayesianLinearRegression, learned": lambda: BayesianLinearRegression(
            X,
            y,
            RandomFourierFeatures(2, 3, generator=0),
            normalise=False,
        ),
        "LinearGaussianSSM": lambda: LinearGaussianSSM(y, LocalLevel(0.1)),
    }


@pytest.mark.parametrize("name", [name for name in models() if name != "SparseGPRegression"])
def test_loss_in_one_graph(name: str) -> None:
    """The loss compiles to one graph, also after an eager call that has filled caches."""
    model = models()[name]()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = model.loss()
    found = torch.compile(model.loss, backend="eager", fullgraph=True)()
    assert_close(found.detach(), expected.detach(), HIGHER_ORDER)
    of_both = (torch.autograd.grad(value, learned, materialize_grads=True) for value in (found, expected))
    assert_all_close(*of_both, HIGHER_ORDER)


# Dynamo reads the .grad of the tensors that replace the parameters of a kernel.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("name", ["GPRegression", "SparseGPRegression"])
def test_step_of_training(name: str) -> None:
    """The loss, its gradients, and the parameters after one step of an optimiser."""
    plain = models()[name]()
    compiled = copy.deepcopy(plain)
    losses = []
    for model, loss in ((plain, plain.loss), (compiled, torch.compile(compiled.loss, backend="eager"))):
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(2):
            optimiser.zero_grad()
            value = loss()
            value.backward()
            optimiser.step()
        losses.append(value.detach())
    assert_close(losses[1], losses[0], HIGHER_ORDER)
    for one, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert_close(one.detach(), other.detach(), HIGHER_ORDER)
