"""torch.compile, torch.export, make_fx, opcheck, fake and meta tensors: every operator can be traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device import DEVICE
from samples import MAKERS, OPERATORS, OperatorCase, Sample, join_results
from tolerances import HIGHER_ORDER, assert_all_close
from torch import Tensor, func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import lapgrad

Function = Callable[..., Any]

# PyTorch looks at .grad of its own intermediate results while it traces.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.fixture(params=OPERATORS.values(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> OperatorCase:
    return request.param


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compute_value_and_gradients(f: Function, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [arg.detach().clone().requires_grad_() for arg in args]
    result = f(*leaves)
    return (result.detach(), *torch.autograd.grad(result, leaves, make_cotangent(result)))


def make_cotangent(result: Tensor) -> Tensor:
    entries = torch.linspace(-1.0, 1.0, result.numel(), dtype=result.dtype, device=DEVICE)
    return entries.view(result.shape)


def make_both_functions(case: OperatorCase, sample: Sample) -> tuple[Function, Function]:
    """Return the operator and its reference as functions of the operands, without symmetrising those."""

    def first(f: Function) -> Function:
        def result(*args: Tensor) -> Tensor:
            value = f(*args, **sample.kwargs)
            return join_results(value)

        return result

    return first(case.fn), first(case.reference)


def choose_backend(case: OperatorCase) -> str:
    """Inductor for every registered operator; a composition of them is nothing new to its code generator."""
    return "inductor" if case.operator_name is None else "aot_eager"


def test_compile(case: OperatorCase) -> None:
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    compiled = torch.compile(ours, backend=choose_backend(case), fullgraph=True)
    with torch.no_grad():
        assert_all_close(compiled(*sample.args), theirs(*sample.args))
    assert_all_close(
        compute_value_and_gradients(compiled, sample.args), compute_value_and_gradients(theirs, sample.args)
    )


def test_compile_every_flag(case: OperatorCase) -> None:
    """All flags and all kinds of broadcasting, in one graph, without inductor's lowering."""
    samples = case.samples()[::4]
    pairs = [make_both_functions(case, sample) for sample in samples]

    def call_all(functions: list[Function], operands: list[tuple[Tensor, ...]]) -> list[Tensor]:
        return [function(*args) for function, args in zip(functions, operands, strict=True)]

    compiled = torch.compile(
        lambda operands: call_all([ours for ours, _ in pairs], operands), backend="aot_eager", fullgraph=True
    )
    leaves = [tuple(arg.detach().clone().requires_grad_() for arg in sample.args) for sample in samples]
    results = compiled(leaves)
    for (_, theirs), sample, operands, result in zip(pairs, samples, leaves, results, strict=True):
        # The graph is one node of autograd: it is kept until the gradients of all samples are there.
        gradients = torch.autograd.grad(result, operands, make_cotangent(result), retain_graph=True)
        assert_all_close((result.detach(), *gradients), compute_value_and_gradients(theirs, sample.args))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace(case: OperatorCase) -> None:
    """The older tracer records the operator, not the result for the example."""
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    traced = torch.jit.trace(ours, sample.args, check_trace=False)
    others = tuple(1.25 * arg for arg in sample.args)
    assert_all_close(traced(*others), theirs(*others))


def make_operands(case: OperatorCase, n: int) -> tuple[Tensor, ...]:
    """Return operands of order n: square matrices, vectors of length n, packed triangles of order n."""
    if case.name == "makediag":
        return (torch.randn(n, dtype=torch.float64, device=DEVICE),)
    if case.name == "maketrian":
        return (torch.randn(n * (n + 1) // 2, dtype=torch.float64, device=DEVICE),)
    generator = torch.Generator().manual_seed(n)
    if case.name in ("linalg.cca", "linalg.lda"):
        rows = 12 if case.name == "linalg.lda" else 40
        return tuple(
            torch.randn(rows, n, generator=generator, dtype=torch.float64).to(DEVICE) for _ in case.operands
        )
    if case.name == "fused.kalman_nll":  # n series of 3 steps: the loop over steps is written out
        shapes = ((n, 3, 2), (1, 2, 2), (1, 2, 2), (1, 2, 2), (1, 2, 2), (2,), (2, 2))
        return tuple(MAKERS[kind](shape, generator) for kind, shape in zip(case.kinds, shapes, strict=True))
    return tuple(MAKERS[kind]((n, n), generator) for kind in case.kinds)


def test_compile_dynamic(case: OperatorCase) -> None:
    """One compilation serves all sizes."""
    ours, theirs = make_both_functions(case, case.small())
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=True)
    for n, stance in ((4, "default"), (7, "fail_on_recompile"), (5, "fail_on_recompile")):
        args = make_operands(case, n)
        with torch.compiler.set_stance(stance):
            actual = compute_value_and_gradients(compiled, args)
        assert_all_close(actual, compute_value_and_gradients(theirs, args))


@pytest.mark.parametrize("name", ["potrf", "trsm", "extracttrian"])
def test_compile_dynamic_inductor(name: str) -> None:
    case = OPERATORS[name]
    ours, theirs = make_both_functions(case, case.small())
    compiled = torch.compile(ours, fullgraph=True, dynamic=True)
    for n in (4, 7):
        args = make_operands(case, n)
        assert_all_close(
            compute_value_and_gradients(compiled, args), compute_value_and_gradients(theirs, args)
        )


@pytest.mark.parametrize(
    "name", [name for name, case in OPERATORS.items() if "alpha" in case.recipes[-1].flags]
)
def test_alpha_does_not_recompile(name: str) -> None:
    """Scale factors stay outside of the registered operators, which would be compiled anew for each value."""
    case = OPERATORS[name]
    args = make_operands(case, 4)
    compiled = torch.compile(
        lambda alpha, *args: case.fn(*args, alpha=alpha), backend="aot_eager", fullgraph=True
    )
    for alpha in (0.5, 0.75):
        compiled(alpha, *args)
    with torch.compiler.set_stance("fail_on_recompile"):
        for alpha in (-0.3, 2.5):
            assert_all_close(compiled(alpha, *args), case.reference(*args, alpha=alpha))


COMPILED_TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: func.grad(lambda *args: f(*args).sin().sum()),
    "vjp": lambda f: lambda *args: func.vjp(f, *args)[1](f(*args)),
    "jvp": lambda f: lambda *args: func.jvp(f, args, args),
    "jacrev": lambda f: func.jacrev(f),
    "jacfwd": lambda f: func.jacfwd(f),
    "hessian": lambda f: func.hessian(lambda *args: f(*args).sin().sum()),
    "vmap": lambda f: func.vmap(f),
    "vmap of grad": lambda f: func.vmap(func.grad(lambda *args: f(*args).sin().sum())),
}


#: These two contain all others: forward over reverse mode, each mapped, and a mapped gradient. A transform of
#: PyTorch does not depend on the operator inside of it, so that the others are tried on a few. Functions of
#: ``linalg`` and ``fused`` are made of operators, and so are their Hessians, which take long to trace.
#: The graphs of those few are lowered, too, through autograd and all decompositions.
COMPOSED_TRANSFORMS = ("hessian", "vmap of grad")
WITH_ALL_TRANSFORMS = ("potrf", "trsm", "gesvd", "linalg.eigh_fn")


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        (name, transform)
        for name in OPERATORS
        for transform in COMPILED_TRANSFORMS
        if name in WITH_ALL_TRANSFORMS or transform in COMPOSED_TRANSFORMS[1 if "." in name else 0 :]
    ],
)
def test_compile_of_transform(name: str, transform: str) -> None:
    case = OPERATORS[name]
    apply = COMPILED_TRANSFORMS[transform]
    sample = case.batched((2,)) if "vmap" in transform else case.small()
    ours, theirs = (case.differentiable(f, sample.kwargs) for f in (case.fn, case.reference))
    backend = "aot_eager" if name in WITH_ALL_TRANSFORMS else "eager"
    compiled = torch.compile(apply(ours), backend=backend, fullgraph=True)
    assert_all_close(compiled(*sample.args), apply(theirs)(*sample.args), HIGHER_ORDER)


def test_compiled_autograd(case: OperatorCase) -> None:
    """A backward pass is traced; the graph of a composition has nodes that were lowered for its operators."""
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)
    backend = "aot_eager" if case.operator_name is None else "eager"

    def backward() -> list[Tensor | None]:
        leaves = [arg.detach().clone().requires_grad_() for arg in sample.args]
        loss = ours(*leaves).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
            loss.backward()
        return [leaf.grad for leaf in leaves]

    leaves = [arg.detach().clone().requires_grad_() for arg in sample.args]
    expected = torch.autograd.grad(theirs(*leaves).sum(), leaves)
    assert_all_close(backward(), list(expected))


@pytest.mark.parametrize("strict", [False, True])
def test_export(case: OperatorCase, strict: bool) -> None:
    sample = case.small()
    ours, theirs = make_both_functions(case, sample)

    class Module(torch.nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return ours(*args)

    program = torch.export.export(Module(), sample.args, strict=strict)
    assert f"lapgrad.{case.registered}" in str(program.graph)
    assert_all_close(program.module()(*sample.args), theirs(*sample.args))


def test_export_with_dynamic_sizes() -> None:
    class Criterion(torch.nn.Module):
        def forward(self, A: Tensor, y: Tensor) -> Tensor:
            potrf, trsm, sumlogdiag = (OPERATORS[name].fn for name in ("potrf", "trsm", "sumlogdiag"))
            L = potrf(A)
            return trsm(L, y).square().sum() + sumlogdiag(L)

    n = torch.export.Dim("n")
    A, y = make_operands(OPERATORS["linalg.solve_psd"], 5)
    program = torch.export.export(Criterion(), (A, y), dynamic_shapes=({0: n, 1: n}, {0: n, 1: n}))
    A, y = make_operands(OPERATORS["linalg.solve_psd"], 8)
    assert_all_close(program.module()(A, y), Criterion()(A, y))


@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="older versions of torch do not export torch.func.jvp"
)
def test_export_of_any_function_of_a_matrix() -> None:
    """eigh_fn differentiates the function that it is given; the batch stays dynamic."""

    class Sine(torch.nn.Module):
        def forward(self, A: Tensor) -> Tensor:
            return lapgrad.linalg.eigh_fn(A, torch.sin)

    args = [OPERATORS["linalg.eigh_fn"].batched((size,)).args[0] for size in (3, 7)]
    dynamic = {"A": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(Sine(), (args[0],), dynamic_shapes=dynamic)
    assert_all_close(program.module()(args[1]), Sine()(args[1]))


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(case: OperatorCase, tracing_mode: str) -> None:
    sample = case.small()
    ours, theirs = (case.differentiable(f, sample.kwargs) for f in (case.fn, case.reference))

    def gradient(f: Function) -> Function:
        return lambda *args: torch.autograd.grad(f(*args).sin().sum(), args)

    leaves = tuple(arg.requires_grad_() for arg in sample.args)
    graph = make_fx(gradient(ours), tracing_mode=tracing_mode)(*leaves)
    assert f"lapgrad.{case.registered}.default" in graph.code
    assert_all_close(graph(*leaves), gradient(theirs)(*leaves))


class Recorder(TorchDispatchMode):
    """Keeps every call of a registered operator of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "lapgrad":
            self.calls.append((op, args))
        return op(*args, **(kwargs or {}))


#: The first case of each registered operator, by its name under ``torch.ops.lapgrad``.
OWNERS = {case.registered: case for case in reversed(OPERATORS.values())}


def find_owner(operator: str) -> OperatorCase | None:
    """Return the case of a registered operator, or of the one that ``..._vjp`` and its like belong to."""
    stem = operator.removeprefix("lapgrad::")
    while stem and stem not in OWNERS:
        stem = stem.rpartition("_")[0]
    return OWNERS.get(stem)


def record_calls(case: OperatorCase, sample: Sample) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the calls of registered operators, and their arguments, in a value and its gradients."""
    leaves = tuple(arg.requires_grad_() for arg in sample.args)
    with Recorder() as recorder:
        result = make_both_functions(case, sample)[0](*leaves)
        torch.autograd.grad(result.sum(), leaves)
    return recorder.calls


def test_every_operator_is_checked_by_its_owner() -> None:
    """Operators that ``test_opcheck`` leaves out in one case are checked in another."""
    met = {
        case.name: {op.name() for op, _ in record_calls(case, case.small())} for case in OPERATORS.values()
    }
    for operators in met.values():
        for operator in operators:
            owner = find_owner(operator)
            assert owner is None or operator in met[owner.name], operator


@pytest.mark.parametrize("case", OWNERS.values(), ids=lambda case: case.name)
def test_opcheck(case: OperatorCase) -> None:
    """torch.library's checks: schema, autograd registration, fake kernel, tracing with dynamic shapes."""
    for sample in (case.small(), case.batched((2,))):
        calls = record_calls(case, sample)
        assert any(op.name() == f"lapgrad::{case.registered}" for op, _ in calls)
        for op, args in calls:
            if find_owner(op.name()) not in (case, None):
                continue
            leaves = tuple(
                arg.detach().clone().requires_grad_(arg.is_floating_point())
                if isinstance(arg, Tensor)
                else arg
                for arg in args
            )
            torch.library.opcheck(op, leaves)


@pytest.mark.parametrize("how", ["fake", "meta"])
def test_shapes_without_values(case: OperatorCase, how: str) -> None:
    for sample in case.samples(dtype=torch.float32):
        expected = case.fn(*sample.args, **sample.kwargs)
        if how == "meta":
            actual = case.fn(*[arg.to("meta") for arg in sample.args], **sample.kwargs)
        else:
            with FakeTensorMode() as mode:
                actual = case.fn(*[mode.from_tensor(arg) for arg in sample.args], **sample.kwargs)
        pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
        for shadow, real in pairs:
            assert (shadow.shape, shadow.stride(), shadow.dtype) == (real.shape, real.stride(), real.dtype), (
                sample.id
            )


def test_meta_backward(case: OperatorCase) -> None:
    sample = case.small()
    leaves = [arg.to("meta").requires_grad_() for arg in sample.args]
    result = make_both_functions(case, sample)[0](*leaves)
    gradients = torch.autograd.grad(result.sum(), leaves)
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]
