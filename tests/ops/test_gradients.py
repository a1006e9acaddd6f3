"""Gradients: finite differences to second order in both modes, and the fused backward on every path."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from device import DEVICE
from paths import PATHS_AND_ISAS, list_paths, take_path
from samples import OPERATORS, OperatorCase, Sample, Shape, join_results
from sized import FLAGS, list_flag_choices, sample
from tolerances import assert_all_close, of_order
from torch import Tensor
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck

import lapgrad

SAMPLES = [
    pytest.param(case, position, id=f"{case.name} {recipe.id}")
    for case in OPERATORS.values()
    for position, recipe in enumerate(case.recipes)
]


@functools.cache
def list_samples(name: str) -> list[Sample]:
    return OPERATORS[name].samples(requires_grad=True)


def list_flag_combinations(case: OperatorCase) -> list[Sample]:
    """Return the first sample of each combination of flags."""
    firsts: dict[str, Sample] = {}
    for one in list_samples(case.name):
        if all(arg.numel() for arg in one.args):
            firsts.setdefault(str(one.kwargs), one)
    return list(firsts.values())


FLAG_COMBINATIONS = [
    pytest.param(case, one, id=f"{case.name} {one.id}")
    for case in OPERATORS.values()
    for one in list_flag_combinations(case)
]


@pytest.mark.parametrize(("case", "position"), SAMPLES)
def test_first_derivatives(case: OperatorCase, position: int) -> None:
    one = list_samples(case.name)[position]
    f = case.differentiable(case.fn, one.kwargs)
    assert gradcheck(f, one.args, check_forward_ad=True, check_undefined_grad=False, fast_mode=position > 0)


@pytest.mark.parametrize(("case", "one"), FLAG_COMBINATIONS)
def test_second_derivatives(case: OperatorCase, one: Sample) -> None:
    f = case.differentiable(case.fn, one.kwargs)
    assert gradgradcheck(f, one.args, check_fwd_over_rev=True, check_undefined_grad=False, fast_mode=True)


@pytest.mark.parametrize("case", OPERATORS.values(), ids=lambda case: case.name)
def test_undefined_and_batched_cotangents(case: OperatorCase) -> None:
    """Cotangents that are None, or mapped by vmap. A random projection is compared, not every derivative."""
    one = case.small(requires_grad=True)
    f = case.differentiable(case.fn, one.kwargs)
    checks = {"check_undefined_grad": True, "check_batched_grad": True, "fast_mode": True}
    assert gradcheck(f, one.args, check_forward_ad=True, check_batched_forward_grad=True, **checks)
    assert gradgradcheck(f, one.args, **checks)


#: Order, other side and batch: on both sides of a leaf, past blocks, batches that fill vectors and do not.
SIZES: tuple[tuple[int, int, Shape], ...] = (
    (31, 33, ()),
    (33, 65, ()),
    (65, 5, ()),
    (130, 65, ()),
    (4, 4, (17,)),
    (13, 7, (40,)),
)


def compute_gradients(f: Any, one: Sample, flags: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the gradients of f, for a cotangent with entries of both signs in both triangles."""
    leaves = [arg.detach().requires_grad_() for arg in one.args]
    result = f(*leaves, **flags)
    result = join_results(result)
    cotangent = torch.cos(torch.arange(result.numel(), dtype=torch.float64, device=DEVICE)).view(result.shape)
    return grad(result, leaves, cotangent.to(result.dtype))


@functools.cache
def list_rows(name: str, n: int, other: int, batch: Shape, dtype: torch.dtype) -> list[tuple[Sample, Any]]:
    """Return samples of one size with all flags, and their gradients by the reference in float64."""
    samples = [
        sample(name, n, flags, other=other, batch=batch, dtype=dtype) for flags in list_flag_choices(name)
    ]
    found = []
    for one in samples:
        double = Sample(tuple(arg.double() for arg in one.args), one.kwargs, one.id)
        expected = compute_gradients(OPERATORS[name].reference, double, one.kwargs)
        found.append((one, [gradient.to(dtype) for gradient in expected]))
    return found


@pytest.mark.parametrize(("name", "path", "isa"), list_paths(FLAGS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_backward_of_every_path(name: str, dtype: torch.dtype, path: str, isa: str) -> None:
    with take_path(path, isa):
        for n, other, batch in SIZES:
            for one, expected in list_rows(name, n, other, batch, dtype):
                actual = compute_gradients(OPERATORS[name].fn, one, one.kwargs)
                assert_all_close(list(actual), expected, of_order(n) * OPERATORS[name].condition(n))


def make_partly_failing(n: int) -> tuple[Tensor, Tensor]:
    """Return a batch of 9 and the indices of items that fail: at the last pivot, by a NaN, by an infinity."""
    A = sample("potrf", n, {}, batch=(9,)).args[0]
    A[2, -1, -1] = -3.0
    A[5, n // 2, 0] = A[5, 0, n // 2] = torch.nan
    A[8, 0, 0] = torch.inf
    failed = torch.zeros(9, dtype=torch.bool, device=DEVICE)
    failed[[2, 5, 8]] = True
    return A, failed


@pytest.mark.parametrize(("path", "isa"), PATHS_AND_ISAS)
@pytest.mark.parametrize("lower", [True, False])
def test_failed_items_have_gradient_zero_and_others_keep_theirs(lower: bool, path: str, isa: str) -> None:
    with take_path(path, isa):
        for n in (2, 5, 24, 33, 65):
            A, failed = make_partly_failing(n)
            (alone,) = grad(lapgrad.potrf(leaf := A[~failed].requires_grad_(), lower=lower).sin().sum(), leaf)
            L, info = lapgrad.potrf_ex(A.requires_grad_(), lower=lower)
            (gA,) = grad(L.sin().sum(), A)
            assert info.bool().equal(failed)
            assert torch.count_nonzero(gA[failed]) == 0
            assert_all_close(gA[~failed], alone, of_order(n))


@pytest.mark.parametrize("lower", [True, False])
def test_higher_derivatives_beside_failed_items(lower: bool) -> None:
    A, failed = make_partly_failing(5)

    def second(A: Tensor) -> Tensor:
        A.requires_grad_()
        (gA,) = grad(lapgrad.potrf_ex(A, lower=lower).L.sin().sum(), A, create_graph=True)
        return grad(gA.sin().sum(), A)[0]

    curvature = second(A)
    assert torch.count_nonzero(curvature[failed]) == 0
    assert_all_close(curvature[~failed], second(A.detach()[~failed]), of_order(5))


@pytest.mark.parametrize("lower", [True, False])
def test_forward_mode_beside_failed_items(lower: bool) -> None:
    A, failed = make_partly_failing(5)

    def tangent(A: Tensor) -> Tensor:
        with forward_ad.dual_level():
            L = lapgrad.potrf_ex(forward_ad.make_dual(A, torch.ones_like(A)), lower=lower).L
            return forward_ad.unpack_dual(L).tangent

    assert torch.count_nonzero(tangent(A)[failed]) == 0
    assert_all_close(tangent(A)[~failed], tangent(A[~failed]), of_order(5))
