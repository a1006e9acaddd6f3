"""LU factorisations whose gradient is recorded under ``accelerate()``: values and derivatives are torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerances import assert_all_close, assert_close
from torch import Tensor

import lapgrad
from lapgrad._kernels.table import is_core_in_use
from lapgrad._translation import recorded_lu

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("overrides_removed")]


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Well conditioned matrices whose rows are exchanged by the pivots."""
    torch.manual_seed(sum(shape))
    A = 0.3 * torch.randn(shape, dtype=dtype) / shape[-1] ** 0.5
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return A[..., torch.randperm(shape[-2]), :]


def evaluate(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors, their pivots, and the gradient of a sum of the factors."""
    LU, pivots = torch.linalg.lu_factor(A)
    weight = torch.linspace(-1, 2, LU.numel(), dtype=LU.dtype).view(LU.shape)
    return LU, pivots, torch.autograd.grad((LU * weight).sum(), A)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (37, 37), (3, 5, 5), (1, 6, 6), (2, 3, 4, 4)], ids=str)
def test_values_and_gradients(shape: tuple[int, ...], by_columns: bool, dtype: torch.dtype) -> None:
    A = draw(*shape, dtype=dtype)
    A = (A.mT.contiguous().mT if by_columns else A).requires_grad_()
    expected = evaluate(A)
    with lapgrad.accelerate():
        actual = evaluate(A)
    assert torch.equal(actual[1], expected[1])
    assert_all_close((actual[0], actual[2]), (expected[0], expected[2]))
    assert actual[0].stride() == expected[0].stride()
    assert lapgrad.accelerate.stats().taken == 1


def test_rectangular_matrices_are_torchs() -> None:
    A = draw(4, 6, 6)[..., :4, :].clone().requires_grad_()
    expected = evaluate(A)
    with lapgrad.accelerate():
        actual = evaluate(A)
    assert_close(actual[2], expected[2])


def test_derivatives() -> None:
    A = draw(4, 4).requires_grad_()
    with lapgrad.accelerate():
        assert torch.autograd.gradcheck(lambda A: torch.linalg.lu_factor(A)[0], A, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda A: torch.linalg.lu_factor(A)[0], A)


@pytest.mark.skipif(not is_core_in_use(), reason="needs the core")
def test_the_core_pulls_the_cotangent_of_a_sum_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one number, expanded: the core, which needs memory for every entry, takes a copy."""
    A = draw(5, 5).requires_grad_()
    expected = torch.autograd.grad(torch.linalg.lu_factor(A)[0].sum(), A)
    monkeypatch.setattr(recorded_lu, "_split", lambda LU: pytest.fail("the gradient is made of operators"))
    with lapgrad.accelerate():
        actual = torch.autograd.grad(torch.linalg.lu_factor(A)[0].sum(), A)
    assert_all_close(actual, expected)


def test_pivots_that_were_changed_raise_torchs_error() -> None:
    """NumPy changes them unnoticed by autograd, for example to count rows from 0 as SciPy does."""

    def differentiate() -> None:
        A = draw(4, 4).requires_grad_()
        LU, pivots = torch.linalg.lu_factor(A)
        rows = pivots.numpy()
        rows -= 5
        LU.sum().backward()

    with pytest.raises(RuntimeError) as expected:
        differentiate()
    with lapgrad.accelerate(), pytest.raises(RuntimeError) as raised:
        differentiate()
    assert str(raised.value) == str(expected.value)


def test_singular_matrices_raise_torchs_error() -> None:
    A = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)

    def read_error(call: Callable[[], object]) -> tuple[type, str]:
        with pytest.raises(RuntimeError) as raised:
            call()
        return raised.type, str(raised.value)

    for call in (
        lambda: torch.linalg.lu_factor(A),
        lambda: torch.linalg.lu_factor_ex(A, check_errors=True),
    ):
        expected = read_error(call)
        with lapgrad.accelerate():
            assert read_error(call) == expected
            assert torch.linalg.lu_factor_ex(A).info == 1
