"""Flags and scale factors of other types than the annotated ones: taken as what they mean, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from samples import OPERATORS, Flags, OperatorCase, Sample, join_results
from tolerances import assert_all_close
from torch import Tensor

import lapgrad


def compute_value_and_gradients(case: OperatorCase, sample: Sample, flags: Flags) -> list[Tensor]:
    leaves = [arg.detach().requires_grad_() for arg in sample.args]
    result = join_results(case.fn(*leaves, **flags))
    gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    return [result.detach(), *(gradient for gradient in gradients if gradient is not None)]


def has_flags(case: OperatorCase) -> bool:
    return any(isinstance(value, bool) for recipe in case.recipes for value in recipe.flags.values())


@pytest.mark.parametrize("case", list(filter(has_flags, OPERATORS.values())), ids=lambda case: case.name)
def test_flags_are_true_or_false(case: OperatorCase) -> None:
    """1 and numpy's True mean True, also where a gradient is recorded."""
    seen: list[Flags] = []
    for sample in case.samples():
        booleans = {name: value for name, value in sample.kwargs.items() if isinstance(value, bool)}
        if booleans and booleans not in seen:
            seen.append(booleans)
            expected = compute_value_and_gradients(case, sample, sample.kwargs)
            for kind in (int, np.bool_):
                others = {name: kind(value) for name, value in booleans.items()}
                given = compute_value_and_gradients(case, sample, sample.kwargs | others)
                assert_all_close(given, expected, 0)


A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])

SCALED: dict[str, Callable[[Any], Tensor]] = {
    "trsm: alpha": lambda factor: lapgrad.trsm(A, A, alpha=factor),
    "trmm: alpha": lambda factor: lapgrad.trmm(A, A, alpha=factor),
    "syrk: alpha": lambda factor: lapgrad.syrk(A, alpha=factor),
    "gemmt: alpha": lambda factor: lapgrad.gemmt(A, A, alpha=factor),
    "gemm2: alpha": lambda factor: lapgrad.gemm2(A, A, alpha=factor),
    "gemm: alpha": lambda factor: lapgrad.gemm(A, A, A, alpha=factor),
    "gemm: beta": lambda factor: lapgrad.gemm(A, A, A, beta=factor),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_tensor_is_no_scale_factor(name: str) -> None:
    """Its gradient would be lost: where it is 1, nothing is multiplied."""
    for value in (1.0, 2.0):
        with pytest.raises(lapgrad.DTypeError, match=f"{name} must be a number, got a tensor"):
            SCALED[name](torch.tensor(value, requires_grad=True))
    with pytest.raises(lapgrad.DTypeError, match=f"{name} must be a real number, got 2j"):
        SCALED[name](2j)
    assert_all_close(SCALED[name](np.float32(2.0)), SCALED[name](2.0), 0)
    assert_all_close(SCALED[name](2), SCALED[name](2.0), 0)
