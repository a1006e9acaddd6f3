"""Eager calls under modes, hooks, checkpoints, threads and autocast, and with subclasses."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from device import DEVICE, KERNELS
from samples import OPERATORS, OperatorCase, Sample, join_results
from tolerances import assert_all_close
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from lapgrad._kernels import table as _kernels
from lapgrad._torch.private import skips_dispatcher

Function = Callable[..., Any]


@pytest.fixture(params=OPERATORS.values(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> OperatorCase:
    return request.param


def compute_first_result(case: OperatorCase, f: Function, sample: Sample) -> Function:
    def result(*args: Tensor) -> Tensor:
        value = f(*args, **sample.kwargs)
        return join_results(value)

    return result


def make_leaves(sample: Sample) -> list[Tensor]:
    return [arg.detach().clone().requires_grad_() for arg in sample.args]


def compute_expected_gradients(
    case: OperatorCase, sample: Sample, cotangent: Tensor | None = None
) -> list[Tensor]:
    leaves = make_leaves(sample)
    result = compute_first_result(case, case.reference, sample)(*leaves)
    return list(
        torch.autograd.grad(result, leaves, torch.ones_like(result) if cotangent is None else cotangent)
    )


def test_result_is_fresh_and_contiguous(case: OperatorCase) -> None:
    """The result is a new contiguous tensor, and the operands keep their values."""
    for sample in case.samples(requires_grad=True):
        before = [arg.detach().clone() for arg in sample.args]
        result = compute_first_result(case, case.fn, sample)(*sample.args)
        assert result.is_contiguous()
        assert not result._is_view(), sample.id
        assert_all_close([arg.detach() for arg in sample.args], before, 0)


def test_only_wanted_gradients(case: OperatorCase) -> None:
    """With one operand that needs a gradient, the others are constants, and nothing is saved for them."""
    sample = case.small()
    expected = compute_expected_gradients(case, sample)
    for position in range(len(sample.args)):
        args = [arg.detach() for arg in sample.args]
        args[position].requires_grad_()
        result = compute_first_result(case, case.fn, sample)(*args)
        (gradient,) = torch.autograd.grad(result.sum(), args[position])
        args[position].requires_grad_(False)
        assert_all_close(gradient, expected[position])


def test_default_device(case: OperatorCase) -> None:
    """Results and workspaces are on the device of the operands, whatever torch's default device is."""
    for sample in case.samples(requires_grad=True):
        with torch.device("meta"):
            assert skips_dispatcher(sample.args)
            result = compute_first_result(case, case.fn, sample)(*sample.args)
            gradients = torch.autograd.grad(result, sample.args, torch.ones_like(result))
        again = compute_first_result(case, case.fn, sample)(*sample.args)
        assert_all_close(result, again, 0)
        assert_all_close(gradients, torch.autograd.grad(again, sample.args, torch.ones_like(again)), 0)


def test_saves_the_minimum(case: OperatorCase) -> None:
    sample = case.small()
    for position, count in enumerate(case.saved):
        args = [arg.detach() for arg in sample.args]
        args[position].requires_grad_()
        packed: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, packed=packed: packed.append(t) or t, lambda t: t
        ):
            compute_first_result(case, case.fn, sample)(*args)
        assert len(packed) == count


def test_saved_tensor_hooks(case: OperatorCase) -> None:
    """Saved tensors may be replaced and restored by saved-tensor hooks."""
    sample = case.small()
    leaves = make_leaves(sample)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.detach().cpu().numpy().copy(), lambda array: torch.from_numpy(array).to(DEVICE)
    ):
        result = compute_first_result(case, case.fn, sample)(*leaves)
    assert_all_close(
        list(torch.autograd.grad(result.sum(), leaves)), compute_expected_gradients(case, sample)
    )


def test_tensor_hooks(case: OperatorCase) -> None:
    sample = case.small()
    leaves = make_leaves(sample)
    result = compute_first_result(case, case.fn, sample)(*leaves)
    result.register_hook(lambda gradient: 2.0 * gradient)
    seen: list[Tensor] = []
    leaves[0].register_hook(lambda gradient: seen.append(gradient) or 0.5 * gradient)
    node_calls: list[int] = []
    result.grad_fn.register_hook(lambda *_: node_calls.append(1))
    result.sum().backward()
    expected = compute_expected_gradients(case, sample)
    assert_all_close(seen[0], 2.0 * expected[0])
    assert_all_close(leaves[0].grad, expected[0])
    assert node_calls == [1]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(case: OperatorCase, use_reentrant: bool) -> None:
    sample = case.small()
    leaves = make_leaves(sample)
    result = checkpoint(compute_first_result(case, case.fn, sample), *leaves, use_reentrant=use_reentrant)
    result.sum().backward()
    assert_all_close([leaf.grad for leaf in leaves], compute_expected_gradients(case, sample))


def test_threads(case: OperatorCase) -> None:
    """Many threads at once, forward and backward, each with its own gradient mode."""
    samples = [case.batched((4,)), case.small()]
    expected = [compute_expected_gradients(case, sample) for sample in samples]
    gate = threading.Barrier(4)

    def work(worker: int) -> None:
        gate.wait()
        for repetition in range(10):
            sample = samples[(worker + repetition) % 2]
            leaves = make_leaves(sample)
            with torch.set_grad_enabled(True):
                result = compute_first_result(case, case.fn, sample)(*leaves)
                gradients = torch.autograd.grad(result.sum(), leaves)
            assert_all_close(list(gradients), expected[(worker + repetition) % 2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_half_precision(case: OperatorCase, dtype: torch.dtype) -> None:
    """Half precision operands are computed with in float32; their gradients are in half precision."""
    sample = case.small(dtype=torch.float32)
    leaves = [arg.to(dtype).requires_grad_() for arg in sample.args]
    with torch.autocast(DEVICE.type, dtype=dtype):
        result = compute_first_result(case, case.fn, sample)(*leaves)
    assert result.dtype == torch.float32
    widened = Sample(tuple(leaf.detach().float() for leaf in leaves), sample.kwargs, "")
    assert_all_close(result.detach(), compute_first_result(case, case.reference, sample)(*widened.args))
    gradients = torch.autograd.grad(result.sum(), leaves)
    assert all(gradient.dtype == dtype for gradient in gradients)
    assert_all_close(
        list(gradients), [gradient.to(dtype) for gradient in compute_expected_gradients(case, widened)], 2
    )


@pytest.mark.parametrize("within", ["eager", "grad", "vmap", "jvp", "backward"])
def test_autocast_does_not_lower_precision(case: OperatorCase, within: str) -> None:
    """float32 stays float32 inside of kernels and formulas, forward and backward, to the last bit."""
    sample = case.small(dtype=torch.float32)
    f = compute_first_result(case, case.fn, sample)

    def run() -> Any:
        if within == "grad":
            return func.grad(lambda *args: f(*args).sin().sum())(*sample.args)
        if within == "vmap":
            return func.vmap(f)(*[arg.expand(2, *arg.shape) for arg in sample.args])
        if within == "jvp":
            return func.jvp(f, sample.args, sample.args)
        leaves = make_leaves(sample)
        result = f(*leaves)
        if within == "eager":
            return result.detach()
        gradients = torch.autograd.grad(result.sin().sum(), leaves, create_graph=True)
        seconds = [g for g in gradients if g.requires_grad]
        return [
            [gradient.detach() for gradient in gradients],
            list(torch.autograd.grad([g.sin().sum() for g in seconds], leaves, materialize_grads=True))
            if seconds
            else [],
        ]

    plain = run()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        cast = run()
    assert_all_close(cast, plain, 0)


class Labelled(Tensor):
    """A subclass that only follows operators around, through __torch_function__."""


def test_torch_function_subclass(case: OperatorCase) -> None:
    sample = case.small()
    args = [arg.as_subclass(Labelled).requires_grad_() for arg in sample.args]
    result = compute_first_result(case, case.fn, sample)(*args)
    assert type(result) is Labelled
    gradients = torch.autograd.grad(result.sum(), args)
    assert_all_close([g.as_subclass(Tensor) for g in gradients], compute_expected_gradients(case, sample))


def test_torch_dispatch_subclass(case: OperatorCase) -> None:
    """A wrapper of two tensors: both sides are computed, forward and backward."""
    sample = case.small()
    args = [TwoTensor(arg, arg.clone()).requires_grad_() for arg in sample.args]
    result = compute_first_result(case, case.fn, sample)(*args)
    assert type(result) is TwoTensor
    gradients = torch.autograd.grad(result.sum(), args)
    expected = compute_expected_gradients(case, sample)
    assert_all_close([g.a for g in gradients], expected)
    assert_all_close([g.b for g in gradients], expected)


def test_parameters(case: OperatorCase) -> None:
    sample = case.small()
    parameters = [torch.nn.Parameter(arg) for arg in sample.args]
    compute_first_result(case, case.fn, sample)(*parameters).sum().backward()
    assert_all_close([parameter.grad for parameter in parameters], compute_expected_gradients(case, sample))


def test_inference_mode(case: OperatorCase) -> None:
    sample = case.small()
    expected = compute_first_result(case, case.reference, sample)(*sample.args)
    with torch.inference_mode():
        result = compute_first_result(case, case.fn, sample)(*sample.args)
        again = compute_first_result(case, case.fn, sample)(*[arg.clone() for arg in sample.args])
        assert result.is_inference()
        assert_all_close([result.clone(), again.clone()], [expected, expected])
    made_there = compute_first_result(case, case.fn, sample)(*[arg.clone() for arg in sample.args])
    assert not made_there.is_inference()


def test_no_grad(case: OperatorCase) -> None:
    sample = case.small(requires_grad=True)
    with torch.no_grad():
        result = compute_first_result(case, case.fn, sample)(*sample.args)
    assert not result.requires_grad
    result += sample.args[0].sum()  # a view made under no_grad could not be changed with gradients on
    assert result.requires_grad


@pytest.mark.cpu
def test_graphs_are_freed_with_their_results(case: OperatorCase) -> None:
    """No cycle of references keeps operands and results until a garbage collection."""
    of_nothing = [sample for sample in case.samples() if not any(arg.numel() for arg in sample.args)]
    for sample in (case.small(), *of_nothing):
        leaves = make_leaves(sample)
        kept = weakref.ref(leaves[0])
        gc.collect()
        gc.disable()
        try:
            with forward_ad.dual_level():  # calls with tangents keep more
                results = compute_first_result(case, case.fn, sample)(*leaves)
            if results.requires_grad:
                torch.autograd.grad(results.sum(), leaves, create_graph=True, allow_unused=True)
            del leaves, results
            assert kept() is None, sample.id
        finally:
            gc.enable()


@pytest.mark.parametrize("kind", ["expanded", "transposed", "zero", "negative bit"])
def test_odd_cotangents(case: OperatorCase, kind: str) -> None:
    sample = case.small()
    leaves = make_leaves(sample)
    result = compute_first_result(case, case.fn, sample)(*leaves)
    cotangent = torch.randn(result.shape, dtype=result.dtype, generator=torch.Generator().manual_seed(0)).to(
        DEVICE
    )
    if kind == "expanded":
        cotangent = torch.ones((), dtype=result.dtype, device=DEVICE).expand(result.shape)
    elif kind == "transposed" and result.dim() >= 2:
        cotangent = cotangent.mT.contiguous().mT
    elif kind == "zero":
        cotangent = torch._efficientzerotensor(result.shape, dtype=result.dtype, device=DEVICE)
    elif kind == "negative bit":
        cotangent = torch.complex(cotangent, cotangent).conj().imag
        assert cotangent.is_neg()
    dense = (torch.zeros_like(result) if kind == "zero" else cotangent.clone().resolve_neg()).detach()
    gradients = torch.autograd.grad(result, leaves, cotangent)
    assert_all_close(list(gradients), compute_expected_gradients(case, sample, dense))


def test_no_cotangent(case: OperatorCase) -> None:
    """A backward that does not reach the result through any path gives None, not zeros, at no cost."""
    leaves = make_leaves(case.small())

    class Discard(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> None:
            return None

    result = Discard.apply(compute_first_result(case, case.fn, case.small())(*leaves))
    assert torch.autograd.grad(result, leaves, allow_unused=True) == (None,) * len(leaves)


def test_negative_bit_operand(case: OperatorCase) -> None:
    """A lazily negated operand has type Tensor, and the wrong sign in memory."""
    sample = case.small()
    lazy = [torch.complex(torch.zeros_like(arg), -arg).conj().imag for arg in sample.args]
    assert all(arg.is_neg() for arg in lazy)
    result = compute_first_result(case, case.fn, sample)(*lazy)
    assert_all_close(result, compute_first_result(case, case.reference, sample)(*sample.args))


def test_backward_twice(case: OperatorCase) -> None:
    sample = case.small()
    leaves = make_leaves(sample)
    result = compute_first_result(case, case.fn, sample)(*leaves)
    once = torch.autograd.grad(result.sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(result.sum(), leaves)
    assert_all_close(list(again), list(once), 0)


@pytest.mark.parametrize("name", ["potrf", "potrf_ex", "potri", "syrk", "sumlogdiag", "gelqf"])
@pytest.mark.parametrize("how", ["backward", "func.grad", "vmap of grad"])
def test_first_derivative_runs_the_fused_kernel(monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    case = OPERATORS[name]
    routine = {"potrf_ex": "potrf_vjp"}.get(name, f"{name}_vjp")
    kernel = _kernels.lookup(routine, torch.empty(0, device=DEVICE))
    calls: list[int] = []

    def counting(*args: Any) -> Any:
        calls.append(1)
        return kernel(*args)

    monkeypatch.setitem(KERNELS, routine, counting)
    # A shortcut computes the same in one step, without this kernel.
    monkeypatch.delitem(KERNELS, f"{routine}_shortcut", raising=False)
    sample = case.batched((2,)) if how == "vmap of grad" else case.small()
    f = compute_first_result(case, case.fn, sample)
    if how == "backward":
        f(*make_leaves(sample)).sum().backward()
    elif how == "func.grad":
        func.grad(lambda *args: f(*args).sum())(*sample.args)
    else:
        func.vmap(func.grad(lambda *args: f(*args).sum()))(*sample.args)
    assert calls == [1]
