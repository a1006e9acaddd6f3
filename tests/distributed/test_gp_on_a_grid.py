"""GPRegression with its covariance on a simulated grid: all results are those of one process."""

from __future__ import annotations

import copy

import pytest
import torch
from simulated_grid import run_on_grid
from tolerances import FITTED_ON_A_GRID, ON_A_GRID, assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.distributed import ProcessGrid, make_grid
from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF, Deep, Kernel, Linear, Matern32

GRIDS = [(1, 1), (1, 2), (2, 2), (4, 1)]
pytestmark = pytest.mark.cpu


def make_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    X = torch.rand(43, 2, dtype=torch.float64)
    y = torch.stack([torch.sin(5 * X[:, 0]), X[:, 1]], 1) + 0.1 * torch.randn(43, 2, dtype=torch.float64)
    return X[:36], y[:36], X[36:], y[36:]


class Tapered(Kernel):
    """A kernel that is not declared pure: its matrix uses a parameter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7))

    def matrix(self, scalars: object, F: Tensor, G: Tensor | None) -> Tensor:
        other = F if G is None else G
        return self.weight.exp() * torch.exp(-(F[:, None] - other[None]).square().sum(-1))

    def diagonal(self, scalars: object, F: Tensor) -> Tensor:
        return self.weight.exp().expand(len(F))


def make_kernel(name: str) -> Kernel:
    if name == "sum":
        return RBF(ard=True, name="smooth") + Matern32(active_dims=[1]) * Linear()
    if name == "deep":
        return Deep(RBF(), nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    return Tapered()


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("name", ["sum", "deep", "tapered"])
def test_loss_and_gradients(shape: tuple[int, int], name: str) -> None:
    X, y, _, _ = make_data()
    kernel = make_kernel(name)

    def evaluate(grid: ProcessGrid | None) -> list[Tensor]:
        model = GPRegression(X, y, copy.deepcopy(kernel), mean="linear", distributed=grid)
        loss = model.loss()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    expected = evaluate(None)
    for found in run_on_grid(shape, 8, evaluate):
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, ON_A_GRID)


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("vector", [True, False])
def test_predictions(shape: tuple[int, int], vector: bool) -> None:
    X, y, X_new, y_new = make_data()
    y, y_new = (y[:, 0], y_new[:, 0]) if vector else (y, y_new)

    def evaluate(grid: ProcessGrid | None) -> list[Tensor]:
        model = GPRegression(X, y, make_kernel("sum"), noise_var=0.05, distributed=grid)
        found = [*model.predict(X_new, noise=True), *model.predict(X_new, full_cov=True)]
        found += [*model.predict(X_new, chunk=3), *model.predict(X_new, part="smooth")]
        found += [model.log_prob(X_new, y_new), model.log_prob(X_new, y_new, joint=True)]
        found += [model.sample(X_new, 2, generator=1)]
        found += [*model.predict(X_new[:0])]
        return [part.detach() for part in found]

    expected = evaluate(None)
    for found in run_on_grid(shape, 8, evaluate):
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, ON_A_GRID)


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("full_cov", [True, False])
def test_gradients_of_predictions(shape: tuple[int, int], full_cov: bool) -> None:
    X, y, X_new, _ = make_data()
    of_mean, of_spread = torch.randn(7, 2).double(), torch.randn((7, 7) if full_cov else (7,)).double()

    def evaluate(grid: ProcessGrid | None) -> Tensor:
        model = GPRegression(X, y, make_kernel("sum"), noise_var=0.05, distributed=grid)
        points = X_new.clone().requires_grad_()
        mean, spread = model.predict(points, full_cov=full_cov)
        (gradient,) = torch.autograd.grad((mean * of_mean).sum() + (spread * of_spread).sum(), points)
        return gradient

    expected = evaluate(None)
    for found in run_on_grid(shape, 8, evaluate):
        assert_close(found, expected, ON_A_GRID)


@pytest.mark.parametrize(("starts", "steps"), [(1, 12), (None, None), (3, 12)])
def test_fit(starts: int | None, steps: int | None) -> None:
    """All processes learn the same parameters to the last bit, and those that one process learns."""
    X, y, _, _ = make_data()

    def learn(grid: ProcessGrid | None) -> list[Tensor]:
        model = GPRegression(X, y[:, 0], RBF(), distributed=grid)
        model.fit(starts=starts, steps=steps)
        return [model.loss().detach(), *(parameter.detach() for parameter in model.parameters())]

    expected = learn(None)
    results = run_on_grid((1, 2), 8, learn)
    assert_close(results[0][0], expected[0], FITTED_ON_A_GRID)
    for found in results[1:]:
        for actual, first in zip(found, results[0], strict=True):
            assert torch.equal(actual, first)


def test_starts_drawn_without_a_seed_are_those_of_the_first_process() -> None:
    X, y, _, _ = make_data()

    def learn(grid: ProcessGrid) -> list[Tensor]:
        source = torch.Generator().manual_seed(grid.rank)
        model = GPRegression(X, y[:, 0], RBF(), distributed=grid)
        model.fit(starts=3, steps=4, generator=source)
        return [parameter.detach() for parameter in model.parameters()]

    first, second = run_on_grid((2, 1), 8, learn)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_jitter_on_a_grid() -> None:
    """Points that coincide: the matrix is singular, and needs as much jitter as in one process."""
    X, y = torch.zeros(20, 1, dtype=torch.float64), torch.arange(20.0, dtype=torch.float64)
    seen = []
    for grid in (None, make_grid(block=8)):
        kernel = RBF(lengthscale=1.0, variance=1.0)
        model = GPRegression(X, y, kernel, noise_var=1e-30, noise_floor=1e-40, distributed=grid)
        with pytest.warns(lapgrad.JitterWarning):
            assert model.loss().isfinite()
        seen.append(model.jitter)
    assert seen[0] == seen[1] > 0.0


def test_what_needs_the_whole_matrix_says_so() -> None:
    X, y, X_new, y_new = make_data()
    model = GPRegression(X, y, distributed=make_grid(block=8))
    for call in (model.loo_loss, model.leave_one_out, lambda: model.add_data(X_new, y_new)):
        with pytest.raises(lapgrad.OptionError, match="whole covariance"):
            call()
    model.distributed = None
    model.leave_one_out()
    with pytest.raises(lapgrad.OptionError, match="ProcessGrid"):
        model.distributed = "all"  # type: ignore[assignment]


def test_other_data_on_another_process_are_an_error() -> None:
    def make(grid: ProcessGrid) -> str:
        X = torch.linspace(0, 1, 9, dtype=torch.float64)
        with pytest.raises(lapgrad.OptionError) as caught:
            GPRegression(X, X + float(grid.rank), distributed=grid)
        return str(caught.value)

    assert all("y must be the same" in message for message in run_on_grid((1, 2), 4, make))


def test_files_do_not_keep_the_grid(tmp_path: object) -> None:
    X, y, X_new, _ = make_data()
    model = GPRegression(X, y, distributed=make_grid(block=8))
    model.save(f"{tmp_path}/model")
    loaded = GPRegression.load(f"{tmp_path}/model")
    assert loaded.distributed is None
    assert_close(loaded.predict(X_new).mean, model.predict(X_new).mean, ON_A_GRID)
