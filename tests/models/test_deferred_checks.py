"""Checks that a GPU defers, on the CPU: results and errors are those of immediate checks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from tolerances import assert_all_close
from torch import Tensor

import lapgrad
from lapgrad.fused import KernelFunction
from lapgrad.fused._sgp import gradient as _gradient
from lapgrad.fused._sgp.evaluation import Evaluation, ImmediateChecks
from lapgrad.fused._sgp.kernel_function import ChunkedKernel
from lapgrad.fused.sgp_nll import evaluate_criterion
from lapgrad.models.kernels import RBF

DOUBLE = torch.float64


@contextlib.contextmanager
def defer_checks() -> Iterator[mock.Mock]:
    """Defer checks as on a GPU; yields a mock that is called when an evaluation is repeated."""
    with (
        mock.patch.object(_gradient, "_defers_checks", return_value=True),
        mock.patch.object(_gradient, "ImmediateChecks", wraps=ImmediateChecks) as repeated,
    ):
        yield repeated


def evaluate(
    noise: float = 0.1,
    jitter: float = 1e-6,
    y: Any = None,
    kernel: Any = None,
    evaluation: Evaluation | None = None,
) -> list[Tensor]:
    """Return criterion and gradients, by ``fused.sgp_nll`` or with an ``Evaluation`` of the caller."""
    X = torch.linspace(0, 6, 40, dtype=DOUBLE)[:, None]
    Z = X[::3].clone().requires_grad_()
    Y = torch.sin(X) if y is None else y
    used = RBF(torch.ones(1, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE)) if kernel is None else kernel
    v = torch.tensor(noise, dtype=DOUBLE, requires_grad=True)
    if evaluation is None:
        value = lapgrad.fused.sgp_nll(used, Z, X, Y, v, jitter=jitter, chunk=17)
    else:
        value = evaluate_criterion(evaluation, used, Z, X, Y, v, jitter, 17)
    leaves = [Z, v, *(used.parameters() if kernel is None else ())]
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def test_same_results() -> None:
    expected = evaluate()
    with defer_checks() as repeated:
        assert_all_close(evaluate(), expected, 0)
    assert not repeated.called


def test_a_wrong_choice_is_made_good_and_remembered() -> None:
    expected, evaluation = evaluate(noise=1e-9, jitter=1e-10), Evaluation()
    with defer_checks() as repeated:
        for _ in range(2):
            assert_all_close(evaluate(noise=1e-9, jitter=1e-10, evaluation=evaluation), expected, 0)
            assert repeated.call_count == 1
        evaluate(evaluation=evaluation)  # precise again
        assert repeated.call_count == 2


def test_results_do_not_depend_on_earlier_calls() -> None:
    """The public function keeps no state, and an earlier choice of an ``Evaluation`` changes no result."""
    expected, evaluation = evaluate(), Evaluation()
    with defer_checks() as repeated:
        evaluate(noise=1e-9, jitter=1e-10)
        evaluate(noise=1e-9, jitter=1e-10)
        assert repeated.call_count == 2
        assert_all_close(evaluate(), expected, 0)
        assert repeated.call_count == 2
        evaluate(noise=1e-9, jitter=1e-10, evaluation=evaluation)
        assert_all_close(evaluate(evaluation=evaluation), expected, 0)


def test_checks_that_are_kept_keep_no_graph() -> None:
    """A graph that outlives its evaluation would tie the next one to its stream."""
    evaluation, X = Evaluation(), torch.linspace(0, 6, 40, dtype=DOUBLE)[:, None]
    noise = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    with defer_checks(), evaluation.defer_checks() as checks:
        value = evaluate_criterion(
            evaluation, RBF(1.0, 1.0), X[::3].clone(), X, torch.sin(X), noise, 1e-6, 17
        )
    graph = weakref.ref(value.grad_fn)
    del value
    assert len(checks) == 1
    assert checks[0].are_passed()
    assert graph() is None


def test_kernels_of_the_package_know_chunks() -> None:
    assert isinstance(RBF(), ChunkedKernel)


def test_points_that_are_not_as_assumed() -> None:
    """If an assumption fails, results and errors computed with it are discarded."""

    def matrix(A: Tensor, B: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(A, B).square())

    def wrong_matrix(A: Tensor, B: Tensor) -> Tensor:
        return matrix(A, B) * torch.nan

    def diagonal(A: Tensor) -> Tensor:
        return A.new_ones(len(A))

    matrix.prepare_points = lambda A, B: (wrong_matrix, torch.tensor(False))  # type: ignore[attr-defined]
    expected = evaluate(kernel=KernelFunction(lambda A, B: matrix(A, B), diagonal))
    with defer_checks() as repeated:
        assert_all_close(evaluate(kernel=KernelFunction(matrix, diagonal)), expected, 0)
    assert repeated.called


def test_errors_are_raised_in_the_end() -> None:
    def constant(A: Tensor, B: Tensor) -> Tensor:
        return A.new_ones(len(A), len(B)) + 0.0 * (A @ B.mT)

    singular = KernelFunction(constant, lambda A: A.new_ones(len(A)))
    with defer_checks():
        with pytest.raises(lapgrad.NotPositiveDefiniteError, match=r"K_uu with a jitter of 0 "):
            evaluate(jitter=0.0, kernel=singular)
        with pytest.raises(lapgrad.NonFiniteError, match="Y contains NaN"):
            evaluate(y=torch.full((40, 1), torch.nan, dtype=DOUBLE))
        not_a_number = KernelFunction(lambda A, B: constant(A, B) * torch.nan, singular.diagonal)
        with pytest.raises(lapgrad.NonFiniteError, match="K_uu contains NaN"):
            evaluate(kernel=not_a_number)
