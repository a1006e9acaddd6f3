"""Gradients by shortcuts of the core: they are those of the formulas. Batches of products and solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from samples import join_results
from test_shortcuts import OF_GRADIENTS, count_served, discriminate, general, lower, positive
from torch import Tensor

import lapgrad
from lapgrad._kernels import table as _kernels
from lapgrad._torch import lu as torch_lu

pytestmark = pytest.mark.cpu

Make = Callable[..., tuple[Tensor, ...]]
BOTH = (False, True)

#: Relative to the largest entry: small ones are differences of larger ones, and gradients of eigenvectors are
#: divided by gaps.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-3}


def two(*s: int, **k: Any) -> tuple[Tensor, ...]:
    return general(*s, **k), general(*s, **k)


def factor_and_side(*s: int, **k: Any) -> tuple[Tensor, ...]:
    return lower(*s, **k), general(*s[:-1], s[-1] + 2, **k)


#: name -> (the function that is derived, its operands for a batch and an order, flags).
CASES: dict[str, tuple[Callable[..., Any], Make, list[dict[str, Any]]]] = {
    "trmm_vjp": (
        lapgrad.trmm,
        two,
        [{"transpose": t, "rightside": r, "lower": low} for t in BOTH for r in BOTH for low in BOTH],
    ),
    "trsm_vjp": (
        lapgrad.trsm,
        lambda *s, **k: (positive(*s, **k), general(*s, **k)),
        [{"transpose": t, "rightside": r, "lower": low} for t in BOTH for r in BOTH for low in BOTH],
    ),
    "gemmt_vjp": (
        lapgrad.gemmt,
        two,
        [{"transpose_a": a, "transpose_b": b, "lower": low} for a in BOTH for b in BOTH for low in BOTH],
    ),
    "gemm2_vjp": (
        lapgrad.gemm2,
        two,
        [{"transpose_a": a, "transpose_b": b, "alpha": 0.5} for a in BOTH for b in BOTH],
    ),
    "syrk_vjp": (
        lapgrad.syrk,
        lambda *s, **k: (general(*s[:-1], s[-1] + 3, **k),),
        [{}, {"transpose": True}],
    ),
    "potri_vjp": (lapgrad.potri, lambda *s, **k: (lower(*s, **k),), [{}]),
    "inverse_vjp": (lapgrad.inverse, lambda *s, **k: (positive(*s, **k),), [{}]),
    "inverse_psd_vjp": (lapgrad.linalg.inverse_psd, lambda *s, **k: (positive(*s, **k),), [{}]),
    "det_vjp": (lapgrad.det, lambda *s, **k: (positive(*s, **k),), [{}]),
    "slogdet_vjp": (lambda A: lapgrad.slogdet(A)[1], lambda *s, **k: (positive(*s, **k),), [{}]),
    "cho_solve_vjp": (lapgrad.linalg.cho_solve, factor_and_side, [{}]),
    "solve_psd_vjp": (
        lapgrad.linalg.solve_psd,
        lambda *s, **k: (positive(*s, **k), general(*s, **k)),
        [{}, {"lower": False}],
    ),
    "sumlogdiag_vjp": (lapgrad.sumlogdiag, lambda *s, **k: (lower(*s, **k),), [{}]),
    "eigh_fn_vjp": (
        lapgrad.linalg.eigh_fn,
        lambda *s, **k: (positive(*s, **k),),
        [{"f": f} for f in ("sqrt", "rsqrt", "inv", "exp", "log")],
    ),
    "syevd_vjp": (lapgrad.syevd, lambda *s, **k: (positive(*s, **k),), [{}, {"k": 1}]),
    "copyltu_vjp": (lapgrad.copyltu, lambda *s, **k: (general(*s, **k),), [{}, {"lower": False}]),
    "centre_vjp": (
        lambda X: lapgrad.linalg.pca(X, k=1)[1:3],
        lambda *s, **k: (general(*s[:-2], s[-1] + 3, s[-1], **k),),
        [{}],
    ),
}


#: Gradients of linear functions, which do not depend on the operand.
LINEAR = {"copyltu_vjp"}


def pull_back(function: Callable[..., Any], operands: tuple[Tensor, ...], flags: dict[str, Any]) -> Tensor:
    leaves = [operand.clone().requires_grad_() for operand in operands]
    result = join_results(function(*leaves, **flags))
    torch.manual_seed(0)
    return join_results(torch.autograd.grad(result, leaves, torch.randn_like(result)))


def test_every_gradient_is_tested() -> None:
    assert CASES.keys() == OF_GRADIENTS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (31, 31), (3, 5, 5), (1, 4, 4), (40, 3, 3), (9, 26, 26)])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_formulas(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    function, make, all_flags = CASES[name]
    for flags in all_flags:
        operands = make(*shape, dtype=dtype)
        with pytest.MonkeyPatch.context() as patch:
            for shortcut in [key for key in _kernels._CPU if key.endswith("_shortcut")]:
                patch.delitem(_kernels._CPU, shortcut)
            expected = pull_back(function, operands, flags)
        with pytest.MonkeyPatch.context() as patch:
            served = count_served(patch)
            found = pull_back(function, operands, flags)
        assert name in served
        assert (found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_take_the_way_through_python(name: str) -> None:
    """The gradient of a gradient, by the formulas: a shortcut would not be recorded."""
    function, make, all_flags = CASES[name]
    leaves = [operand.requires_grad_() for operand in make(4, 4)]
    result = join_results(function(*leaves, **all_flags[0]))
    gradients = torch.autograd.grad(result.sum(), leaves, create_graph=True)
    assert all(gradient.requires_grad for gradient in gradients) or name in LINEAR


def test_discriminants_of_a_batch_are_those_of_its_items() -> None:
    X = general(5, 30, 4)
    ratios, W = discriminate(X)
    for i in range(5):
        one_ratios, one_W = discriminate(X[i])
        torch.testing.assert_close(ratios[i], one_ratios)
        torch.testing.assert_close(W[i].abs(), one_W.abs())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("items", [2, 9, 300])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 31])
def test_products_of_batches(n: int, items: int, dtype: torch.dtype) -> None:
    """One matrix per lane, and one after the other; with sides of other lengths."""
    for m, k in ((n, n), (1, n), (n, 1), (2 * n + 1, n), (n, 3 * n), (40, n)):
        A, B, C = (general(items, *side, dtype=dtype) for side in ((m, k), (k, n), (m, n)))
        torch.testing.assert_close(lapgrad.gemm2(A, B), A @ B)
        torch.testing.assert_close(lapgrad.gemm(A, B, C, alpha=-2.0, beta=0.5), 0.5 * C - 2.0 * (A @ B))
        torch.testing.assert_close(lapgrad.gemm2(A.mT.contiguous(), B, transpose_a=True), A @ B)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shape", [(7, 1, 1), (20, 3, 2), (9, 17, 4), (5, 32, 32), (3, 5, 100)])
def test_solves_of_batches_scale_with_their_matrices(
    shape: tuple[int, int, int], transpose: bool, dtype: torch.dtype
) -> None:
    """One item of the batch has entries near the largest number, the others have not."""
    items, n, m = shape
    A, B = (
        general(items, n, n, dtype=dtype) + n * torch.eye(n, dtype=dtype),
        general(items, n, m, dtype=dtype),
    )
    expected = torch_lu.solve(A.mT if transpose else A, B)
    large = torch.finfo(dtype).max / 1e4
    A[0] *= large / A[0].abs().max()
    B[0] *= large / B[0].abs().max()
    X = lapgrad.gesv(A, B, transpose=transpose)
    torch.testing.assert_close(X[1:], expected[1:])
    one = torch_lu.solve((A[0] / large).mT if transpose else A[0] / large, B[0] / large)
    torch.testing.assert_close(X[0], one)
