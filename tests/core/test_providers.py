"""Providers: a reduced set of values and gradients with every BLAS, and without the compiled core."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import get_output, run
from paths import set_core
from samples import OPERATORS, Sample, join_results
from sized import list_flag_choices, sample
from tolerances import assert_all_close, of_order
from torch import Tensor

import lapgrad
from lapgrad import _blas

#: (order, other side, batch, threads): sizes that run one matrix per lane, a leaf, or products of BLAS.
SIZES: tuple[tuple[int, int, tuple[int, ...], int], ...] = (
    (5, 3, (), 1),
    (8, 8, (20,), 2),
    (40, 33, (3,), 2),
    (200, 150, (), 1),
    (200, 200, (), 2),
    (200, 10, (2,), 2),
)


def check_reduced_set() -> None:
    """Check values and gradients of a few cases; runs in a process of its own under each setting."""
    for n, other, batch, threads in SIZES:
        torch.set_num_threads(threads)
        for dtype in (torch.float64, torch.float32):
            for name in ("potrf", "potrf_ex", "trsm", "trmm", "gemmt", "syrk", "copyltu"):
                for flags in list_flag_choices(name):
                    one = sample(name, n, flags, other=other, batch=batch, dtype=dtype)
                    actual = _compute_value_and_gradients(OPERATORS[name].fn, one)
                    double = Sample(tuple(arg.double() for arg in one.args), flags, one.id)
                    expected = _compute_value_and_gradients(OPERATORS[name].reference, double)
                    assert_all_close(actual, [tensor.to(dtype) for tensor in expected], of_order(n))
    for case in OPERATORS.values():
        small = case.small(requires_grad=True)
        actual, expected = (_compute_value_and_gradients(f, small) for f in (case.fn, case.reference))
        assert_all_close(actual, expected, of_order(5) * case.condition(small.args[0].shape[-1]))
    _check_failures()


def _compute_value_and_gradients(f: Any, one: Sample) -> list[Tensor]:
    leaves = [arg.detach().requires_grad_() for arg in one.args]
    result = f(*leaves, **one.kwargs)
    result = join_results(result)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, leaves, weights)]


def _check_failures() -> None:
    """Codes, identities, gradients and untouched operands are the same everywhere."""
    for n in (6, 70):
        A = sample("potrf", n, {}, batch=(6,)).args[0]
        A[1, 3, 3] = -1.0
        A[2, 4, 1] = A[2, 1, 4] = torch.nan
        A[3, 5, 0] = A[3, 0, 5] = torch.inf
        A[4, 2, 2] = torch.inf
        L, info = lapgrad.potrf_ex(A.requires_grad_())
        assert info.tolist() == [0, 4, -5, -6, -3, 0]
        (gradient,) = torch.autograd.grad(L.sum(), A)
        assert [bool(item.any()) for item in gradient] == [True, False, False, False, False, True]
        A, L = A.detach(), L.detach()
        assert torch.equal(L[1:5], torch.eye(n, dtype=A.dtype).expand(4, n, n))
        with pytest.raises(lapgrad.NotPositiveDefiniteError, match=r"A\[1\] .* order 4 "):
            lapgrad.potrf(A)
        with pytest.raises(lapgrad.NonFiniteError, match=r"A\[1\] .* pivot 5 "):
            lapgrad.potrf(A[[0, 2]])
        triangle, right = torch.eye(n, dtype=A.dtype), torch.ones(n, 2, dtype=A.dtype)
        triangle[3, 3] = 0.0
        with pytest.raises(lapgrad.SingularMatrixError, match="diagonal entry 3 "):
            lapgrad.trsm(triangle, right, overwrite=True)
        assert (right == 1.0).all()


def has_mkl() -> bool:
    return any(list((Path(prefix) / "lib").glob("libmkl_rt.so*")) for prefix in (sys.prefix, sys.base_prefix))


@pytest.mark.parametrize("provider", ["torch", "scipy", "mkl"])
def test_provider(provider: str) -> None:
    if provider == "mkl" and not has_mkl():
        pytest.skip("mkl is not installed")
    code = "import test_providers as t; t.check_reduced_set(); print(t._blas.describe()['provider'])"
    assert get_output(code, LAPGRAD_BLAS=provider).split() == [provider]


def test_torch_is_the_first_choice() -> None:
    """torch's BLAS is preferred, because its threads are the ones that the program already has."""
    if _blas._find_torch() is None:
        pytest.skip("this torch exports no BLAS")
    assert _blas.find().name == "torch"


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(300, 300, 1), (1, 300, 300)], ids=str)
def test_products_with_a_vector_are_left_to_blas(shape: tuple[int, int, int]) -> None:
    """So results have the same bits, whoever computes larger products: packing would take longer."""
    n, k, m = shape
    torch.manual_seed(0)
    A, B = torch.randn(n, k), torch.randn(k, m)
    with set_core({"own_blocks": 0}, threads=1):
        expected = lapgrad.gemm2(A, B)
    with set_core({"own_blocks": 1}, threads=1):
        assert torch.equal(lapgrad.gemm2(A, B), expected)


def test_without_the_core() -> None:
    """Switched off by the user: the kernels in plain torch run without a warning."""
    code = (
        "import test_providers as t; print(t.lapgrad._kernels.table.is_core_in_use()); t.check_reduced_set()"
    )
    assert get_output(code, LAPGRAD_CORE="off").split() == ["False"]


def test_a_missing_core_warns_once() -> None:
    """Missing: the kernels in plain torch run after one warning that says why."""
    code = """
import sys, warnings
sys.modules["lapgrad._core"] = None
import torch, lapgrad
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert torch.equal(lapgrad.potrf(torch.eye(3)), torch.eye(3))
        lapgrad.syrk(torch.eye(3))
print(len(caught), caught[0].category.__name__, caught[0].message)
"""
    printed = get_output(code)
    assert printed.startswith("1 RuntimeWarning lapgrad's compiled core is not available")
    assert "LAPGRAD_CORE=off" in printed


@pytest.mark.parametrize("provider", ["torch", "scipy"])
def test_a_provider_that_is_not_there_is_named(provider: str) -> None:
    """Asked for by name it is an error; lapgrad does not quietly take another one."""
    code = f"""
import torch, lapgrad._blas
lapgrad._blas._FINDERS[{provider!r}] = lambda: None
lapgrad.potrf(torch.eye(3))
"""
    done = run(code, LAPGRAD_BLAS=provider)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"ValueError: LAPGRAD_BLAS={provider!r}: no ")
