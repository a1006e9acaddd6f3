"""LU factorisations of batches without torch's own: the values, factors and gradients are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close
from torch import Tensor

import lapgrad
from lapgrad._translation import lu

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("overrides_removed")]


@pytest.fixture(autouse=True)
def every_batch_is_unsafe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make small batches run the code for those that torch could not factorise."""
    monkeypatch.setattr(lu, "is_unsafe", lambda A: A.dim() > 2)
    yield
    lapgrad.accelerate.off()


def batch(*shape: int, row_major: bool = True) -> Tensor:
    A = torch.randn(*shape, dtype=torch.float64)
    A = A + 3.0 * torch.eye(shape[-2], shape[-1], dtype=torch.float64)
    return (A if row_major else A.mT.contiguous().mT).requires_grad_()


def compare(function: Any, *operands: Tensor, is_differentiable: bool = True) -> None:
    """Compare values, strides and gradients of ``function`` with all calls taken to those of plain torch."""
    results = []
    for accelerated in (False, True):
        lapgrad.accelerate.stats(reset=True)
        with lapgrad.accelerate(always=True) if accelerated else lapgrad.accelerate.off():
            found = function(*operands)
            found = found if isinstance(found, tuple) else (found,)
            chosen = [x for x in found if x.requires_grad]
            loss = sum((x.square().sum() for x in chosen), torch.zeros((), dtype=torch.float64))
            gradients = torch.autograd.grad(loss, operands) if is_differentiable else ()
        assert (lapgrad.accelerate.stats().taken > 0) == accelerated
        results.append((found, gradients))
    (values, gradients), (of_lapgrad, gradients_of_lapgrad) = results
    assert [x.stride() for x in of_lapgrad] == [x.stride() for x in values]
    assert_all_close([x.detach() for x in of_lapgrad], [x.detach() for x in values], HIGHER_ORDER)
    assert_all_close(gradients_of_lapgrad, gradients, HIGHER_ORDER)


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("name", ["det", "slogdet", "logdet", "inv", "lu_factor", "lu"])
def test_functions_of_one_matrix(name: str, row_major: bool) -> None:
    function: Any = getattr(torch if name == "logdet" else torch.linalg, name)
    A = batch(3, 4, 4, row_major=row_major)
    if name == "logdet":
        A = (A.detach() @ A.detach().mT).requires_grad_()
    compare(function, A)


@pytest.mark.parametrize("shape", [(3, 5, 3), (2, 2, 3, 5)])
@pytest.mark.parametrize("name", ["lu_factor", "lu"])
def test_matrices_that_are_not_square(name: str, shape: tuple[int, ...]) -> None:
    compare(getattr(torch.linalg, name), batch(*shape))


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_solve(left: bool, row_major: bool) -> None:
    A = batch(3, 4, 4, row_major=row_major)
    B = torch.randn((3, 4, 2) if left else (3, 2, 4), dtype=torch.float64, requires_grad=True)
    solve: Any = getattr(torch.linalg, "solve")  # noqa: B009
    compare(lambda A, B: solve(A, B, left=left), A, B)


@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (2, 3, 4, 1)])
def test_solve_of_vectors_and_of_right_hand_sides_that_broadcast(shape: tuple[int, ...]) -> None:
    solve: Any = getattr(torch.linalg, "solve")  # noqa: B009
    compare(solve, batch(3, 4, 4), torch.randn(shape, dtype=torch.float64, requires_grad=True))


def test_singular_matrices() -> None:
    A = batch(3, 4, 4).detach()
    A[1] = 0.0
    B = torch.ones(3, 4, 1, dtype=torch.float64)
    for name, operands in (("solve", (A, B)), ("inv", (A,)), ("lu_factor", (A,)), ("det", (A,))):
        outcomes = []
        for accelerated in (False, True):
            with lapgrad.accelerate(always=True) if accelerated else lapgrad.accelerate.off():
                try:
                    outcomes.append(getattr(torch.linalg, name)(*operands))
                except RuntimeError as error:
                    outcomes.append((type(error), str(error)))
        if isinstance(outcomes[0], tuple) and isinstance(outcomes[0][0], type):
            assert outcomes[0] == outcomes[1]
        else:
            torch.testing.assert_close(outcomes[0], outcomes[1])


def test_out() -> None:
    A = batch(3, 4, 4).detach()
    det: Any = getattr(torch.linalg, "det")  # noqa: B009
    target = torch.empty(3, dtype=torch.float64)
    with lapgrad.accelerate(always=True):
        det(A, out=target)
    assert_all_close([target], [det(A)])
