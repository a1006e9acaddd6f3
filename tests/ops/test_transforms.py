"""torch.func and forward mode: every transform, and transforms of transforms, agree with plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device import DEVICE
from samples import OPERATORS, OperatorCase, Sample, join_results
from tolerances import HIGHER_ORDER, assert_all_close
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

Function = Callable[..., Any]

BATCH = 3


@pytest.fixture(params=OPERATORS.values(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> OperatorCase:
    return request.param


@pytest.fixture(autouse=True)
def no_slow_vmap() -> Iterator[None]:
    """vmap without a rule falls back to a loop, with no more than a line in the log: make that an error."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


def make_both_functions(case: OperatorCase, sample: Sample) -> tuple[Function, Function]:
    return case.differentiable(case.fn, sample.kwargs), case.differentiable(case.reference, sample.kwargs)


def make_directions(args: tuple[Tensor, ...], seed: int = 1) -> tuple[Tensor, ...]:
    """Return directions of fixed, irregular numbers (vmap does not allow random generators)."""
    return tuple(
        torch.sin(
            torch.arange(1.0, arg.numel() + 1, dtype=arg.dtype, device=DEVICE) * (seed + position + 1.7)
        ).view(arg.shape)
        for position, arg in enumerate(args)
    )


def loss(f: Function) -> Function:
    """Return a scalar function of the results with nonzero derivatives of all orders."""
    return lambda *args: f(*args).sin().sum()


def list_positions(args: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(args)))


def make_reverse_slope(f: Function, seed: int) -> Function:
    """Return the function that is the derivative of f along fixed directions, by reverse mode."""

    def derivative(*args: Tensor) -> Tensor:
        gradients = func.grad(lambda *a: f(*a).sum(), argnums=list_positions(args))(*args)
        return sum(
            ((g * d).sum() for g, d in zip(gradients, make_directions(args, seed), strict=True)),
            torch.zeros((), device=DEVICE),
        )

    return derivative


def make_forward_slope(f: Function, seed: int) -> Function:
    """Return the function that is the derivative of f along fixed directions, by forward mode."""
    return lambda *args: func.jvp(f, args, make_directions(args, seed))[1]


def pull(f: Function) -> Function:
    def pulled(*args: Tensor) -> Any:
        result, vjp = func.vjp(f, *args)
        return vjp(result.cos())

    return pulled


UNBATCHED: dict[str, Callable[[Function, tuple[Tensor, ...]], Any]] = {
    "grad": lambda f, x: func.grad(loss(f), argnums=list_positions(x))(*x),
    "grad_and_value": lambda f, x: func.grad_and_value(loss(f), argnums=list_positions(x))(*x),
    "vjp": lambda f, x: pull(f)(*x),
    "jvp": lambda f, x: func.jvp(f, x, make_directions(x)),
    "linearize": lambda f, x: func.linearize(f, *x)[1](*make_directions(x)),
    "jacrev": lambda f, x: func.jacrev(f, argnums=list_positions(x))(*x),
    "jacfwd": lambda f, x: func.jacfwd(f, argnums=list_positions(x))(*x),
    "hessian": lambda f, x: func.hessian(loss(f), argnums=list_positions(x))(*x),
    "jacrev of jacrev": lambda f, x: func.jacrev(func.jacrev(loss(f), list_positions(x)), list_positions(x))(
        *x
    ),
    "jacfwd of jacfwd": lambda f, x: func.jacfwd(func.jacfwd(loss(f), list_positions(x)), list_positions(x))(
        *x
    ),
    "jacrev of jacfwd": lambda f, x: func.jacrev(func.jacfwd(loss(f), list_positions(x)), list_positions(x))(
        *x
    ),
    "grad of grad of grad": lambda f, x: make_reverse_slope(
        make_reverse_slope(make_reverse_slope(loss(f), 1), 2), 3
    )(*x),
    "jvp of jvp": lambda f, x: make_forward_slope(make_forward_slope(f, 1), 2)(*x),
    "jvp of jvp of jvp": lambda f, x: make_forward_slope(make_forward_slope(make_forward_slope(f, 1), 2), 3)(
        *x
    ),
    "jvp of grad": lambda f, x: make_forward_slope(make_reverse_slope(loss(f), 1), 2)(*x),
    "jvp of vjp": lambda f, x: func.jvp(pull(f), x, make_directions(x)),
    "grad of jvp": lambda f, x: make_reverse_slope(make_forward_slope(f, 1), 2)(*x),
    "vjp of jvp": lambda f, x: pull(make_forward_slope(f, 1))(*x),
    "jvp of grad of grad": lambda f, x: make_forward_slope(
        make_reverse_slope(make_reverse_slope(loss(f), 1), 2), 3
    )(*x),
    "grad of jvp of grad": lambda f, x: make_reverse_slope(
        make_forward_slope(make_reverse_slope(loss(f), 1), 2), 3
    )(*x),
    "functionalize": lambda f, x: func.functionalize(f)(*x),
    "derivative by cotangents that are zero": lambda f, x: torch.autograd.functional.jvp(
        f, x, make_directions(x)
    )[1],
}

#: Of operands with one leading dimension.
BATCHED: dict[str, Callable[[Function, tuple[Tensor, ...]], Any]] = {
    "vmap": lambda f, x: func.vmap(f)(*x),
    "vmap over the last dimension": lambda f, x: func.vmap(f, in_dims=-1, out_dims=-1)(
        *[a.movedim(0, -1) for a in x]
    ),
    "vmap of grad": lambda f, x: func.vmap(func.grad(loss(f), list_positions(x)))(*x),
    "grad of vmap": lambda f, x: func.grad(loss(func.vmap(f)), list_positions(x))(*x),
    "vmap of vjp": lambda f, x: func.vmap(pull(f))(*x),
    "vmap of jvp": lambda f, x: func.vmap(make_forward_slope(f, 1))(*x),
    "jvp of vmap": lambda f, x: func.jvp(func.vmap(f), x, make_directions(x)),
    "vmap of jacrev": lambda f, x: func.vmap(func.jacrev(f, list_positions(x)))(*x),
    "vmap of jacfwd": lambda f, x: func.vmap(func.jacfwd(f, list_positions(x)))(*x),
    "vmap of hessian": lambda f, x: func.vmap(func.hessian(loss(f), list_positions(x)))(*x),
    "jacrev of vmap": lambda f, x: func.jacrev(func.vmap(f), list_positions(x))(*x),
    "grad of vmap of grad": lambda f, x: make_reverse_slope(func.vmap(func.grad(loss(f))), 1)(*x),
}


# The warning is torch.func.linearize's.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("transform", UNBATCHED)
def test_transform(case: OperatorCase, transform: str) -> None:
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    apply = UNBATCHED[transform]
    # torch's own linearisation of torch.linalg.svd is NaN: the expected tangent comes from jvp.
    expected = (
        UNBATCHED["jvp"](theirs, sample.args)[1] if transform == "linearize" else apply(theirs, sample.args)
    )
    assert_all_close(apply(ours, sample.args), expected, HIGHER_ORDER)


@pytest.mark.parametrize("transform", BATCHED)
def test_batched_transform(case: OperatorCase, transform: str) -> None:
    sample = case.batched((BATCH,))
    ours, theirs = make_both_functions(case, sample)
    apply = BATCHED[transform]
    assert_all_close(apply(ours, sample.args), apply(theirs, sample.args), HIGHER_ORDER)


def test_nested_vmap(case: OperatorCase) -> None:
    sample = case.batched((2, BATCH))
    ours, theirs = make_both_functions(case, sample)
    nested = func.vmap(func.vmap(ours), in_dims=1, out_dims=1)
    assert_all_close(nested(*sample.args), theirs(*sample.args))


def test_vmap_over_batches(case: OperatorCase) -> None:
    """The mapped dimension next to leading dimensions that the operator sees itself."""
    sample = case.batched((2, BATCH))
    ours, theirs = make_both_functions(case, sample)
    assert_all_close(func.vmap(ours, in_dims=1, out_dims=1)(*sample.args), theirs(*sample.args))


@pytest.mark.parametrize("transform", ["vmap", "vmap of grad", "grad of vmap", "vmap of jvp"])
def test_vmap_over_one_operand(case: OperatorCase, transform: str) -> None:
    """One operand is mapped, the others are shared."""
    single = case.small()
    for position in range(len(single.args)):
        mapped = case.batched((BATCH,)).args[position]
        in_dims = tuple(0 if i == position else None for i in range(len(single.args)))
        args = tuple(mapped if i == position else arg for i, arg in enumerate(single.args))

        def apply(
            f: Function, args: tuple[Tensor, ...] = args, in_dims: tuple[int | None, ...] = in_dims
        ) -> Any:
            if transform == "vmap":
                return func.vmap(f, in_dims)(*args)
            if transform == "vmap of grad":
                return func.vmap(func.grad(loss(f), list_positions(args)), in_dims)(*args)
            if transform == "grad of vmap":
                return func.grad(loss(func.vmap(f, in_dims)), list_positions(args))(*args)
            return func.vmap(make_forward_slope(f, 1), in_dims)(*args)

        ours, theirs = make_both_functions(case, single)
        assert_all_close(apply(ours), apply(theirs), HIGHER_ORDER)


@pytest.mark.parametrize("name", ["trsm", "trmm"])
@pytest.mark.parametrize("rightside", [False, True])
def test_vmap_shares_the_triangle(name: str, rightside: bool) -> None:
    """One L for all mapped A is one call with more rows or columns, also with further leading dimensions."""
    case = OPERATORS[name]
    kwargs = {"rightside": rightside}
    for batch in ((), (2,)):
        L = case.batched(batch).args[0]
        A = torch.randn(*batch, L.shape[-1], BATCH, L.shape[-1], dtype=L.dtype, device=DEVICE)
        ours, theirs = make_both_functions(case, Sample((L, A), kwargs, ""))
        assert_all_close(
            func.vmap(ours, in_dims=(None, -2), out_dims=1)(L, A),
            func.vmap(theirs, in_dims=(None, -2), out_dims=1)(L, A),
        )


def test_dual_numbers(case: OperatorCase) -> None:
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(*pair)
            for pair in zip(sample.args, make_directions(sample.args), strict=True)
        ]
        actual, expected = (forward_ad.unpack_dual(f(*duals)) for f in (ours, theirs))
        assert_all_close(actual.primal, expected.primal)
        assert_all_close(actual.tangent, expected.tangent)


def test_dual_numbers_on_one_operand(case: OperatorCase) -> None:
    """Operands without a tangent count as constants."""
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    for position, tangent in enumerate(make_directions(sample.args)):
        with forward_ad.dual_level():
            args = list(sample.args)
            args[position] = forward_ad.make_dual(args[position], tangent)
            actual, expected = (forward_ad.unpack_dual(f(*args)).tangent for f in (ours, theirs))
            assert_all_close(actual, expected)


def test_forward_over_reverse(case: OperatorCase) -> None:
    """Dual numbers through torch.autograd.grad."""
    sample = case.small(requires_grad=True)
    ours, theirs = make_both_functions(case, sample)

    def product(f: Function) -> list[Tensor]:
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(*pair)
                for pair in zip(sample.args, make_directions(sample.args), strict=True)
            ]
            gradients = torch.autograd.grad(loss(f)(*duals), duals)
            return [forward_ad.unpack_dual(gradient).tangent for gradient in gradients]

    assert_all_close(product(ours), product(theirs), HIGHER_ORDER)


def test_forward_and_reverse_mode_are_adjoint(case: OperatorCase) -> None:
    """<cotangent, J tangent> = <J^T cotangent, tangent>, also where an operator reads half of its operand."""
    sample = case.small()

    def raw(*args: Tensor) -> Tensor:
        result = case.fn(*args, **sample.kwargs)
        return join_results(result)

    tangents = make_directions(sample.args)
    result, pushed = func.jvp(raw, sample.args, tangents)
    (cotangent,) = make_directions((result,), seed=2)
    pulled = func.vjp(raw, *sample.args)[1](cotangent)
    left = (cotangent * pushed).sum()
    right = sum((g * d).sum() for g, d in zip(pulled, tangents, strict=True))
    assert_all_close(right, left)


def test_batched_cotangents(case: OperatorCase) -> None:
    """is_grads_batched maps the backward of an eagerly recorded call."""
    sample = case.small(requires_grad=True)

    def gradients(f: Function) -> tuple[Tensor, ...]:
        result = f(*sample.args)
        cotangents = torch.stack([make_directions((result,), seed)[0] for seed in range(BATCH)])
        return torch.autograd.grad(result, sample.args, cotangents, is_grads_batched=True)

    ours, theirs = make_both_functions(case, sample)
    assert_all_close(gradients(ours), gradients(theirs))


def test_tensors_that_outlive_their_transform(case: OperatorCase) -> None:
    """A wrapper that escaped from a finished transform has type Tensor, but is not a plain one."""
    sample = case.small()
    escaped: list[Tensor] = []

    def leak(*args: Tensor) -> Tensor:
        escaped.extend(args)
        return loss(case.differentiable(case.fn, sample.kwargs))(*args)

    func.grad(leak)(*sample.args)
    with pytest.raises(RuntimeError):
        escaped[0].data_ptr()
    ours, theirs = make_both_functions(case, sample)
    args = (escaped[0], *sample.args[1:])
    assert_all_close(ours(*args), theirs(*sample.args))


def test_potrf_third_derivative_agrees_to_rounding() -> None:
    """Third order runs through the derivative of the composite of the fused kernel."""
    case = OPERATORS["potrf"]
    for lower in (True, False):
        ours, theirs = make_both_functions(case, Sample((), {"lower": lower}, ""))
        args = case.small().args
        assert_all_close(
            make_reverse_slope(make_reverse_slope(make_reverse_slope(loss(ours), 1), 2), 3)(*args),
            make_reverse_slope(make_reverse_slope(make_reverse_slope(loss(theirs), 1), 2), 3)(*args),
            500,
        )


@pytest.mark.parametrize("strategy", ["forward-mode", "reverse-mode"])
def test_jacobian_of_nothing(case: OperatorCase, strategy: str) -> None:
    """Operands without elements: wherever torch's own functions have a Jacobian, the operator has one."""

    def shapes(f: Function) -> list[tuple[int, ...]] | None:
        try:
            columns = jacobian(f, sample.args, vectorize=True, strategy=strategy)
        except (IndexError, RuntimeError):
            return None
        return [tuple(column.shape) for column in columns]

    for sample in case.samples():
        if not any(arg.numel() for arg in sample.args):
            ours, theirs = map(shapes, make_both_functions(case, sample))
            assert theirs is None or ours == theirs, sample.id
