"""Shortcuts of the core return what the Python code returns, or None for calls out of the ordinary."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import join_results
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cuda.shortcuts.table import SHORTCUTS
from lapgrad._torch.private import find_names_for_shortcuts
from lapgrad.ops import potrf as _potrf

pytestmark = pytest.mark.cpu

NAMES = sorted(name for name in _kernels._CPU.fill() if name.endswith("_shortcut"))

if not _cpu.is_available() or not NAMES:
    pytest.skip("needs the compiled core, and a torch that can be read from C", allow_module_level=True)


def general(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    A = general(*shape, dtype=dtype)
    return A @ A.mT / shape[-1] + torch.eye(shape[-1], dtype=dtype)


def lower(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linalg.cholesky(positive(*shape, dtype=dtype))


def discriminate(X: Tensor, k: int | None = None) -> Any:
    return lapgrad.linalg.lda(X, labels=torch.arange(X.shape[-2]) % 3, k=k)


def pull_back_factor(L: Tensor, gL: Tensor, lower: bool = True) -> Any:
    return _potrf.operator_vjp.call(L, gL, None, lower)


#: name -> (the public function, makes operands of a batch and an order, flags).
CASES: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Tensor, ...]], list[dict[str, Any]]]] = {
    "trsm": (
        lapgrad.trsm,
        lambda *s, **k: (lower(*s, **k), general(*s[:-1], s[-1], **k)),
        [{}, {"transpose": True}, {"rightside": True}, {"transpose": True, "rightside": True}],
    ),
    "trmm": (
        lapgrad.trmm,
        lambda *s, **k: (general(*s, **k), general(*s, **k)),
        [{}, {"transpose": True}, {"rightside": True, "lower": False}],
    ),
    "syrk": (lapgrad.syrk, lambda *s, **k: (general(*s[:-1], 2 * s[-1], **k),), [{}, {"transpose": True}]),
    "gemmt": (
        lapgrad.gemmt,
        lambda *s, **k: (general(*s, **k), general(*s, **k)),
        [{}, {"lower": False}, {"transpose_a": True}, {"transpose_b": True, "alpha": -0.5}],
    ),
    "gemm2": (
        lapgrad.gemm2,
        lambda *s, **k: (general(*s, **k), general(*s, **k)),
        [{}, {"transpose_a": True}, {"transpose_b": True, "alpha": 2.0}],
    ),
    "gemm": (
        lapgrad.gemm,
        lambda *s, **k: (general(*s, **k), general(*s, **k), general(*s, **k)),
        [{}, {"transpose_a": True, "beta": 0.0}, {"transpose_b": True, "alpha": 2.0, "beta": -0.5}],
    ),
    "potrf_ex": (lapgrad.potrf_ex, lambda *s, **k: (positive(*s, **k),), [{}, {"lower": False}]),
    "extracttrian": (lapgrad.extracttrian, lambda *s, **k: (general(*s, **k),), [{}, {"lower": False}]),
    "maketrian": (
        lapgrad.maketrian,
        lambda *s, **k: (general(*s[:-2], s[-1] * (s[-1] + 1) // 2, **k),),
        [{}, {"lower": False}],
    ),
    "potrf": (lapgrad.potrf, lambda *s, **k: (positive(*s, **k),), [{}, {"lower": False}]),
    "potrf_vjp": (
        pull_back_factor,
        lambda *s, **k: (lower(*s, **k), general(*s, **k)),
        [{}, {"lower": False}],
    ),
    "syevd": (lapgrad.syevd, lambda *s, **k: (positive(*s, **k),), [{}, {"lower": False}]),
    "gesvd": (lapgrad.gesvd, lambda *s, **k: (general(*s[:-1], s[-1] + 1, **k),), [{}]),
    "gelqf": (lapgrad.gelqf, lambda *s, **k: (general(*s[:-1], s[-1] + 2, **k),), [{}, {"positive": True}]),
    "cho_solve": (
        lapgrad.linalg.cho_solve,
        lambda *s, **k: (lower(*s, **k), general(*s, **k)),
        [{}, {"lower": False}],
    ),
    "potri": (lapgrad.potri, lambda *s, **k: (lower(*s, **k),), [{}]),
    "inverse": (lapgrad.inverse, lambda *s, **k: (positive(*s, **k),), [{}]),
    "gesv": (
        lapgrad.gesv,
        lambda *s, **k: (positive(*s, **k), general(*s, **k)),
        [{}, {"transpose": True}],
    ),
    "sumlogdiag": (lapgrad.sumlogdiag, lambda *s, **k: (lower(*s, **k),), [{}]),
    "makediag": (lapgrad.makediag, lambda *s, **k: (general(*s[:-1], **k),), [{}]),
    "extractdiag": (lapgrad.extractdiag, lambda *s, **k: (general(*s, **k),), [{}]),
    "copyltu": (lapgrad.copyltu, lambda *s, **k: (general(*s, **k),), [{}, {"lower": False}]),
    "eigh_fn": (
        lambda A, f="sqrt", lower=True: lapgrad.linalg.eigh_fn(A, f, lower=lower),
        lambda *s, **k: (positive(*s, **k),),
        [{"f": f} for f in ("sqrt", "rsqrt", "inv", "exp", "log")] + [{"f": "sqrt", "lower": False}],
    ),
    "pca": (
        lapgrad.linalg.pca,
        lambda *s, **k: (general(*s[:-2], s[-1] + 3, s[-1], **k),),
        [{}, {"k": 1}],
    ),
    "cca": (
        lapgrad.linalg.cca,
        lambda *s, **k: tuple(general(*s[:-2], 3 * s[-1] + 3, s[-1], **k) for _ in range(2)),
        [{}, {"k": 1, "regularisation": 0.1}],
    ),
    "lda": (discriminate, lambda *s, **k: (general(*s[:-2], 3 * s[-1] + 6, s[-1], **k),), [{}, {"k": 1}]),
    "lstsq": (
        lapgrad.linalg.lstsq,
        lambda *s, **k: (positive(*s, **k), general(*s, **k)),
        [{}, {"rcond": 1e-4}],
    ),
}
#: Shortcuts that round in another order than torch, which computes when the call goes through Python.
ROUNDED = {"gemm", "gemm2"}
#: Functions that are made of other operators in Python; these may take shortcuts of their own.
COMPOSED = {"eigh_fn", "pca", "cca", "lda", "lstsq"}


def count_served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of shortcuts that returned something, in the order of the calls."""
    served: list[str] = []

    def watch(name: str, shortcut: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            result = shortcut(*arguments)
            if result is not None:
                served.append(name.removesuffix("_shortcut"))
            return result

        return watched

    for name in NAMES:
        monkeypatch.setitem(_kernels._CPU, name, watch(name, _kernels._CPU[name]))
    return served


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return count_served(monkeypatch)


def compute_without_shortcuts(function: Callable[..., Any], *operands: Tensor, **flags: Any) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.delitem(_kernels._CPU, name)
        return join_results(function(*operands, **flags))


#: Shortcuts for CUDA tensors only (tests/cuda/test_device_shortcuts.py), and how many arguments they take.
ON_CUDA_ONLY = {
    "trsm_again": 5,
}

#: Shortcuts of gradients (test_gradient_shortcuts.py).
OF_GRADIENTS = {
    "trmm_vjp", "trsm_vjp", "gemmt_vjp", "gemm2_vjp", "syrk_vjp", "potri_vjp", "inverse_vjp",
    "inverse_psd_vjp", "det_vjp", "slogdet_vjp", "cho_solve_vjp", "solve_psd_vjp",
    "sumlogdiag_vjp", "eigh_fn_vjp", "syevd_vjp", "centre_vjp", "copyltu_vjp",
}  # fmt: skip


#: Shortcuts in torch's words: tests/core/test_shortcuts_by_columns.py.
BY_COLUMNS = {
    "cholesky_by_columns",
    "solve_triangular_by_columns",
    "solve_triangular_vjp",
    "status_of_success",
    # tests/accelerate/test_recorded_qr.py and test_recorded_lu.py
    "qr_by_columns",
    "qr_vjp",
    "lu_factor_vjp",
}


def test_every_shortcut_is_tested() -> None:
    tested = CASES.keys() | ON_CUDA_ONLY.keys() | OF_GRADIENTS | BY_COLUMNS
    assert {name.removesuffix("_shortcut") for name in NAMES} == tested
    assert ON_CUDA_ONLY.keys() <= SHORTCUTS.keys()


@pytest.mark.parametrize("name", ON_CUDA_ONLY)
def test_shortcuts_of_cuda_tensors_leave_others_alone(name: str) -> None:
    count = ON_CUDA_ONLY[name]
    for operand in (general(3, 3), None, 1.0):
        assert _kernels._CPU[f"{name}_shortcut"](*[operand] * count) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (40, 40), (3, 5, 5), (1, 4, 4)])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_python_code(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, served: list[str]
) -> None:
    function, make, all_flags = CASES[name]
    for flags in all_flags:
        operands = make(*shape, dtype=dtype)
        before = [operand.clone() for operand in operands]
        result = function(*operands, **flags)
        for one in result if isinstance(result, tuple) else (result,):
            assert one.is_contiguous()
            assert not one._is_view()
        expected = compute_without_shortcuts(function, *operands, **flags)
        if name in COMPOSED:  # eigenvectors of close eigenvalues turn by much more than rounding errors
            tolerance = 1e-9 if dtype is torch.float64 else 1e-2
            assert (join_results(result) - expected).abs().max() <= tolerance * expected.abs().max()
        elif name in ROUNDED:
            torch.testing.assert_close(join_results(result), expected)
        else:
            assert torch.equal(join_results(result), expected)
        assert all(map(torch.equal, operands, before))
    assert served == [name] * len(all_flags)


@pytest.fixture
def without_functions_of_torch() -> Iterator[None]:
    """While active, tensors are allocated, and modes are checked, by Python functions."""
    names = find_names_for_shortcuts()
    assert names is not None
    try:
        assert _cpu.core.bind_torch({**names, "functions": {}})
        yield
    finally:
        assert _cpu.core.bind_torch(names)


@pytest.mark.parametrize("name", CASES)
def test_without_the_c_functions_of_torch(
    name: str, served: list[str], without_functions_of_torch: None
) -> None:
    """A torch that exports none of them, or not all, is asked through Python."""
    for shape in ((6, 6), (3, 5, 5)):
        test_results_are_those_of_the_python_code(name, shape, torch.float64, served)
        served.clear()
    test_modes_and_transforms_run_the_python_code(name, served)


@pytest.mark.parametrize("name", CASES)
def test_results_are_tensors_like_any_other(name: str, served: list[str]) -> None:
    """Results have one owner, memory that torch can resize and free, and no autograd history."""
    function, make, _ = CASES[name]
    result = function(*make(6, 6))
    one = result[0] if isinstance(result, tuple) else result
    assert type(one) is Tensor
    assert (one._version, one.is_leaf, one.is_inference(), one.requires_grad) == (0, True, False, False)
    assert one.untyped_storage().nbytes() == one.numel() * one.element_size()
    one.resize_(one.numel() + 100).add_(1.0)
    assert one.requires_grad_().grad is None
    with torch.inference_mode():
        result = function(*make(6, 6))
        assert (result[0] if isinstance(result, tuple) else result).is_inference()
    assert served == [name] * 2


def test_memory_of_results_is_freed() -> None:
    """Compute ten thousand results of 80 kB: if one in a hundred were kept, 8 MB would be lost."""
    d = general(100)
    lapgrad.makediag(d)
    before = read_resident_bytes()
    for _ in range(10_000):
        lapgrad.makediag(d)
    assert read_resident_bytes() - before < 8e6


def read_resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"makediag", "maketrian"}))
def test_layouts(name: str, served: list[str]) -> None:
    """Transposed, sliced, shifted and expanded operands; what cannot be read in place is left alone."""
    function, make, _ = CASES[name]
    for operands in (make(5, 5), make(3, 5, 5)):
        variants: list[Callable[[Tensor], Tensor]] = [
            lambda x: x.mT.contiguous().mT,
            lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
            lambda x: torch.cat([x, x], -2)[..., x.shape[-2] :, :],
            lambda x: torch.stack([x, x], -1)[..., 0],
            lambda x: x.expand(2, *x.shape)[1],
        ]
        for change in variants:
            changed = [change(operand) for operand in operands]
            assert all(map(torch.equal, changed, operands))
            torch.testing.assert_close(
                join_results(function(*changed)), compute_without_shortcuts(function, *operands)
            )
    assert served


class _CountingMode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


class _QuietFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_layouts_of_vectors(served: list[str]) -> None:
    d = general(2, 6, 4)
    for vectors in (d[0, 0], d[0], d[0, :, 1], d[0].mT, d[:, 2], d[0, 0].expand(3, 4)):
        torch.testing.assert_close(lapgrad.makediag(vectors), torch.diag_embed(vectors), rtol=0.0, atol=0.0)
    assert len(served) == 4  # the strides of the others are not 1
    packed = general(2, 6)
    assert torch.equal(lapgrad.maketrian(packed)[1], lapgrad.maketrian(packed[1]))
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.maketrian(general(5))


@pytest.mark.parametrize("name", CASES)
def test_modes_and_transforms_run_the_python_code(name: str, served: list[str]) -> None:
    function, make, _ = CASES[name]
    operands = make(5, 5)
    with _CountingMode() as mode:
        function(*operands)
    assert mode.seen > 0
    with _QuietFunctionMode():
        function(*operands)
    with forward_ad.dual_level():
        function(*operands)
    func.vmap(lambda *args: join_results(function(*args)))(*[operand[None] for operand in operands])
    assert name not in served if name in COMPOSED else not served


@pytest.mark.parametrize("name", CASES)
def test_recorded_operands_run_the_python_code(name: str, served: list[str]) -> None:
    function, make, _ = CASES[name]
    for position in range(len(make(5, 5))):
        operands = list(make(5, 5))
        operands[position] = torch.nn.Parameter(operands[position])
        assert join_results(function(*operands)).requires_grad
        assert name not in served if name in COMPOSED else not served
        served.clear()
        with torch.no_grad():
            assert not join_results(function(*operands)).requires_grad
        assert served == [name]
        served.clear()


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_read_is_left_alone(name: str) -> None:
    """Called by itself, a shortcut returns None; the operator then explains or computes."""
    _, make, _ = CASES[name]
    operands = make(5, 5)
    flags = {
        "trsm": (True, False, False),
        "trmm": (True, False, False),
        "gemmt": (True, False, False, 1.0),
        "gemm": (False, False, 1.0, 1.0),
        "gemm2": (False, False, 1.0),
        "potrf_ex": (True,),
        "extracttrian": (True,),
        "maketrian": (True,),
        "syrk": (False,),
        "potrf": (True,),
        "potrf_vjp": (None, True),
        "syevd": (True,),
        "gelqf": (False,),
        "cho_solve": (True,),
        "potri": (True,),
        "gesv": (False,),
        "copyltu": (True,),
        "eigh_fn": (True, "sqrt", 0.0, None),
        "pca": (3,),
        "cca": (3, 0.0),
        "lda": (torch.arange(21) % 3, None, 0.0),
        "lstsq": (None,),
    }
    shortcut = _kernels._CPU[f"{name}_shortcut"]

    def take(change: Callable[[Tensor], Any]) -> Any:
        return shortcut(*map(change, operands), *flags.get(name, ()))

    assert take(lambda x: x) is not None
    others: list[Callable[[Tensor], Any]] = [
        lambda x: None,
        lambda x: x.tolist(),
        lambda x: x.half(),
        lambda x: x.int(),
        lambda x: x.to(torch.complex128),
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: x[..., :0],
        lambda x: x[0],
        lambda x: x[None, None],
        lambda x: torch._neg_view(x),
        lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
        lambda x: torch._efficientzerotensor((2, *x.shape), dtype=x.dtype)[1],
        lambda x: x.as_subclass(type("Subclass", (Tensor,), {})),
    ]
    for i, change in enumerate(others):
        assert take(change) is None, i


@pytest.mark.parametrize(
    "labels",
    [
        torch._efficientzerotensor((21,), dtype=torch.int64),
        torch._efficientzerotensor((24,), dtype=torch.int64)[3:],
        torch._neg_view(-(torch.arange(21) % 3)),
    ],
    ids=["zeros", "a view of zeros", "negated"],
)
def test_labels_that_cannot_be_read_are_left_alone(labels: Tensor) -> None:
    shortcut = _kernels._CPU["lda_shortcut"]
    X = general(21, 5)
    assert shortcut(X, labels, None, 0.0) is None
    assert shortcut(X, torch.arange(21) % 3, None, 0.0) is not None


def test_tensors_that_are_still_wrapped_are_left_alone_at_once() -> None:
    """torch.func.vjp saves such tensors for second derivatives. To read one costs an exception, 10 ms."""
    wrapped: list[Tensor] = []
    func.grad(lambda A: wrapped.append(A * 1.0) or A.sum())(general(5, 5))
    shortcut = _kernels._CPU["gemm2_shortcut"]

    def measure_refusal(A: Tensor) -> float:
        start = time.perf_counter()
        assert shortcut(A, A, False, False, 1.0) is None
        return time.perf_counter() - start

    with torch.no_grad():
        seconds, usual = (
            min(measure_refusal(A) for _ in range(20)) for A in (wrapped[0], general(5, 5).int())
        )
    assert seconds < 100 * usual  # by the exception: thousands


def test_operands_that_do_not_fit(served: list[str]) -> None:
    """Other orders, dtypes and batches: errors and broadcasting are Python's."""
    L, A = lower(5, 5), general(4, 4)
    for function in (lapgrad.trsm, lapgrad.trmm, lapgrad.gemm2, lapgrad.gemmt):
        with pytest.raises(lapgrad.ShapeError):
            function(L, A)
        with pytest.raises(lapgrad.DTypeError):
            function(L, L.float())
    assert lapgrad.trsm(L, general(3, 5, 2)).shape == (3, 5, 2)
    with pytest.raises(lapgrad.ShapeError):
        lapgrad.potrf(general(4, 5))
    assert served == []


def test_errors_name_what_is_wrong(served: list[str]) -> None:
    with pytest.raises(lapgrad.NotPositiveDefiniteError):
        lapgrad.potrf(-torch.eye(4))
    with pytest.raises(lapgrad.SingularMatrixError):
        lapgrad.trsm(torch.zeros(4, 4), torch.eye(4))
    broken = torch.eye(4)
    broken[1, 1] = torch.nan
    for function in (lapgrad.potrf, lapgrad.syevd, lapgrad.gesvd, lapgrad.gelqf):
        with pytest.raises(lapgrad.NonFiniteError):
            function(broken)
    assert served == []


def test_compiled_code_does_not_see_shortcuts(served: list[str]) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def solve(L: Tensor, A: Tensor) -> Tensor:
        return lapgrad.trsm(L, lapgrad.syrk(A))

    L, A = lower(5, 5), general(5, 5)
    torch.testing.assert_close(solve(L, A), compute_without_shortcuts(lapgrad.trsm, L, A @ A.mT))
    assert served == []
