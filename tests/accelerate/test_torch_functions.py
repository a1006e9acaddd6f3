"""Kernels of torch that gates call by address do what they do when torch calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lapgrad
from lapgrad._torch import private as _torch_private
from lapgrad._translation import _torch_functions
from lapgrad.accelerate import gates, overrides
from lapgrad.accelerate.switch import Acceleration

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("overrides_removed"),
    pytest.mark.skipif(lapgrad._kernels.native.core is None, reason="gates are part of the compiled core"),
]


def make_factor(A: Tensor) -> Tensor:
    return torch.linalg.cholesky(A).detach()


linalg = torch.linalg

#: Operator -> calls of it for a small positive definite matrix, with every parameter.
CALLS: dict[str, list[Callable[[Tensor], Any]]] = {
    "linalg_cholesky_ex": [linalg.cholesky, lambda A: linalg.cholesky_ex(A, upper=True, check_errors=True)],
    "cholesky": [torch.cholesky, lambda A: torch.cholesky(A, upper=True)],
    "linalg_solve_triangular": [
        lambda A: linalg.solve_triangular(make_factor(A), A, upper=False),
        lambda A: linalg.solve_triangular(make_factor(A), A.mT, upper=True, left=False),
        lambda A: linalg.solve_triangular(A, A[..., :1], upper=False, unitriangular=True),
        lambda A: (
            linalg.solve_triangular(A[..., :1, :1, :], A[..., :1, :], upper=False, left=False)
            if A.shape[-1] == 1
            else linalg.solve_triangular(A, torch.ones_like(A[..., :1]).squeeze(0), upper=True)
        ),
    ],
    "_cholesky_solve_helper": [
        lambda A: torch.cholesky_solve(A[..., :1], make_factor(A)),
        lambda A: torch.cholesky_solve(A, make_factor(A).mT, upper=True),
    ],
    "cholesky_inverse": [
        lambda A: torch.cholesky_inverse(make_factor(A)),
        lambda A: torch.cholesky_inverse(make_factor(A).mT, upper=True),
    ],
    "_linalg_eigh": [linalg.eigh, lambda A: linalg.eigh(A, UPLO="U"), linalg.eigvalsh],
    "linalg_qr": [
        linalg.qr,
        lambda A: linalg.qr(A[..., :2], mode="complete"),
        lambda A: linalg.qr(A, mode="r"),
    ],
    "linalg_inv_ex": [linalg.inv, lambda A: linalg.inv_ex(A, check_errors=True)],
    "_linalg_det": [linalg.det],
    "_linalg_slogdet": [linalg.slogdet],
    "_linalg_solve_ex": [
        lambda A: linalg.solve(A, A[..., :1]),
        lambda A: linalg.solve(A, A, left=False),
        lambda A: linalg.solve_ex(A, A, check_errors=True),
    ],
    "linalg_lu_factor_ex": [linalg.lu_factor, lambda A: linalg.lu_factor_ex(A, check_errors=True)],
    "linalg_lu": [linalg.lu],
}


def make_matrix(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    A = torch.randn(*shape, shape[-1], dtype=dtype, generator=torch.Generator().manual_seed(0))
    return A @ A.mT + torch.eye(shape[-1], dtype=dtype)


def list_tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def test_every_operator_is_called() -> None:
    assert CALLS.keys() == _torch_functions.FORMS.keys()


@pytest.mark.parametrize("operator", _torch_functions.FORMS)
def test_functions_are_found(operator: str) -> None:
    """Functions have addresses on tested releases of torch; on others they are called through Python."""
    form, is_tested = _torch_functions.FORMS[operator], _torch_private.may_call_by_address()
    assert (_torch_functions.describe_function(operator, records=False) is not None) == is_tested
    can_record = is_tested and bool(form.record)
    assert (_torch_functions.describe_function(operator, records=True) is not None) == can_record


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3,), (1, 4)])
@pytest.mark.parametrize("operator", CALLS)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_values_and_gradients_are_those_of_torch(
    operator: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    for call in CALLS[operator]:
        for records in (False, True):
            A = make_matrix(*shape, dtype=dtype).requires_grad_(records)
            expected = list_tensors(call(A))
            with lapgrad.accelerate():
                results = list_tensors(call(A))
            for result, wanted in zip(results, expected, strict=True):
                assert result.stride() == wanted.stride() or operator == "linalg_inv_ex"
                assert (result.requires_grad, result._is_view()) == (wanted.requires_grad, wanted._is_view())
                torch.testing.assert_close(result, wanted)
                if result.requires_grad and result.is_floating_point():
                    seen, gradient = differentiate(result, A), differentiate(wanted, A)
                    if isinstance(seen, Tensor):
                        torch.testing.assert_close(seen, gradient)
                    else:
                        assert seen == gradient


@pytest.fixture
def by_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Acceleration]:
    """Return an ``accelerate`` that fails if it calls through Python a kernel whose address it knows."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("called through Python")

    def make_gate(*arguments: Any) -> Any:
        *before, by_torch, by_lapgrad, has_keys, counts = arguments
        if by_torch.direct_compute is not None:
            by_torch = dataclasses.replace(by_torch, compute=fail)
        if by_torch.direct_record is not None:
            by_torch = dataclasses.replace(by_torch, record=fail)
        return gates.make_gate(*before, by_torch, by_lapgrad, has_keys, counts)

    monkeypatch.setattr(overrides, "make_gate", make_gate)
    acceleration = Acceleration()
    yield acceleration
    acceleration.off()


@pytest.mark.skipif(not _torch_private.may_call_by_address(), reason="another release of torch")
@pytest.mark.parametrize("operator", CALLS)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_kernels_are_called_by_address(operator: str, by_address: Acceleration) -> None:
    """Without the fixture, a call through Python would go unnoticed: it gives the same results."""
    A = make_matrix(3)
    has_passed_on = False
    for call in CALLS[operator]:
        for records in (False, True):
            operand = A.clone().requires_grad_(records)
            expected = list_tensors(call(operand))
            with by_address():
                results = list_tensors(call(operand))
            for result, wanted in zip(results, expected, strict=True):
                torch.testing.assert_close(result, wanted)
        counted = {entry.operator for entry in by_address.stats() if not entry.taken}
        has_passed_on |= operator in counted
    assert has_passed_on


def differentiate(result: Tensor, A: Tensor) -> Tensor | str | None:
    """Return the gradient of the sum of a result, or why torch has none."""
    try:
        return torch.autograd.grad(result.sum(), A, retain_graph=True, allow_unused=True)[0]
    except RuntimeError as error:
        return str(error)


def find_error(call: Callable[[], Any]) -> tuple[type[BaseException], str]:
    try:
        call()
    except RuntimeError as error:
        return type(error), str(error)
    raise AssertionError(call)


def test_errors_are_those_of_torch() -> None:
    bad = {
        "indefinite": lambda: linalg.cholesky(-torch.eye(3)),
        "singular": lambda: linalg.solve(torch.zeros(3, 3), torch.ones(3, 1)),
        "shapes": lambda: linalg.solve_triangular(torch.eye(3), torch.eye(4), upper=False),
        "no pivots": lambda: linalg.lu_factor_ex(torch.eye(3), pivot=False),
        "letters": lambda: linalg.eigh(torch.eye(3), UPLO="X"),
        "mode": lambda: linalg.qr(torch.eye(3), mode="some"),
        "not square": lambda: linalg.cholesky_ex(torch.ones(2, 3)),
    }
    for name, call in bad.items():
        expected = find_error(call)
        with lapgrad.accelerate():
            assert find_error(call) == expected, name


def test_recorded_solves_are_counted_once() -> None:
    L = torch.eye(3, requires_grad=True)
    with lapgrad.accelerate():
        X = linalg.solve_triangular(L, torch.ones(3, 1), upper=False)
    assert X.grad_fn is not None
    assert [(entry.operator, entry.calls) for entry in lapgrad.accelerate.stats()] == [
        ("linalg_solve_triangular", 1)
    ]


def test_direct_calls_are_counted() -> None:
    A = make_matrix(5, 200).requires_grad_()
    with lapgrad.accelerate():
        linalg.solve_triangular(linalg.cholesky(A), A, upper=False).sum().backward()
    taken = {(entry.operator, entry.shape) for entry in lapgrad.accelerate.stats() if entry.taken}
    assert taken == {("linalg_cholesky_ex", (5, 200, 200)), ("linalg_solve_triangular", (5, 200, 200))}
