"""Gates pass on to torch exactly the calls that the Python kernels would pass on."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad._kernels import table
from lapgrad._torch import private as _torch_private
from lapgrad.accelerate import gates, kernels, registry
from lapgrad.accelerate.choices import SCOPE, Choice
from lapgrad.accelerate.routes import NAMES, ROUTES, Route
from lapgrad.accelerate.statistics import SMALL, Counts

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("overrides_removed"),
    pytest.mark.skipif(lapgrad._kernels.native.core is None, reason="gates are part of the compiled core"),
]

ROUTE = {route.operator: route for route in ROUTES}
KEYS = _torch_private.get_backend_keys("cpu")


def make_gate(route: Route, counts: Counts, records: bool = False) -> Any:
    """Return a gate that records where a call goes: "compute", "record" or "decide"."""
    by_torch = gates.TorchKernels(
        lambda *_, **__: "compute", KEYS.keyset, (lambda *_, **__: "record") if records else None, None
    )
    return gates.make_gate(
        route,
        route.operator,
        "cpu",
        registry.load_table(),
        by_torch,
        gates.PythonKernels(
            lambda *_, **__: "decide", lambda *_, **__: "take", lambda *_, **__: "take recorded"
        ),
        records,
        counts,
    )


SHAPES = [
    (n, n) if items is None else (items, n, n)
    for n in (1, 2, 16, 17, 64, 300)
    for items in (None, 1, 3, 16, 300)
    if n * n * (items or 1) < 100_000
] + [(2, 3, 4, 4), (0, 5, 5), (7, 3), (2, 3, 7), (5,)]


@pytest.mark.parametrize("operator", sorted(ROUTE))
def test_gates_decide_as_the_python_kernels_do(operator: str) -> None:
    route = ROUTE[operator]
    judge = kernels.make_judge(route, "cpu", registry.load_table())
    gate = make_gate(route, Counts())
    choice = Choice(NAMES)
    token = SCOPE.set(choice)
    try:
        for dtype in (torch.float32, torch.float64, torch.complex64):
            for shape in SHAPES:
                for columns in (1, 30):
                    A = torch.empty(shape, dtype=dtype)
                    others: list[Any] = []
                    if operator == "_linalg_solve_ex" or route.tensors == 2:
                        others = [torch.empty((*shape[:-1], columns), dtype=dtype)]
                    arguments = (*others, A, False) if route.matrix == 1 else (A, *others)
                    options = {"upper": False} if operator == "linalg_solve_triangular" else {}
                    reason = judge(choice, False, arguments, options)
                    went = gate(*arguments, **options)
                    # Batches that lapgrad may have to take are always decided in Python.
                    is_left_to_python = (
                        route.safe_order is not None and A.dim() > 2 and min(A.shape[-2:]) > route.safe_order
                    )
                    if went == "compute":
                        assert reason == SMALL, (shape, dtype)
                    elif went == "take":
                        assert reason in (None, "arguments"), (shape, dtype)
                    else:
                        assert is_left_to_python or A.dim() < 2 or not A.numel() or dtype.is_complex
    finally:
        SCOPE.reset(token)


def test_choices_are_read_at_each_call() -> None:
    gate = make_gate(ROUTE["linalg_cholesky_ex"], Counts())
    small, large = torch.eye(4), torch.eye(300)
    for choice, expected in (
        (Choice(NAMES), ["compute", "take"]),
        (Choice(NAMES, always=True), ["take", "take"]),
        (Choice(frozenset({"qr"})), ["compute", "compute"]),
        (Choice(frozenset({"cholesky"})), ["compute", "take"]),
    ):
        token = SCOPE.set(choice)
        assert [gate(small), gate(large)] == expected
        SCOPE.reset(token)


def test_gradients_and_what_is_not_plain() -> None:
    gate = make_gate(ROUTE["_linalg_svd"], Counts(), records=True)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutogradCPU
    )
    A = torch.eye(4)
    leaf = torch.eye(4, requires_grad=True)

    class Tagged(Tensor):
        pass

    token = SCOPE.set(Choice(NAMES))
    try:
        assert gate(keys, A) == "compute"
        assert gate(keys, leaf) == "record"
        assert gate(keys, torch.eye(300, requires_grad=True)) == "take recorded"
        assert gate(keys, torch.eye(300)) == "take"
        assert gate(keys, torch.nn.Parameter(A)) == "record"
        with torch.no_grad():
            assert gate(keys, leaf) == "compute"
        assert gate(keys, A.as_subclass(Tagged)) == "decide"
        assert gate(keys | torch._C.DispatchKeySet(torch._C.DispatchKey.Python), A) == "decide"
        with torch.autograd.forward_ad.dual_level():
            assert gate(keys, A) == "decide"
        assert gate(keys, [[1.0]]) == "decide"
        assert gate(keys) == "decide"
    finally:
        SCOPE.reset(token)


def test_errors_of_torch_pass_through() -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    route = ROUTE["linalg_cholesky_ex"]
    gate = gates.make_gate(
        route,
        route.operator,
        "cpu",
        registry.load_table(),
        gates.TorchKernels(fail, None),
        gates.PythonKernels(fail),
        False,
        Counts(),
    )
    for A in (torch.eye(4), torch.eye(300)):
        with pytest.raises(ZeroDivisionError):
            gate(A)


def test_counts() -> None:
    counts = Counts()
    gate = make_gate(ROUTE["linalg_cholesky_ex"], counts)
    token = SCOPE.set(Choice(NAMES))
    for _ in range(3):
        gate(torch.eye(4))
    gate(torch.zeros(2, 5, 5, dtype=torch.float64))
    gate(torch.eye(300))
    for n in range(2000):
        gate(torch.zeros(n % 40 + 2, n // 40 + 1, 2, 2))
    SCOPE.reset(token)
    found = dict(counts.items())
    assert found["linalg_cholesky_ex", SMALL, "cpu", torch.float32, (4, 4)] == 3
    assert found["linalg_cholesky_ex", SMALL, "cpu", torch.float64, (2, 5, 5)] == 1
    assert len(found) <= 1002
    counts.clear()
    assert not counts.items()


def test_counts_are_read_while_garbage_collection_calls_gates() -> None:
    """Finalizers of garbage run whenever Python makes an object, also while the table is copied to Python."""
    counts = Counts()
    gate = make_gate(ROUTE["linalg_cholesky_ex"], counts)
    first_shapes = list(itertools.product(range(1, 17), range(1, 17)))
    new_shapes = iter([(items, *shape) for items in (1, 2) for shape in first_shapes])

    class Caller:
        """Garbage that adds shapes to the table, until its entries move, and leaves garbage like itself."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            for shape in itertools.islice(new_shapes, 2):
                gate(torch.zeros(shape))
                self.itself = Caller()

    thresholds = gc.get_threshold()
    token = SCOPE.set(Choice(NAMES))
    try:
        for shape in first_shapes:
            gate(torch.zeros(shape))
        Caller()
        gc.set_threshold(1)
        found = counts.items()
    finally:
        gc.set_threshold(*thresholds)
        SCOPE.reset(token)
    assert next(new_shapes, (0, 0, 0)) != (1, 1, 1)  # it has run
    assert sorted((shape, calls) for (*_, shape), calls in found if len(shape) == 2) == [
        (shape, 1) for shape in first_shapes
    ]


@pytest.mark.parametrize("function", ["eigh", "svd", "inv_ex"])
def test_recorded_calls_that_are_passed_on_are_those_of_torch(function: str) -> None:
    A = torch.randn(4, 4, dtype=torch.float64)
    A = (A @ A.mT + torch.eye(4, dtype=torch.float64)).requires_grad_()
    call = getattr(torch.linalg, function)
    results = []
    for accelerated in (False, True):
        with (
            lapgrad.accelerate(only={"cholesky", "eigh", "svd"}) if accelerated else lapgrad.accelerate.off()
        ):
            found = call(A)
        found = found if isinstance(found, tuple) else (found,)
        differentiable = [x for x in found if x.requires_grad]
        gradient = torch.autograd.grad(differentiable, A, [torch.ones_like(x) for x in differentiable])
        nodes = [type(x.grad_fn).__name__ for x in differentiable]
        results.append((found, gradient, nodes, [x.stride() for x in found]))
    assert results[0][2:] == results[1][2:]
    for of_torch, passed_on in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
        assert torch.equal(of_torch, passed_on)
    assert lapgrad.accelerate.stats().taken == 0


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_recorded_calls_for_small_matrices_are_taken() -> None:
    """torch's own gradient calls solve_triangular, and each such call would have to pass a gate."""
    A = torch.randn(4, 4, dtype=torch.float64)
    A = (A @ A.mT + torch.eye(4, dtype=torch.float64)).requires_grad_()
    indefinite = (A.detach() - 10 * torch.eye(4, dtype=torch.float64)).requires_grad_()
    of_torch, factor_by_torch = torch.linalg.cholesky_ex(indefinite), torch.linalg.cholesky(A, upper=True)
    with lapgrad.accelerate():
        failed, factor = torch.linalg.cholesky_ex(indefinite), torch.linalg.cholesky(A, upper=True)
        assert lapgrad.accelerate.stats().passed_on == 0
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            torch.linalg.cholesky(indefinite)
        gradient = torch.autograd.grad(factor, A, torch.ones_like(A))
        assert lapgrad.accelerate.stats().passed_on == 0
    assert torch.equal(of_torch.L, failed.L)
    assert torch.equal(of_torch.info, failed.info)
    assert factor.stride() == factor_by_torch.stride()
    torch.testing.assert_close(factor, factor_by_torch)
    torch.testing.assert_close(gradient, torch.autograd.grad(factor_by_torch, A, torch.ones_like(A)))


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_qr_in_other_modes_is_taken_where_it_is_worth_a_call_of_python() -> None:
    small, large = torch.randn(8, 8, dtype=torch.float64), torch.randn(40, 8, 8, dtype=torch.float64)
    with lapgrad.accelerate():
        for A, taken in ((small, False), (large, True)):
            for arguments in ((A, "r"), (A, "complete")):
                lapgrad.accelerate.stats(reset=True)
                torch.linalg.qr(*arguments)
                assert [entry.taken for entry in lapgrad.accelerate.stats()] == [taken], arguments[1]
        lapgrad.accelerate.stats(reset=True)
        torch.linalg.qr(small)
        assert lapgrad.accelerate.stats().taken == 1
        with lapgrad.accelerate(always=True):
            torch.linalg.qr(small, "r")
        assert lapgrad.accelerate.stats().taken == 2


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
@pytest.mark.parametrize("columns", [1, 3, 6])
def test_batches_of_narrow_solves(columns: int) -> None:
    """Torch solves with up to four columns, lapgrad with more; of recorded solves lapgrad has all."""
    L = torch.randn(20, 50, 50, dtype=torch.float64).tril() + 20 * torch.eye(50, dtype=torch.float64)
    B = torch.randn(20, 50, columns, dtype=torch.float64)
    by_torch = torch.linalg.solve_triangular(L, B, upper=False)
    with lapgrad.accelerate():
        lapgrad.accelerate.stats(reset=True)
        X = torch.linalg.solve_triangular(L, B, upper=False)
        assert lapgrad.accelerate.stats().taken == (columns > registry.NARROW)
        recorded = torch.linalg.solve_triangular(L.requires_grad_(), B, upper=False)
        assert lapgrad.accelerate.stats().taken == 1 + (columns > registry.NARROW)
    assert X.stride() == recorded.stride() == by_torch.stride()
    torch.testing.assert_close(X, by_torch)
    torch.testing.assert_close(recorded.detach(), by_torch)


def test_modes_and_transforms_see_torchs_operators() -> None:
    """A gate must not skip modes and transforms between the Autograd key and the kernel."""
    seen: list[str] = []

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4).clone()
    with lapgrad.accelerate():
        with Recording():
            torch.linalg.cholesky_ex(A[0])
        mapped = torch.func.vmap(lambda A: torch.linalg.cholesky_ex(A).L)(A)
        _, tangent = torch.func.jvp(lambda A: torch.linalg.cholesky_ex(A).L, (A[0],), (A[0],))
        negative = torch.linalg.cholesky_ex(torch._neg_view(-A[0])).L
    assert "aten.linalg_cholesky_ex.default" in seen
    torch.testing.assert_close(mapped, A)
    torch.testing.assert_close(tangent, 0.5 * A[0])
    torch.testing.assert_close(negative, A[0])


def test_out_of_small_matrices() -> None:
    A = torch.eye(4, dtype=torch.float64)
    with lapgrad.accelerate():
        L, info = torch.empty_like(A), torch.empty((), dtype=torch.int32)
        version = L._version
        torch.linalg.cholesky_ex(A, out=(L, info))
        assert torch.equal(L, A)
        assert L._version > version
        with pytest.raises(RuntimeError, match="out="):
            torch.linalg.cholesky_ex(A.clone().requires_grad_(), out=(L, info))


@pytest.mark.parametrize("function", ["cholesky", "eigh", "qr", "inv", "svd"])
def test_errors_of_hooks_pass_through(function: str) -> None:
    """A hook that raises is called once. Checkpoints end their second forward pass by such an exception."""
    A = torch.randn(4, 4, dtype=torch.float64)
    A = (A @ A.mT + torch.eye(4, dtype=torch.float64)).requires_grad_()
    calls = []

    def raise_error(tensor: Tensor) -> None:
        calls.append(tensor)
        raise ZeroDivisionError

    def compute(A: Tensor) -> Tensor:
        found = getattr(torch.linalg, function)(A)
        return found if isinstance(found, Tensor) else found[1]

    results = []
    for scope in (lapgrad.accelerate.off(), lapgrad.accelerate(only={"solve"}), lapgrad.accelerate()):
        with scope:
            calls.clear()
            with (
                pytest.raises(ZeroDivisionError),
                torch.autograd.graph.saved_tensors_hooks(raise_error, lambda packed: packed),
            ):
                compute(A)
            assert len(calls) == 1
            result = torch.utils.checkpoint.checkpoint(compute, A, use_reentrant=False)
            results.append(torch.autograd.grad(result.sum(), A)[0])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_batches_with_one_column_that_do_not_fit_lanes_are_left_to_torch() -> None:
    """There the core would take twice as long as torch's BLAS."""
    take_shortcut = table.make_shortcut("solve_triangular_by_columns")

    def is_served(dtype: torch.dtype, items: int, n: int, columns: int) -> bool:
        L = torch.eye(n, dtype=dtype).repeat(items, 1, 1)
        return take_shortcut(L, torch.ones(items, n, columns, dtype=dtype), False, True) is not None

    lapgrad.trsm(torch.eye(2), torch.eye(2))  # fills the table of kernels
    assert is_served(torch.float64, 9, 24, 1)
    assert not is_served(torch.float64, 9, 25, 1)
    assert is_served(torch.float64, 9, 25, 2)
    assert not is_served(torch.float64, 9, 33, 2)
    assert is_served(torch.float64, 9, 33, 3)
    assert is_served(torch.float64, 1, 33, 1)
    assert is_served(torch.float32, 9, 32, 1)
