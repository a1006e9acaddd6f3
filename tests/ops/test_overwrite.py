"""overwrite=True: memory is reused, version counters are right, and autograd is never deceived."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device import DEVICE
from samples import OPERATORS, OperatorCase, Sample, join_results
from tolerances import HIGHER_ORDER, assert_all_close
from torch import Tensor, func
from torch.autograd import forward_ad

import lapgrad

OVERWRITING = [case for case in OPERATORS.values() if case.overwrites is not None and case.leaves_result]


@pytest.fixture(params=OVERWRITING, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> OperatorCase:
    return request.param


def select_first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def make_overwriting_function(case: OperatorCase, sample: Sample) -> Callable[..., Tensor]:
    """Return the operator with overwrite=True as a function without side effects: it overwrites a copy."""

    def run(*args: Tensor) -> Tensor:
        operands = list(args)
        operands[case.overwrites] = operands[case.overwrites].clone()
        return select_first(case.fn(*operands, **sample.kwargs, overwrite=True))

    return run


def test_reuses_memory(case: OperatorCase) -> None:
    sample = case.small()
    target = sample.args[case.overwrites]
    expected = select_first(case.reference(*sample.args, **sample.kwargs))
    address, version = target.data_ptr(), target._version
    others = [arg.clone() for arg in sample.args]
    result = select_first(case.fn(*sample.args, **sample.kwargs, overwrite=True))
    assert result is target
    assert result.data_ptr() == address
    assert result._version > version
    assert_all_close(result, expected)
    for position, (arg, before) in enumerate(zip(sample.args, others, strict=True)):
        if position != case.overwrites:
            assert_all_close(arg, before, 0)


def test_agrees_with_fresh_result(case: OperatorCase) -> None:
    """Over all samples, with gradients of first and second order."""
    for sample in case.samples(requires_grad=True):
        target = sample.args[case.overwrites]
        expected = case.differentiable(case.reference, sample.kwargs)(*sample.args)
        if expected.shape != target.shape:
            continue
        result = case.differentiable(make_overwriting_function(case, sample), {})(*sample.args)
        assert_all_close(result, expected)
        weights = torch.linspace(0.5, 1.5, expected.numel(), dtype=expected.dtype, device=DEVICE).view(
            expected.shape
        )
        actual, wanted = (
            torch.autograd.grad(value, sample.args, weights, create_graph=True)
            for value in (result, expected)
        )
        assert_all_close(actual, wanted)
        curved = [[g.sin().sum() for g in gradients if g.requires_grad] for gradients in (actual, wanted)]
        if curved[1]:
            second = [torch.autograd.grad(scalars, sample.args, materialize_grads=True) for scalars in curved]
            assert_all_close(*second, HIGHER_ORDER)


@pytest.mark.parametrize("layout", ["transposed", "slice", "flipped batch"])
def test_any_layout(case: OperatorCase, layout: str) -> None:
    """A target that is a view of something larger: only its own elements change."""
    sample = case.batched((3,))
    target = sample.args[case.overwrites]
    if layout == "transposed":
        room = target.mT.contiguous()
        view = room.mT
    elif layout == "slice":
        room = torch.full(
            (5, target.shape[-2] + 2, 2 * target.shape[-1]), 7.0, dtype=target.dtype, device=DEVICE
        )
        view = room[1:4, 1:-1, ::2]
        view.copy_(target)
    else:
        room = target.movedim(0, -1).contiguous()
        view = room.movedim(-1, 0)
    args = list(sample.args)
    args[case.overwrites] = view
    expected = select_first(case.reference(*sample.args, **sample.kwargs))
    assert select_first(case.fn(*args, **sample.kwargs, overwrite=True)) is view
    assert_all_close(view, expected)
    if layout == "slice":
        view.fill_(7.0)
        assert (room == 7.0).all()


def test_view_of_a_recorded_tensor(case: OperatorCase) -> None:
    """Overwriting a view changes its base, and gradients pass through the change."""
    sample = case.small()

    def run(f: Callable[..., Any], overwrite: bool) -> list[Tensor]:
        leaves = [arg.detach().clone().requires_grad_() for arg in sample.args]
        base = torch.stack([leaves[case.overwrites], leaves[case.overwrites]]) * 1.0
        args: list[Tensor] = list(leaves)
        if overwrite:
            args[case.overwrites] = base[1]
            f(*args, **sample.kwargs, overwrite=True)
        else:
            args[case.overwrites] = base[1].clone()
            base = torch.stack([base[0], select_first(f(*args, **sample.kwargs))])
        return [base.detach(), *torch.autograd.grad(base.sin().sum(), leaves)]

    assert_all_close(run(case.fn, True), run(case.reference, False))


def test_refuses_leaves(case: OperatorCase) -> None:
    sample = case.small(requires_grad=True)
    before = sample.args[case.overwrites].detach().clone()
    with pytest.raises(RuntimeError, match=rf"{case.name}: overwrite=True .* leaf"):
        case.fn(*sample.args, **sample.kwargs, overwrite=True)
    args = list(sample.args)
    args[case.overwrites] = args[case.overwrites].view(before.shape)
    with pytest.raises(RuntimeError, match="leaf"):
        case.fn(*args, **sample.kwargs, overwrite=True)
    assert_all_close(sample.args[case.overwrites].detach(), before, 0)
    with torch.no_grad():
        case.fn(*sample.args, **sample.kwargs, overwrite=True)


def test_version_counter_catches_misuse(case: OperatorCase) -> None:
    """If an earlier operation has saved the operand, its backward raises an error."""
    sample = case.small()
    target = sample.args[case.overwrites].clone().requires_grad_() * 1.0
    other = target.sin().sum()
    args = list(sample.args)
    args[case.overwrites] = target
    case.fn(*args, **sample.kwargs, overwrite=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_result_overwritten_later_is_noticed() -> None:
    """potrf and trsm save their result."""
    A = OPERATORS["potrf"].small(requires_grad=True).args[0]
    L = lapgrad.potrf(A * 1.0, overwrite=True)
    L.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        L.sum().backward()


def test_other_operands_need_gradients(case: OperatorCase) -> None:
    """The overwritten operand is a constant, the others are not."""
    sample = case.small()
    if len(sample.args) == 1:
        pytest.skip("one operand only")
    args = [arg.clone().requires_grad_(i != case.overwrites) for i, arg in enumerate(sample.args)]
    wanted = [arg for arg in args if arg.requires_grad]
    expected = torch.autograd.grad(case.reference(*args, **sample.kwargs).sum(), wanted)
    result = case.fn(*args, **sample.kwargs, overwrite=True)
    assert result is args[case.overwrites]
    assert_all_close(torch.autograd.grad(result.sum(), wanted), expected)


def test_inference_tensors(case: OperatorCase) -> None:
    sample = case.small()
    expected = select_first(case.reference(*sample.args, **sample.kwargs))
    with torch.inference_mode():
        args = [arg.clone() for arg in sample.args]
        result = select_first(case.fn(*args, **sample.kwargs, overwrite=True))
        assert result is args[case.overwrites]
        assert_all_close(result.clone(), expected)


def test_under_transforms(case: OperatorCase) -> None:
    sample = case.small()
    ours, theirs = (
        make_overwriting_function(case, sample),
        lambda *args: select_first(case.reference(*args, **sample.kwargs)),
    )

    def gradient(f: Callable[..., Tensor]) -> Any:
        return func.grad(lambda *args: f(*args).sin().sum(), tuple(range(len(sample.args))))(*sample.args)

    assert_all_close(gradient(ours), gradient(theirs))
    batch = case.batched((3,))
    assert_all_close(func.vmap(ours)(*batch.args), theirs(*batch.args))
    structured = (case.differentiable(f, {}) for f in (ours, theirs))
    tangents = tuple(torch.ones_like(arg) for arg in sample.args)
    assert_all_close(*[func.jvp(f, sample.args, tangents) for f in structured])


def test_with_dual_numbers(case: OperatorCase) -> None:
    sample = case.small()
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(arg, torch.ones_like(arg)) for arg in sample.args]
        expected = forward_ad.unpack_dual(select_first(case.reference(*duals, **sample.kwargs)))
        result = forward_ad.unpack_dual(make_overwriting_function(case, sample)(*duals))
        assert_all_close([result.primal, result.tangent], [expected.primal, expected.tangent])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(case: OperatorCase, backend: str) -> None:
    torch._dynamo.reset()
    sample = case.small()
    expected = select_first(case.reference(*sample.args, **sample.kwargs))
    args = [arg.clone() for arg in sample.args]
    compiled = torch.compile(
        lambda *args: select_first(case.fn(*args, **sample.kwargs, overwrite=True)),
        backend=backend,
        fullgraph=True,
    )
    assert_all_close(compiled(*args), expected)
    assert_all_close(args[case.overwrites], expected)


def test_refuses_shared_memory(case: OperatorCase) -> None:
    """An expanded tensor, whose elements share memory, cannot be overwritten."""
    sample = case.small()
    args = [arg.expand(2, *arg.shape) for arg in sample.args]
    with pytest.raises(lapgrad.ShapeError, match="share memory"):
        case.fn(*args, **sample.kwargs, overwrite=True)


@pytest.mark.parametrize("case", [c for c in OVERWRITING if len(c.operands) > 1], ids=lambda c: c.name)
def test_refuses_to_broadcast_the_target(case: OperatorCase) -> None:
    args = list(case.batched((2,)).args)
    args[case.overwrites] = args[case.overwrites][0]
    with pytest.raises(lapgrad.ShapeError, match="already have the shape of the result"):
        case.fn(*args, overwrite=True)


@pytest.mark.parametrize("name", ["trsm", "trmm"])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_operands_that_overlap(name: str, alpha: float) -> None:
    case = OPERATORS[name]
    room = case.batched((2,)).args[0].reshape(-1, case.small().args[0].shape[-1])
    n = room.shape[-1]
    for L, A in ((room[:n], room[:n]), (room[:n], room[1 : n + 1]), (room[:n], room[n:])):
        expected = case.reference(L, A, alpha=alpha)
        saved = room.clone()
        assert_all_close(case.fn(L, A, alpha=alpha, overwrite=True), expected)
        room.copy_(saved)


def test_trsm_error_leaves_the_operand_alone() -> None:
    L, A = torch.eye(3, device=DEVICE), torch.randn(3, 2, device=DEVICE)
    L[1, 1] = 0.0
    for alpha in (1.0, 2.0):
        before = A.clone()
        with pytest.raises(lapgrad.SingularMatrixError, match="diagonal entry 1"):
            lapgrad.trsm(L, A, alpha=alpha, overwrite=True)
        assert_all_close(A, before, 0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_failed_factorisation_counts_as_a_change(requires_grad: bool) -> None:
    """Failed items have become the identity, the others their factors: the version counter says so."""
    A = (
        torch.stack([4.0 * torch.eye(2, device=DEVICE), -torch.eye(2, device=DEVICE)]).requires_grad_(
            requires_grad
        )
        * 1.0
    )
    version = A._version
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match=r"A\[1\]"):
        lapgrad.potrf(A, overwrite=True)
    assert A._version > version
    assert_all_close(
        A.detach(), torch.stack([2.0 * torch.eye(2, device=DEVICE), torch.eye(2, device=DEVICE)])
    )


def test_alpha_with_gradients() -> None:
    """The operand is scaled in place before the operator overwrites it."""
    for name in ("trsm", "trmm"):
        case = OPERATORS[name]
        sample = case.small()
        leaves = [arg.clone().requires_grad_() for arg in sample.args]
        expected = torch.autograd.grad(case.reference(*leaves, alpha=-1.5).sin().sum(), leaves)
        result = case.fn(leaves[0], leaves[1] * 1.0, alpha=-1.5, overwrite=True)
        assert_all_close(torch.autograd.grad(result.sin().sum(), leaves), expected)


#: Two operands of order n that share memory, as views of a matrix of order n + 1.
OVERLAPS: dict[str, Callable[[Tensor, int], tuple[Tensor, Tensor]]] = {
    "the same object": lambda room, n: (room[:n, :n],) * 2,
    "a view": lambda room, n: (room[:n, :n], room[:n, :n].view_as(room[:n, :n])),
    "the transpose": lambda room, n: (room[:n, :n], room[:n, :n].mT),
    "shifted rows": lambda room, n: (room[:n, :n], room[1:, :n]),
    "shifted columns": lambda room, n: (room[:n, :n], room[:n, 1:]),
    "a block in the middle": lambda room, n: (room[:n, :n], room[1:, 1:]),
}


def _make_large_matrix(n: int) -> Tensor:
    """Return a positive definite matrix of order n + 1 whose triangles are well conditioned."""
    noise = torch.randn(n + 1, n + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) / n
    return (noise + noise.mT + 2.0 * torch.eye(n + 1, dtype=torch.float64)).to(DEVICE)


def _list_overlapping_pairs(case: OperatorCase) -> Iterator[tuple[int, int, str]]:
    """Yield positions of two operands and a name from ``OVERLAPS``; only general operands can be shifted."""
    for one, other in itertools.permutations(range(len(case.operands)), 2):
        for name in OVERLAPS:
            moved = name.startswith("shifted")
            if not moved or case.kinds[other] == "general":
                yield one, other, name


SEVERAL_OPERANDS = [c for c in OPERATORS.values() if c.overwrites is not None and len(c.operands) > 1]


@pytest.mark.parametrize("case", SEVERAL_OPERANDS, ids=lambda case: case.name)
@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("n", [2, 5, 40, 200])
def test_any_two_operands_may_share_memory(case: OperatorCase, n: int, recorded: bool) -> None:
    """Every pair of operands, with every overlap: result and gradient are those of separate operands."""
    for one, other, name in _list_overlapping_pairs(case):
        found = []
        for overwrite in (True, False):
            leaf = _make_large_matrix(n).requires_grad_(recorded)
            args = [_make_large_matrix(n)[:n, :n].roll(1, 0) for _ in case.operands]
            args[one], args[other] = OVERLAPS[name](leaf * 1.0, n)
            if not overwrite:
                args = [arg.clone() for arg in args]
            result = join_results(case.fn(*args, **({"overwrite": True} if overwrite else {}))).clone()
            found.append([result.detach()])
            if recorded:
                found[-1] += torch.autograd.grad(result.sin().sum(), leaf)
        try:
            assert_all_close(*found)
        except AssertionError as error:
            raise AssertionError(f"operands {one} and {other}, {name}: {error}") from None


@pytest.mark.parametrize("name", ["trsm", "trmm", "gemm"])
def test_one_operand_twice_under_transforms(name: str) -> None:
    """The same object as two operands, where addresses are not known."""
    case = OPERATORS[name]
    X = torch.stack([_make_large_matrix(4)[:4, :4], 2.0 * _make_large_matrix(4)[:4, :4]])

    def twice(X: Tensor, overwrite: bool) -> Tensor:
        Z = X * 1.0
        others = (X,) * (len(case.operands) - 2)
        second = Z if overwrite else Z.clone()
        flags = {"overwrite": True} if overwrite else {}
        return case.fn(*others, Z, second, alpha=1.5, **flags)

    for transform in (func.vmap, lambda f: func.grad(lambda X: f(X).sin().sum())):
        ours, wanted = (transform(functools.partial(twice, overwrite=flag))(X) for flag in (True, False))
        assert_all_close(ours, wanted)
    compiled = torch.compile(functools.partial(twice, overwrite=True), backend="aot_eager", fullgraph=True)
    assert_all_close(compiled(X), twice(X, False))


def test_one_covariance_for_views_of_itself() -> None:
    """mvn_nll overwrites one A that serves several Y, and the Y are views of A."""
    A = _make_large_matrix(6)[:6, :6].contiguous()
    Y = torch.stack([A, A])
    expected = lapgrad.fused.mvn_nll(A, Y)
    assert_all_close(lapgrad.fused.mvn_nll(A, A.expand(2, 6, 6), overwrite=True), expected)
