"""Shortcuts in torch's words: results are stored by columns, and are those of the way through Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from lapgrad._kernels import cpu as _cpu
from lapgrad._kernels import table as _kernels
from lapgrad._translation import cholesky as _cholesky
from lapgrad._translation import solve_triangular as _solve_triangular

pytestmark = pytest.mark.cpu

FACTOR, SOLVE, VJP, STATUS = (
    f"{name}_shortcut"
    for name in (
        "cholesky_by_columns",
        "solve_triangular_by_columns",
        "solve_triangular_vjp",
        "status_of_success",
    )
)

if not _cpu.is_available() or FACTOR not in _kernels._CPU.fill():
    pytest.skip("needs the compiled core, and a torch that can be read from C", allow_module_level=True)


def make_matrix(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    A = torch.randn(*shape, dtype=dtype)
    return A @ A.mT / shape[-1] + torch.eye(shape[-1], dtype=dtype)


def compute_without(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name in (FACTOR, SOLVE, VJP, STATUS):
            patch.delitem(_kernels._CPU, name)
        return function(*arguments, **options)


SHAPES = [(1, 1), (6, 6), (40, 40), (3, 5, 5), (1, 4, 4), (20, 9, 9)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("upper", [False, True])
def test_factors(upper: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A = make_matrix(*shape, dtype=dtype)
    for operand in (A, A.mT, A.expand(2, *A.shape)[0]):
        before = operand.clone()
        L = _kernels._CPU[FACTOR](operand, upper)
        expected, info = compute_without(_cholesky.compute_cholesky_ex, operand, upper=upper)
        assert torch.equal(L, expected)
        assert L.stride() == expected.stride()
        assert torch.equal(operand, before)
        status = _kernels._CPU[STATUS](operand)
        assert torch.equal(status, info)
        assert (status.dtype, status.stride()) == (info.dtype, info.stride())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_solves(upper: bool, left: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A = make_matrix(*shape, dtype=dtype)
    wide = torch.randn(*shape[:-2], shape[-1], 7, dtype=dtype)
    B = wide if left else wide.mT
    for operand in (B, B.contiguous()):
        X = _kernels._CPU[SOLVE](A, operand, upper, left)
        gX = torch.randn_like(X)
        for saved in (X, None):
            gradients = _kernels._CPU[VJP](A, saved, gX, upper, left)
            needs, flags = (saved is not None, True), (upper, left)
            wanted = compute_without(_solve_triangular._vjp, needs, (A, saved), flags, gX)
            for seen, gradient in zip(gradients, wanted, strict=True):
                torch.testing.assert_close(seen, gradient)
        expected = compute_without(_solve_triangular._solve, A, operand, upper, left)
        assert torch.equal(X, expected)
        assert X.stride() == expected.stride()


class _QuietMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_what_is_left_to_python() -> None:
    A, vector = make_matrix(4, 4), torch.ones(4, dtype=torch.float64)

    def find_results(A: Any, B: Any) -> list[Any]:
        factor, solve, status = (_kernels._CPU[name] for name in (FACTOR, SOLVE, STATUS))
        return [factor(A, False), solve(A, B, False, True), status(A)]

    everything = find_results(A, A)
    assert all(result is not None for result in everything)
    with _QuietMode():
        assert find_results(A, A) == [None, None, None]
    with forward_ad.dual_level():
        assert find_results(A, A) == [None, None, None]
    for bad in (None, 1.0, vector, A.to(torch.complex128), A.to("meta"), make_matrix(2, 2, 3, 3)):
        assert find_results(bad, bad)[:2] == [None, None]
    assert find_results(-A, A.float())[:2] == [None, None]  # indefinite; another dtype
    assert _kernels._CPU[SOLVE](torch.zeros_like(A), A, False, True) is None  # singular
    assert _kernels._CPU[SOLVE](A, A[:3], False, True) is None
    assert _kernels._CPU[VJP](torch.zeros_like(A), A, A, False, True) is None
    assert _kernels._CPU[VJP](A, A[:3], A, False, True) is None
    assert _kernels._CPU[VJP](A, None, A[:3], False, True) is None
    # torch's own solver is faster at batches with one column and many rows.
    assert _kernels._CPU[SOLVE](make_matrix(2, 40, 40), torch.ones(2, 40, 1).double(), False, True) is None
    leaf = A.clone().requires_grad_()
    assert find_results(leaf, leaf)[:2] == [None, None]
