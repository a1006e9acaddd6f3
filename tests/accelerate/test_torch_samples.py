"""torch's linear algebra returns the same for torch's own samples with and without lapgrad's kernels."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close, assert_close
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch_samples import (
    LEFT_TO_TORCH,
    OPERATORS,
    WITHOUT_GRADIENT,
    WRONG_FORWARD_OVER_REVERSE,
    accelerate_everything,
    call,
    detach_all,
    draw_samples,
    find_operator,
    select_comparable,
    split_differentiable,
)

import lapgrad

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("overrides_removed"),
    # torch's older functions (cholesky, svd, qr, ...) warn that they will go, and vmap of missing rules.
    pytest.mark.filterwarnings("ignore:.*deprecated.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

WITH_GRADIENT = [name for name in OPERATORS if name not in WITHOUT_GRADIENT]


def layouts(results: Any) -> list[tuple[Any, ...]]:
    return [
        (leaf.dtype, leaf.shape, leaf.stride(), leaf.requires_grad)
        for leaf in tree_flatten(results)[0]
        if isinstance(leaf, Tensor)
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_layouts(name: str, dtype: torch.dtype) -> None:
    operator = find_operator(name)
    for requires_grad in (False, True):
        for drawn in draw_samples(
            name, dtype, requires_grad=requires_grad and name in WITH_GRADIENT, most=40
        ):
            for sample in (drawn, drawn.noncontiguous()):
                expected = call(operator, sample)
                with accelerate_everything():
                    actual = call(operator, sample)
                assert type(actual) is type(expected)
                assert layouts(actual) == layouts(expected)
                assert_all_close(
                    select_comparable(sample, actual), select_comparable(sample, expected), HIGHER_ORDER
                )
    assert lapgrad.accelerate.stats().taken or name in LEFT_TO_TORCH


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients(name: str) -> None:
    operator = find_operator(name)
    for sample in draw_samples(name, requires_grad=True, most=25):
        operands, _ = split_differentiable(sample)
        expected = select_comparable(sample, call(operator, sample))
        cotangents = [torch.randn_like(x) if x.requires_grad else None for x in expected]
        gradients = []
        for accelerated in (False, True):
            with accelerate_everything() if accelerated else lapgrad.accelerate.off():
                results = select_comparable(sample, call(operator, sample))
                chosen = [(x, g) for x, g in zip(results, cotangents, strict=True) if g is not None]
                gradients.append(
                    torch.autograd.grad(
                        [x for x, _ in chosen], operands, [g for _, g in chosen], allow_unused=True
                    )
                )
        for of_torch, of_lapgrad, operand in zip(*gradients, operands, strict=True):
            assert (of_torch is None) == (of_lapgrad is None)
            if of_torch is None:
                continue
            if name in SYMMETRIC and operand.shape[-1] == operand.shape[-2]:
                # If only one triangle of a matrix is read, torch's gradient of it is either halved or not.
                of_torch = of_torch + of_torch.mT
                of_lapgrad = of_lapgrad + of_lapgrad.mT
            assert_close(of_lapgrad, of_torch, HIGHER_ORDER)


#: Functions of a symmetric matrix: the gradient is defined up to a skew part.
SYMMETRIC = {
    "linalg.eigh",
    "linalg.eigvalsh",
    "linalg.cholesky",
    "linalg.cholesky_ex",
    "cholesky",
    "linalg.pinv/hermitian",
}


def as_function(operator: Any, sample: Any) -> tuple[Any, list[Tensor]]:
    """Return a function and its operands for gradcheck; it returns differentiable tensors only."""
    operands, rebuild = split_differentiable(sample)
    with_gradient = [result.requires_grad for result in select_comparable(sample, call(operator, sample))]

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        first, further, options = rebuild(*values)
        results = operator.gradcheck_wrapper(operator.op, first, *further, **options)
        return tuple(itertools.compress(select_comparable(sample, results), with_gradient))

    return function, operands


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_derivatives_are_those_of_differences(name: str) -> None:
    """First and second order, reverse and forward mode, and batches of cotangents."""
    operator = find_operator(name)
    for sample in draw_samples(name, requires_grad=True, most=3):
        function, operands = as_function(operator, sample)
        forward = operator.supports_forward_ad
        with accelerate_everything():
            assert torch.autograd.gradcheck(
                function,
                operands,
                check_batched_grad=operator.check_batched_grad,
                check_forward_ad=forward,
                check_undefined_grad=False,
                fast_mode=True,
            )
            if operator.supports_gradgrad:
                assert torch.autograd.gradgradcheck(
                    function,
                    operands,
                    gen_non_contig_grad_outputs=True,
                    check_fwd_over_rev=forward
                    and operator.supports_fwgrad_bwgrad
                    and name not in WRONG_FORWARD_OVER_REVERSE,
                    fast_mode=True,
                )


@pytest.mark.parametrize("name", OPERATORS)
def test_vmap(name: str) -> None:
    operator = find_operator(name)
    for sample in draw_samples(name, most=4):
        if not isinstance(sample.input, Tensor):
            continue

        def compute(A: Tensor, sample: Any = sample) -> list[Tensor]:
            return select_comparable(sample, operator.op(A, *sample.args, **sample.kwargs))

        with accelerate_everything():
            mapped = torch.func.vmap(compute)(torch.stack([sample.input, sample.input]))
        for results in zip(*[m.unbind() for m in mapped], strict=True):
            assert_all_close(list(results), compute(sample.input), HIGHER_ORDER)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("pinverse", "logdet")])
def test_out(name: str) -> None:
    operator = find_operator(name)
    if not operator.supports_out:
        return
    for sample in draw_samples(name, most=6):
        expected = call(operator, sample)
        several = isinstance(expected, tuple)
        tensors = expected if several else (expected,)
        for targets in (
            [torch.empty(0, dtype=x.dtype) for x in tensors],
            [torch.zeros(x.shape, dtype=x.dtype) for x in tensors],
            [torch.zeros(x.shape[::-1], dtype=x.dtype).permute(tuple(range(x.dim()))[::-1]) for x in tensors],
        ):
            kept = detach_all(targets)
            by_torch = operator.op(
                sample.input, *sample.args, **sample.kwargs, out=tuple(kept) if several else kept[0]
            )
            with accelerate_everything():
                operator.op(
                    sample.input, *sample.args, **sample.kwargs, out=tuple(targets) if several else targets[0]
                )
            assert layouts(targets) == layouts(kept)
            result = type(expected)(targets) if several else targets[0]
            assert_all_close(
                select_comparable(sample, result), select_comparable(sample, by_torch), HIGHER_ORDER
            )


@pytest.mark.parametrize("name", OPERATORS)
def test_inference_mode(name: str) -> None:
    operator = find_operator(name)
    for sample in draw_samples(name, most=6):
        expected = select_comparable(sample, call(operator, sample))
        with torch.inference_mode(), accelerate_everything():
            actual = select_comparable(sample, call(operator, sample))
        assert all(result.is_inference() for result in actual)
        assert_all_close(actual, expected, HIGHER_ORDER)
    assert lapgrad.accelerate.stats().taken or name in LEFT_TO_TORCH


@pytest.mark.parametrize("name", OPERATORS)
def test_errors(name: str) -> None:
    operator = find_operator(name)
    if operator.error_inputs_func is None:
        return
    for error in operator.error_inputs("cpu"):
        sample = error.sample_input
        outcomes = []
        for accelerated in (False, True):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                with accelerate_everything() if accelerated else lapgrad.accelerate.off():
                    try:
                        call(operator, sample)
                        outcomes.append((None, "", [str(w.message) for w in seen]))
                    except Exception as raised:
                        outcomes.append((type(raised), str(raised), [str(w.message) for w in seen]))
        assert outcomes[0] == outcomes[1]
