"""What is guessed on a GPU, and looked at in the end: here on the CPU, with the same results and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from tolerances import assert_all_close
from torch import Tensor

import lapgrad
from lapgrad.fused import KernelFunction
from lapgrad.fused._sgp import deferred_checks as _sparse_questions
from lapgrad.fused._sgp import gradient as _sparse_gradient
from lapgrad.models.kernels import RBF, _gaussian

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    yield
    _sparse_questions._last.__dict__.clear()


@contextlib.contextmanager
def guessing() -> Iterator[mock.Mock]:
    """As on a GPU; yields what is called when a guess was wrong."""
    with (
        mock.patch.object(_sparse_gradient, "_guesses", return_value=True),
        mock.patch.object(_sparse_gradient, "Looks", wraps=_sparse_questions.Looks) as looked,
    ):
        yield looked


def evaluated(noise: float = 0.1, jitter: float = 1e-6, y: Any = None, kernel: Any = None) -> list[Tensor]:
    X = torch.linspace(0, 6, 40, dtype=DOUBLE)[:, None]
    Z = X[::3].clone().requires_grad_()
    Y = torch.sin(X) if y is None else y
    used = RBF(torch.ones(1, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE)) if kernel is None else kernel
    v = torch.tensor(noise, dtype=DOUBLE, requires_grad=True)
    value = lapgrad.fused.sgp_nll(used, Z, X, Y, v, jitter=jitter, chunk=17)
    leaves = [Z, v, *(used.parameters() if kernel is None else ())]
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def test_same_results() -> None:
    expected = evaluated()
    with guessing() as looked:
        assert_all_close(evaluated(), expected, 0)
    assert not looked.called


def test_a_wrong_guess_is_made_good_and_remembered() -> None:
    expected = evaluated(noise=1e-9, jitter=1e-10)
    with guessing() as looked:
        assert_all_close(evaluated(noise=1e-9, jitter=1e-10), expected, 0)
        assert looked.call_count == 1
        assert_all_close(evaluated(noise=1e-9, jitter=1e-10), expected, 0)
        assert looked.call_count == 1
        evaluated()  # precise again
        assert looked.call_count == 2


def test_points_that_are_not_as_assumed() -> None:
    """What was computed with the assumption does not count, be it an error."""

    def matrix(A: Tensor, B: Tensor) -> Tensor:
        right = torch.exp(-0.5 * torch.cdist(A, B).square())
        return right * torch.nan if _gaussian.assumptions() else right

    def diagonal(A: Tensor) -> Tensor:
        return A.new_ones(len(A))

    matrix.for_points = lambda A, B: (_gaussian.assumed({0}), torch.tensor(False))  # type: ignore[attr-defined]
    expected = evaluated(kernel=KernelFunction(lambda A, B: matrix(A, B), diagonal))
    with guessing() as looked:
        assert_all_close(evaluated(kernel=KernelFunction(matrix, diagonal)), expected, 0)
    assert looked.called


def test_errors_are_raised_in_the_end() -> None:
    def constant(A: Tensor, B: Tensor) -> Tensor:
        return A.new_ones(len(A), len(B)) + 0.0 * (A @ B.mT)

    singular = KernelFunction(constant, lambda A: A.new_ones(len(A)))
    with guessing():
        with pytest.raises(lapgrad.NotPositiveDefiniteError, match=r"K_uu with a jitter of 0 "):
            evaluated(jitter=0.0, kernel=singular)
        with pytest.raises(lapgrad.NonFiniteError, match="Y contains NaN"):
            evaluated(y=torch.full((40, 1), torch.nan, dtype=DOUBLE))
        not_a_number = KernelFunction(lambda A, B: constant(A, B) * torch.nan, singular.diagonal)
        with pytest.raises(lapgrad.NonFiniteError, match="K_uu contains NaN"):
            evaluated(kernel=not_a_number)
