"""Device shortcuts, run on CPU tensors: operators return, record and raise the same as without them.

The core is told that CPU tensors are on a device. Kernels are emulated, and cuBLAS is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import emulated
import pytest
import stand_ins
import torch
from samples import join_results
from tolerances import assert_all_close
from torch import Tensor, func
from torch.autograd import forward_ad

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.shortcuts.planned import run_planned
from lapgrad._kernels.cuda.shortcuts.table import SHORTCUTS, Shortcut
from lapgrad._torch.precision import keeps_products
from lapgrad.ops import inverse as _inverse
from lapgrad.ops import potrf as _potrf
from lapgrad.ops import potri as _potri
from lapgrad.ops import sumlogdiag as _sumlogdiag
from lapgrad.ops import syrk as _syrk
from lapgrad.ops import trsm as _trsm

#: DLPack's number of the CPU, and the attribute of its tensors; no device at all.
_CPU, _NOTHING = (1, "is_cpu"), (-1, None)

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of the driver"),
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
]

if not _cpu.is_available() or "gemm2_shortcut" not in _kernels._CPU.fill():
    pytest.skip("needs the compiled core, and a torch that can be read from C", allow_module_level=True)

core: Any = _cpu.core


def general(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    A = general(*shape)
    return A @ A.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)


def lower(*shape: int) -> Tensor:
    return torch.linalg.cholesky(positive(*shape))


Operands = Callable[..., tuple[Tensor, ...]]

#: name -> (the operator as it is called, makes operands from a batch and an order, flags).
CASES: dict[str, tuple[Callable[..., Any], Operands, list[dict[str, Any]]]] = {
    "gemm": (
        lapgrad.gemm,
        lambda *s: (general(*s), general(*s), general(*s)),
        [{}, {"transpose_a": True, "beta": 0.0}, {"transpose_b": True, "alpha": 2.0, "beta": -0.5}],
    ),
    "gemm2": (
        lapgrad.gemm2,
        lambda *s: (general(*s), general(*s)),
        [{}, {"transpose_a": True}, {"transpose_b": True, "alpha": -0.5}],
    ),
    "gemmt": (
        lapgrad.gemmt,
        lambda *s: (general(*s), general(*s)),
        [{}, {"lower": False}, {"transpose_a": True}, {"transpose_b": True, "alpha": -0.5}],
    ),
    "syrk": (lapgrad.syrk, lambda *s: (general(*s[:-1], s[-1] + 1),), [{}, {"transpose": True}]),
    "syrk_vjp": (
        lambda A, gB: _syrk.operator_vjp.call(A, gB, False),
        lambda *s: (general(*s), general(*s)),
        [{}],
    ),
    "trmm": (
        lapgrad.trmm,
        lambda *s: (general(*s), general(*s)),
        [{}, {"transpose": True}, {"rightside": True, "lower": False}],
    ),
    "trsm": (
        lapgrad.trsm,
        lambda *s: (lower(*s), general(*s)),
        [{}, {"transpose": True}, {"rightside": True}],
    ),
    "trsm_again": (
        lambda L, A, **k: _trsm._solve_again(L, A, True, k.get("transpose", False), False),
        lambda *s: (lower(*s), general(*s)),
        [{}, {"transpose": True}],
    ),
    "makediag": (lapgrad.makediag, lambda *s: (general(*s[:-1]),), [{}]),
    "extractdiag": (lapgrad.extractdiag, lambda *s: (general(*s),), [{}]),
    "maketrian": (
        lapgrad.maketrian,
        lambda *s: (general(*s[:-2], s[-1] * (s[-1] + 1) // 2),),
        [{}, {"lower": False}],
    ),
    "extracttrian": (lapgrad.extracttrian, lambda *s: (general(*s),), [{}, {"lower": False}]),
    "sumlogdiag": (lapgrad.sumlogdiag, lambda *s: (lower(*s),), [{}]),
    "sumlogdiag_vjp": (
        _sumlogdiag.operator_vjp.call,
        lambda *s: (lower(*s), general(*s[:-2])),
        [{}],
    ),
    "copyltu": (lapgrad.copyltu, lambda *s: (general(*s),), [{}, {"lower": False}]),
    "potrf": (lapgrad.potrf, lambda *s: (positive(*s),), [{}, {"lower": False}]),
    "potrf_ex": (lambda A, **k: lapgrad.potrf_ex(A, **k)[0], lambda *s: (positive(*s),), [{}]),
    "potrf_vjp": (
        lambda L, gL: _potrf.operator_vjp.call(L, gL, None, True),
        lambda *s: (lower(*s), general(*s)),
        [{}],
    ),
    "potri": (lapgrad.potri, lambda *s: (lower(*s),), [{}]),
    "potri_vjp": (
        lambda L, gB: _potri.operator_vjp.call(L, gB, True),
        lambda *s: (lower(*s), general(*s)),
        [{}],
    ),
    "gesv": (lapgrad.gesv, lambda *s: (positive(*s), general(*s)), [{}, {"transpose": True}]),
    "inverse": (lapgrad.inverse, lambda *s: (positive(*s),), [{}]),
    "inverse_vjp": (_inverse.operator_vjp.call, lambda *s: (positive(*s), general(*s)), [{}]),
}


class Taken:
    """The shortcuts that returned something, by name and kind, in the order of the calls."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def find(self, name: str) -> Shortcut | None:
        shortcut = SHORTCUTS.get(name)
        return shortcut and shortcut._replace(
            plain=self._watch(name, "plain", shortcut.plain),
            recorded=self._watch(name, "recorded", shortcut.recorded),
            planned=self._watch(name, "planned", shortcut.planned),
            direct=shortcut.direct and self._watch_both(name, *shortcut.direct),
        )

    def _watch_both(
        self, name: str, one: Callable[..., Tensor], several: Callable[..., Tensor]
    ) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        watched = self._watch(name, "direct", one), self._watch(name, "direct", several)
        assert watched[0] is not None
        assert watched[1] is not None
        return watched[0], watched[1]

    def _watch(self, name: str, kind: str, shortcut: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if shortcut is None:
            return None

        def watched(*arguments: Any) -> Any:
            result = shortcut(*arguments)
            if result is not None:
                self.names.append((name, kind))
            return result

        return watched


def set_device_shortcuts(find: Callable[[str], Shortcut | None], device: tuple[int, str | None]) -> None:
    """Make tensors of a device take shortcuts."""
    core.set_device_shortcuts(
        {
            "device": device[0],
            "is_there": device[1],
            "find_shortcut": find,
            "keeps_precision": keeps_products,
            "precision": None,
            "run_planned": run_planned,
            "get_device": lambda: 0,
            "get_stream": lambda device: 0,
        }
    )


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    """Make CPU tensors take device shortcuts, and count them."""
    counted = Taken()
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    with stand_ins.replace_gpu():
        set_device_shortcuts(counted.find, _CPU)
        yield counted
    set_device_shortcuts(counted.find, _NOTHING)


def call_without_shortcuts(function: Callable[..., Any], *arguments: Any, **flags: Any) -> Any:
    """Call a function of CPU tensors without device shortcuts."""
    set_device_shortcuts(lambda name: None, _NOTHING)
    return function(*arguments, **flags)


def restore_shortcuts(counted: Taken) -> None:
    set_device_shortcuts(counted.find, _CPU)


def test_every_shortcut_is_tested() -> None:
    assert set(CASES) == set(SHORTCUTS)


SHAPES = ((1, 1), (4, 4), (3, 1, 1), (3, 5, 5), (2, 3, 4, 4))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, taken: Taken) -> None:
    function, make, all_flags = CASES[name]
    for shape in SHAPES:
        for flags in all_flags:
            operands = make(*shape)
            before = [operand.clone() for operand in operands]
            result = function(*operands, **flags)
            assert result.is_contiguous()
            assert not result._is_view()
            expected = call_without_shortcuts(function, *operands, **flags)
            restore_shortcuts(taken)
            assert_all_close(result, expected)
            assert all(map(torch.equal, operands, before))
    kinds = {kind for taken_name, kind in taken.names if taken_name == name}
    expected_kinds = {"planned"} if SHORTCUTS[name].planned else {"plain"}
    assert kinds == expected_kinds | ({"direct"} if SHORTCUTS[name].direct else set())


@pytest.mark.parametrize("name", [name for name in CASES if SHORTCUTS[name].planned])
def test_planned_shortcuts_are_repeated(name: str, taken: Taken) -> None:
    """The core launches for other operands of the same layout, and asks Python for other layouts only."""
    function, make, _ = CASES[name]
    for change in (lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 2 else x, lambda x: x[1:]):
        drawn = [[change(operand) for operand in make(3, 5, 5)] for _ in range(3)]
        expected = [call_without_shortcuts(function, *operands) for operands in drawn]
        restore_shortcuts(taken)
        taken.names.clear()
        for operands, wanted in zip(drawn, expected, strict=True):
            result = function(*operands)
            assert not result._is_view()
            assert_all_close(result, wanted)
        assert taken.names == [(name, "planned")]


def test_operands_that_share_memory_are_not_repeated(taken: Taken) -> None:
    """Their plan does not say to which of them an address belongs."""
    L, A = general(3, 4, 4), general(3, 4, 4)
    assert_all_close(lapgrad.trmm(L, L), L.tril() @ L)
    assert_all_close(lapgrad.trmm(L, A), L.tril() @ A)
    assert_all_close(lapgrad.trmm(A, L), A.tril() @ L)
    assert taken.names == [("trmm", "planned")] * 2


def test_layouts_without_a_plan(taken: Taken) -> None:
    """Leading dimensions without a common stride: a copy is made, or the operator computes."""
    A = general(3, 2, 4, 4).transpose(0, 1)
    assert torch.equal(lapgrad.extractdiag(A), A.diagonal(dim1=-2, dim2=-1))
    assert torch.equal(lapgrad.extracttrian(A), lapgrad.extracttrian(A.contiguous()))
    assert_all_close(lapgrad.syrk(A), A @ A.mT)
    assert ("extractdiag", "planned") not in taken.names


def differentiate_twice(function: Callable[..., Any], operands: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the result, its gradients, and those of a function of the gradients."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    result = function(*leaves)
    weight = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view(result.shape)
    gradients = torch.autograd.grad(result, leaves, weight * result.detach(), create_graph=True)
    total = sum(((gradient - 0.1).square().sum() for gradient in gradients), torch.zeros(()))
    second = (
        torch.autograd.grad(total, leaves, materialize_grads=True)
        if total.requires_grad
        else [torch.zeros_like(leaf) for leaf in leaves]
    )
    return [result.detach(), *[gradient.detach() for gradient in gradients], *second]


@pytest.fixture
def without_small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the kernels for small triangular products, so that they are recorded as larger ones are."""
    for limit in ("FEW_TILES", "TRIANGULAR_ALONE", "TRIANGULAR_SMALL"):
        monkeypatch.setattr(_thresholds, limit, 0)


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith(("_vjp", "_again"))])
def test_gradients(name: str, taken: Taken, without_small_kernels: None) -> None:
    """First and second derivatives, whoever records them."""
    function, make, all_flags = CASES[name]
    for shape in ((4, 4), (3, 5, 5)):
        for flags in all_flags:
            operands = make(*shape)

            def call(*operands: Tensor, flags: dict[str, Any] = flags) -> Any:
                return function(*operands, **flags)

            found = differentiate_twice(call, operands)
            expected = call_without_shortcuts(differentiate_twice, call, operands)
            restore_shortcuts(taken)
            assert_all_close(found, expected, 50)
    assert ((name, "recorded") in taken.names) == (SHORTCUTS[name].recorded is not None)
    assert ((name, "direct") in taken.names) == (SHORTCUTS[name].direct is not None)


def test_small_triangular_products_are_recorded_by_the_operator(taken: Taken) -> None:
    """Their gradient is two launches, which the core repeats."""
    L, A = general(3, 4, 4), general(3, 4, 4)

    def multiply(L: Tensor, A: Tensor) -> Tensor:
        return lapgrad.trmm(L, A)

    found = differentiate_twice(multiply, (L, A))
    assert ("trmm", "recorded") not in taken.names
    assert_all_close(found, call_without_shortcuts(differentiate_twice, multiply, (L, A)), 50)


@pytest.mark.parametrize("name", [name for name in CASES if SHORTCUTS[name].recorded])
def test_torch_records_what_it_may(name: str, taken: Taken, without_small_kernels: None) -> None:
    """The autograd graph has nodes of torch only, which C++ runs."""
    function, make, _ = CASES[name]
    result = function(*[operand.requires_grad_() for operand in make(3, 4, 4)])
    nodes = [result.grad_fn]
    while nodes:
        node = nodes.pop()
        assert type(node).__module__ != "torch.autograd.function", node
        nodes += [follower for follower, _ in node.next_functions if follower is not None]


class Labelled(Tensor):
    """A subclass that only follows operators around."""


@pytest.mark.parametrize("name", CASES)
def test_everything_else_goes_through_python(name: str, taken: Taken) -> None:
    function, make, _ = CASES[name]
    operands = make(3, 4, 4)
    func.vmap(lambda *args: join_results(function(*args)))(*operands)
    with forward_ad.dual_level():
        function(*operands)
    if not name.endswith(("_vjp", "_again")):
        func.vjp(lambda *args: join_results(function(*args)), *operands)
        with pytest.raises(lapgrad.DTypeError):
            function(*[operand.half() for operand in operands])
    function(*[operand.as_subclass(Labelled) for operand in operands])
    assert taken.names == []


@pytest.mark.parametrize("name", [name for name in CASES if SHORTCUTS[name].multiplies])
def test_autocast_takes_the_operator(name: str, taken: Taken) -> None:
    """Products keep their precision, which torch's functions do not."""
    function, make, _ = CASES[name]
    operands = [operand.float() for operand in make(3, 4, 4)]
    plain = function(*operands)
    assert taken.names
    taken.names.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = function(*operands)
    assert taken.names == []
    assert_all_close(cast, plain)


def test_errors_are_those_of_the_operators(taken: Taken) -> None:
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.gemm2(general(3, 4), general(3, 4))
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.gemm(general(3, 4), general(4, 3), general(3, 4))
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.gemmt(general(3, 4), general(4, 5))
    with pytest.raises(lapgrad.DTypeError):
        lapgrad.gemm2(general(3, 4), general(4, 4).float())
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.extractdiag(general(3, 4))
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.maketrian(general(4))
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match="leading minor"):
        lapgrad.potrf(-torch.eye(4, dtype=torch.float64))
    with pytest.raises(lapgrad.SingularMatrixError):
        lapgrad.trsm(torch.zeros(4, 4), torch.eye(4))
    with pytest.raises(lapgrad.SingularMatrixError):
        lapgrad.inverse(torch.zeros(2, 4, 4))
    assert taken.names == []


def test_a_broadcast_is_left_to_the_operator(taken: Taken) -> None:
    A, B = general(3, 4, 4), general(4, 4)
    assert_all_close(lapgrad.gemm2(A, B), A @ B)
    assert_all_close(lapgrad.gemm2(B, A), B @ A)


def test_large_orders_are_left_to_the_operator(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a threshold the operator, which computes half of the product, is faster than torch's function."""
    A, B = general(6, 6), general(6, 6)
    for limit, function in (
        ("PRODUCT_CUT", lapgrad.gemmt),
        ("TRMM_WHOLE_UP_TO", lapgrad.trmm),
    ):
        monkeypatch.setattr(_thresholds, limit, 5)
        function(A.requires_grad_(), B)
        assert taken.names == []
    for limit in ("SYRK_VJP_TWICE", "WHOLE_PRODUCT_UP_TO"):
        monkeypatch.setattr(_thresholds, limit, 5)
        lapgrad.syrk(A)
        assert taken.names == []


def test_only_the_named_triangle_is_read(taken: Taken, without_small_kernels: None) -> None:
    """A NaN in the other triangle reaches neither result nor gradient."""
    broken = general(4, 4).tril() + torch.full((4, 4), torch.nan, dtype=torch.float64).triu(1)
    A = general(4, 4)
    for result, operand in (
        (lambda x: lapgrad.trmm(x, A), broken),
        (lapgrad.copyltu, broken),
    ):
        leaf = operand.clone().requires_grad_()
        value = result(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        assert value.isfinite().all()
        assert torch.equal(gradient, gradient.tril())
    assert {kind for _, kind in taken.names} == {"recorded"}
