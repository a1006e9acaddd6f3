"""The kernel of the Kalman filter for series of numbers, against that for several values at a time."""

from __future__ import annotations

import pytest
import torch
from tolerances import FLAT_DIRECTIONS, SUMS_OVER_STEPS, assert_close
from torch import Tensor
from torch.autograd import gradcheck

import lapgrad
from lapgrad.fused import kalman_nll

pytestmark = pytest.mark.cpu  # it belongs to the compiled core

NAMES = ("y", "A", "B", "Q", "R", "m", "P", "state_offset", "diffuse")
T = 30


def make_problem(n: int, d: int, *, varies: bool = False, noise: float = 0.5) -> dict[str, Tensor]:
    """Return a series with gaps, and a model with zeros in A and B; ``varies``: matrices for each time."""
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    y = draw(T, 1)
    y[4], y[9:12], y[-1] = torch.nan, torch.nan, torch.nan
    times = (T,) if varies else ()
    identity = torch.eye(n, dtype=torch.float64)
    # Each state becomes the next one, and is seen when it is the first: all of them are determined.
    A = 0.95 * identity.roll(1, 0) + 0.05 * draw(*times, n, n) * (torch.rand(n, n) < 0.3)
    factor = 0.3 * draw(*times, n, n)
    B = 0.05 * draw(*times, 1, n)
    B[..., 1::3] = 0.0
    B[..., 0] = 1.0
    return {
        "y": y,
        "A": A,
        "B": B,
        "Q": factor @ factor.mT + 0.1 * identity,
        "R": torch.full((*times, 1, 1), noise, dtype=torch.float64),
        "m": draw(n),
        "P": identity + 0.0,
        "state_offset": 0.1 * draw(*times, n),
        "diffuse": identity[:, :d] + 0.1 * draw(n, d),
    }


def evaluate(problem: dict[str, Tensor], wanted: tuple[str, ...], *, beside_missing: bool) -> list[Tensor]:
    """Return value and gradients; ``beside_missing``: with a second observation that is never there."""
    given = {name: tensor.clone().requires_grad_(name in wanted) for name, tensor in problem.items()}
    used = dict(given)
    if beside_missing:
        used["y"] = torch.nn.functional.pad(given["y"], (0, 1), value=torch.nan)
        used["B"] = torch.nn.functional.pad(given["B"], (0, 0, 0, 1), value=1.0)
        used["R"] = torch.nn.functional.pad(given["R"], (0, 1, 0, 1)) + torch.diag(
            torch.tensor([0.0, 1.0], dtype=torch.float64)
        )
    value = kalman_nll(**used)
    found = torch.autograd.grad(value, [given[name] for name in wanted])
    return [value.detach(), *found]


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("n", "d"), [(1, 0), (1, 1), (3, 2), (4, 4), (5, 1), (8, 8), (9, 0), (13, 12)])
def test_agrees_with_the_kernel_of_several_observations(n: int, d: int, varies: bool) -> None:
    problem = make_problem(n, d, varies=varies)
    wanted = tuple(name for name in NAMES if name != "B" and (d or name != "diffuse"))
    found = evaluate(problem, wanted, beside_missing=False)
    expected = evaluate(problem, wanted, beside_missing=True)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, FLAT_DIRECTIONS if d else SUMS_OVER_STEPS)


@pytest.mark.parametrize("wanted", [("Q", "R", "P"), ("A",), ("A", "B"), ("y", "m")])
def test_gradients_do_not_depend_on_which_are_wanted(wanted: tuple[str, ...]) -> None:
    """Gradients with and without that of B come from two kernels, and are equal."""
    problem = make_problem(6, 3)
    everything = dict(zip(NAMES, evaluate(problem, NAMES, beside_missing=False)[1:], strict=True))
    for name, one in zip(wanted, evaluate(problem, wanted, beside_missing=False)[1:], strict=True):
        assert_close(one, everything[name], FLAT_DIRECTIONS)


@pytest.mark.parametrize("noise", [1e-10, 0.0])
def test_observations_with_hardly_any_noise(noise: float) -> None:
    """With little noise, the filtered variance is a small difference of large numbers."""
    problem = make_problem(5, 2, noise=noise)
    found = evaluate(problem, ("Q", "P"), beside_missing=False)
    expected = evaluate(problem, ("Q", "P"), beside_missing=True)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, FLAT_DIRECTIONS)


def test_derivatives_are_those_of_differences() -> None:
    problem = make_problem(2, 1)
    y, names = problem.pop("y")[:8], ("A", "Q", "R", "P")

    def compute(A: Tensor, *covariances: Tensor) -> Tensor:
        symmetric = [0.5 * (X + X.mT) for X in covariances]
        return kalman_nll(y, **{**problem, **dict(zip(names, (A, *symmetric), strict=True))})

    assert gradcheck(compute, [problem[name].clone().requires_grad_() for name in names])


@pytest.mark.parametrize("n", [3, 9])
def test_several_series_are_those_alone(n: int) -> None:
    problem = make_problem(n, 2)
    several = torch.stack([problem["y"] + 0.1 * i for i in range(9)])
    values = kalman_nll(**{**problem, "y": several})
    alone = torch.stack([kalman_nll(**{**problem, "y": one}) for one in several])
    assert_close(values, alone, FLAT_DIRECTIONS)


def test_failures_name_the_step() -> None:
    problem = make_problem(3, 0)
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match="step 0"):
        kalman_nll(**{**problem, "R": problem["R"] - 1e3})
    y = problem["y"].clone()
    y[7] = torch.inf
    with pytest.raises(lapgrad.NonFiniteError, match="step 7"):
        kalman_nll(**{**problem, "y": y})
    unseen = make_problem(3, 2)
    unseen["B"] = torch.zeros_like(unseen["B"])
    with pytest.raises(lapgrad.DomainError):
        kalman_nll(**unseen)
