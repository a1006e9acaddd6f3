"""Bad input: each mistake has its exception class and a message that names it; nothing is half-written."""

from __future__ import annotations

import ctypes
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from device import DEVICE
from fresh_process import get_output
from paths import PATHS, take_path
from samples import OPERATORS, Flags, OperatorCase, Shape, join_results
from sized import sample
from tolerances import assert_all_close, of_order
from torch import Tensor

import lapgrad
from lapgrad import _blas
from lapgrad._kernels import cpu as _cpu

EACH_OPERAND = [
    pytest.param(case, position, id=f"{case.name} {operand}")
    for case in OPERATORS.values()
    for position, operand in enumerate(case.operands)
]
EACH_MATRIX = [row for row in EACH_OPERAND if row.values[0].operands[row.values[1]].isupper()]
SEVERAL_OPERANDS = [row for row in EACH_OPERAND if len(row.values[0].operands) > 1]
RECTANGULAR = (
    "gemm",
    "gemm2",
    "gemmt",
    "syrk",
    "makediag",
    "maketrian",
    "gesvd",
    "gelqf",
    "linalg.lstsq",
    "linalg.pca",
    "linalg.cca",
    "linalg.lda",
    "fused.kalman_nll",
)
SQUARE = [pytest.param(case, id=case.name) for case in OPERATORS.values() if case.name not in RECTANGULAR]


def replace_operand(case: OperatorCase, position: int, value: Any) -> list[Any]:
    args: list[Any] = list(case.small().args)
    args[position] = value
    return args


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (lapgrad.DTypeError, TypeError),
        (lapgrad.ShapeError, ValueError),
        (lapgrad.DeviceError, ValueError),
        (lapgrad.SizeError, OverflowError),
        (lapgrad.NotPositiveDefiniteError, torch.linalg.LinAlgError),
        (lapgrad.NonFiniteError, ValueError),
        (lapgrad.SingularMatrixError, torch.linalg.LinAlgError),
        (lapgrad.RankDeficientError, torch.linalg.LinAlgError),
    ],
)
def test_errors_are_also_what_a_caller_would_catch(error: type, also: type) -> None:
    assert issubclass(error, lapgrad.LapgradError)
    assert issubclass(error, also)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16, torch.complex128], ids=str
)
@pytest.mark.parametrize(("case", "position"), EACH_OPERAND)
def test_dtype(case: OperatorCase, position: int, dtype: torch.dtype) -> None:
    args = replace_operand(case, position, case.small().args[position].to(dtype))
    operand = case.operands[position]
    cast = "float" if dtype in (torch.float16, torch.bfloat16) else "double"
    advice = "" if dtype.is_complex else f": use {operand}.{cast}()"
    expected = f"{case.name}: {operand} has dtype {dtype}; supported are float32 and float64{advice}."
    message = f"^{re.escape(expected)}$"
    with pytest.raises(lapgrad.DTypeError, match=message):
        case.fn(*args, **case.small().kwargs)


@pytest.mark.cpu
def test_half_precision_on_the_meta_device() -> None:
    """torch does not know autocast there, and raises an error if it is asked."""
    with pytest.raises(lapgrad.DTypeError, match="supported are float32 and float64"):
        lapgrad.potrf(torch.eye(3, dtype=torch.float16, device="meta"))


@pytest.mark.parametrize("value", [[[1.0]], 1.0, None, "A"], ids=repr)
@pytest.mark.parametrize(("case", "position"), EACH_OPERAND)
def test_not_a_tensor(case: OperatorCase, position: int, value: Any) -> None:
    operand, kind = case.operands[position], type(value).__name__
    advice = f": use torch.tensor({operand}, dtype=torch.float64)" if isinstance(value, list | float) else ""
    message = f"^{re.escape(f'{case.name}: {operand} must be a torch.Tensor, got {kind}{advice}.')}$"
    with pytest.raises(lapgrad.DTypeError, match=message):
        case.fn(*replace_operand(case, position, value), **case.small().kwargs)


def test_not_a_numpy_array() -> None:
    with pytest.raises(lapgrad.DTypeError, match=r"got ndarray: use torch.from_numpy\(A\)\.$"):
        lapgrad.potrf(torch.eye(3).numpy())


@pytest.mark.parametrize(("case", "position"), SEVERAL_OPERANDS)
def test_mixed_dtypes(case: OperatorCase, position: int) -> None:
    args = replace_operand(case, position, case.small().args[position].float())
    with pytest.raises(lapgrad.DTypeError) as caught:
        case.fn(*args, **case.small().kwargs)
    text = str(caught.value)
    assert text.startswith(f"{case.name}: all arguments must have the same dtype")
    assert f"{case.operands[position]} torch.float32" in text
    assert "torch.float64" in text
    assert text.endswith(". Use .double() or .float().")


@pytest.mark.parametrize(("case", "position"), SEVERAL_OPERANDS)
def test_mixed_devices(case: OperatorCase, position: int) -> None:
    args = replace_operand(case, position, case.small().args[position].to("meta"))
    with pytest.raises(lapgrad.DeviceError) as caught:
        case.fn(*args, **case.small().kwargs)
    text = str(caught.value)
    assert text.startswith(f"{case.name}: all arguments must be on the same device")
    assert f"{case.operands[position]} meta" in text
    assert str(case.small().args[0].device) in text
    assert text.endswith(". Use .to(device).")


@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
@pytest.mark.parametrize(("case", "position"), EACH_MATRIX)
def test_fewer_than_two_dimensions(case: OperatorCase, position: int, shape: Shape) -> None:
    args = replace_operand(case, position, torch.ones(shape, dtype=torch.float64, device=DEVICE))
    with pytest.raises(lapgrad.ShapeError) as caught:
        case.fn(*args, **case.small().kwargs)
    text = str(caught.value)
    assert text.startswith(f"{case.name}: {case.operands[position]} must be a matrix or a batch of matrices")
    assert text.endswith(f"got shape {shape}.")


@pytest.mark.parametrize("name", ["makediag", "maketrian"])
def test_scalar_instead_of_a_vector(name: str) -> None:
    (operand,) = OPERATORS[name].operands
    with pytest.raises(lapgrad.ShapeError, match=rf"^{name}: {operand} must be a vector .* got a scalar\.$"):
        OPERATORS[name].fn(torch.tensor(1.0, device=DEVICE))


@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
@pytest.mark.parametrize("case", SQUARE)
def test_not_square(case: OperatorCase, batch: Shape) -> None:
    shape = (*batch, 3, 4)
    with pytest.raises(lapgrad.ShapeError) as caught:
        case.fn(
            *replace_operand(case, 0, torch.ones(shape, dtype=torch.float64, device=DEVICE)),
            **case.small().kwargs,
        )
    wanted = f"{case.name}: {case.operands[0]} must be square in its last two dimensions, got shape {shape}."
    assert str(caught.value) == wanted


@pytest.mark.parametrize(
    ("name", "shapes", "flags"),
    [
        ("trsm", ((3, 3), (4, 2)), {}),
        ("trsm", ((3, 3), (3, 2)), {"rightside": True}),
        ("trmm", ((3, 3), (2, 4)), {}),
        ("trmm", ((3, 3), (3, 4)), {"rightside": True}),
        ("gemmt", ((3, 2), (3, 2)), {}),
        ("gemmt", ((3, 2), (2, 4)), {}),
        ("gemmt", ((3, 2), (2, 3)), {"transpose_a": True}),
        ("gemm2", ((3, 2), (3, 2)), {}),
        ("gemm2", ((3, 2), (2, 3)), {"transpose_b": True}),
        ("gemm", ((3, 2), (3, 2), (3, 2)), {}),
        ("gemm", ((3, 2), (2, 4), (4, 3)), {}),
        ("gemm", ((3, 2), (2, 4), (1, 4)), {}),
        ("trsm", ((2, 3, 3), (5, 3, 2)), {}),
        ("trmm", ((2, 3, 3), (5, 3, 2)), {}),
        ("gemmt", ((2, 3, 4), (5, 4, 3)), {}),
        ("gemm2", ((2, 3, 4), (5, 4, 3)), {}),
        ("gemm", ((2, 3, 4), (4, 3), (5, 3, 3)), {}),
        ("linalg.cho_solve", ((3, 3), (4, 2)), {}),
        ("linalg.cho_solve", ((2, 3, 3), (5, 3, 2)), {}),
        ("linalg.solve_psd", ((3, 3), (2, 3)), {}),
        ("linalg.lstsq", ((3, 4), (4, 2)), {}),
        ("linalg.lstsq", ((2, 3, 4), (5, 3, 2)), {}),
        ("linalg.solve_psd", ((2, 3, 3), (5, 3, 2)), {}),
        ("fused.mvn_nll", ((3, 3), (4, 1)), {}),
        ("fused.mvn_nll", ((2, 3, 3), (5, 3, 1)), {}),
    ],
)
def test_shapes_that_do_not_fit(name: str, shapes: tuple[Shape, ...], flags: Flags) -> None:
    case = OPERATORS[name]
    with pytest.raises(lapgrad.ShapeError) as caught:
        case.fn(*[torch.zeros(shape, device=DEVICE) for shape in shapes], **flags)
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    for operand, shape in zip(case.operands, shapes, strict=True):
        assert f"{operand} {shape}" in text


@pytest.mark.parametrize("offset", [4, -4, 100])
@pytest.mark.parametrize("name", ["extractdiag", "extracttrian"])
def test_offset_outside(name: str, offset: int) -> None:
    message = rf"^{name}: offset {offset} lies outside A of shape \(2, 3, 3\)"
    with pytest.raises(lapgrad.ShapeError, match=message):
        OPERATORS[name].fn(torch.ones(2, 3, 3, device=DEVICE), offset=offset)


def test_packed_vector_of_impossible_length() -> None:
    message = r"^maketrian: the last dimension of v must be .* got shape \(2, 5\)\.$"
    with pytest.raises(lapgrad.ShapeError, match=message):
        lapgrad.maketrian(torch.ones(2, 5, device=DEVICE))


_X = torch.arange(12.0, device=DEVICE).view(4, 3).cos()
_SQUARE = _X.mT @ _X + torch.eye(3, device=DEVICE)
NO_INTEGER, NO_TOLERANCE = "must be an integer, got", r"must be (None or )?a number >= 0, got"


@pytest.mark.parametrize(
    ("function", "operands", "option", "value", "message"),
    [
        ("syevd", (_SQUARE,), "k", 1.5, NO_INTEGER),
        ("syevd", (_SQUARE,), "tol", "small", NO_TOLERANCE),
        ("gesvd", (_X,), "rank", 2.0, NO_INTEGER),
        ("gesvd", (_X,), "tol", [1e-3, 1e-4], NO_TOLERANCE),
        ("pstrf", (_SQUARE,), "rank", "2", NO_INTEGER),
        ("pstrf", (_SQUARE,), "tol", "small", NO_TOLERANCE),
        ("makediag", (_X,), "offset", 0.5, NO_INTEGER),
        ("extractdiag", (_SQUARE,), "offset", 0.5, NO_INTEGER),
        ("extracttrian", (_SQUARE,), "offset", "1", NO_INTEGER),
        ("maketrian", (_X,), "offset", 0.5, NO_INTEGER),
        ("linalg.pca", (_X,), "k", 1.5, NO_INTEGER),
        ("linalg.cca", (_X, _X[:, :1]), "k", 1.0, NO_INTEGER),
        ("linalg.cca", (_X, _X[:, :1]), "regularisation", "none", NO_TOLERANCE),
        ("linalg.lstsq", (_X, _X), "rcond", "none", NO_TOLERANCE),
        ("linalg.lstsq", (_X, _X), "rcond", -1.0, NO_TOLERANCE),
        ("linalg.eigh_fn", (_SQUARE, "power"), "exponent", "2", "must be a real number, got"),
        ("linalg.eigh_fn", (_SQUARE, "power"), "exponent", torch.tensor(2.0), "must be a real number, got"),
    ],
)
def test_options_of_another_type(
    function: str, operands: tuple[Any, ...], option: str, value: object, message: str
) -> None:
    """The message names the option, and the value: it is not one from the depths of torch or of the core."""
    *module, name = function.split(".")
    called = getattr(lapgrad.linalg if module else lapgrad, name)
    with pytest.raises(lapgrad.OptionError, match=rf"^{function}: {option} {message} "):
        called(*operands, **{option: value})


def test_integers_of_numpy_and_tensors_count_as_integers() -> None:
    expected = lapgrad.syevd(_SQUARE, k=2).U
    for k in (np.int64(2), torch.tensor(2)):
        assert lapgrad.syevd(_SQUARE, k=k).U.equal(expected)  # type: ignore[call-overload]


HUGE = 2**31


@pytest.mark.parametrize(("case", "position"), EACH_MATRIX)
def test_more_than_blas_can_count(case: OperatorCase, position: int) -> None:
    """A matrix with 2^31 rows is refused; made of one number by strides of 0, it takes no memory."""
    square = position == 0 and case.name not in (
        "gemm",
        "gemm2",
        "gemmt",
        "syrk",
        "gesvd",
        "gelqf",
        "linalg.lstsq",
        "linalg.cca",
        "linalg.lda",
    )
    shape = (HUGE, HUGE) if square else (HUGE, 1)
    args = replace_operand(
        case, position, torch.zeros(1, 1, dtype=torch.float64, device=DEVICE).expand(shape)
    )
    with pytest.raises(lapgrad.SizeError) as caught:
        case.fn(*args, **case.small().kwargs)
    text = str(caught.value)
    assert text.startswith(f"{case.name}: {case.operands[position]} has shape {shape}")
    assert str(HUGE - 1) in text


@pytest.mark.parametrize("name", ["makediag", "maketrian"])
def test_results_that_blas_cannot_count(name: str) -> None:
    """A vector may be longer than that; the matrix made from it may not."""
    length = HUGE if name == "makediag" else HUGE * (HUGE + 1) // 2
    with pytest.raises(lapgrad.SizeError, match=rf"^{name}: {OPERATORS[name].operands[0]} "):
        OPERATORS[name].fn(torch.zeros(1, device=DEVICE).expand(length))


@pytest.mark.parametrize("case", OPERATORS.values(), ids=lambda case: case.name)
def test_flags_are_keywords(case: OperatorCase) -> None:
    args, required = list(case.small().args), {}
    for parameter in inspect.signature(case.fn).parameters.values():
        if parameter.default is parameter.empty and parameter.name not in case.operands:
            required[parameter.name] = case.small().kwargs[parameter.name]
    with pytest.raises(TypeError, match="positional argument"):
        case.fn(*args, *required.values(), True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'uplo'"):
        case.fn(*args, **required, uplo="L")


def spoil(A: Tensor, what: str, item: tuple[int, ...], k: int) -> None:
    """Make pivot k (from 1) of one item fail, and leave those before it alone."""
    i = k - 1
    if what == "indefinite":
        A[(*item, i, i)] = -1.0
    elif what == "zero":  # exactly singular: row and column zero
        A[(*item, i, slice(None))] = 0.0
        A[(*item, slice(None), i)] = 0.0
    elif what == "NaN":
        A[(*item, i, 0)] = A[(*item, 0, i)] = torch.nan
    elif what == "infinity":
        A[(*item, i, 0)] = A[(*item, 0, i)] = torch.inf
    elif what == "infinite diagonal":
        A[(*item, i, i)] = torch.inf
    else:
        A[(*item, i, i)] = -torch.inf


FAILURES = ("indefinite", "zero", "NaN", "infinity", "infinite diagonal", "minus infinite diagonal")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("lower", [True, False])
def test_failed_factorisation_is_named(what: str, lower: bool, path: str) -> None:
    numeric = what in ("indefinite", "zero")
    with take_path(path):
        for n, k in ((1, 1), (5, 1), (5, 4), (32, 32), (33, 33), (70, 40), (130, 129)):
            A = sample("potrf", n, {}).args[0]
            spoil(A, what, (), k)
            before = A.clone()
            error = lapgrad.NotPositiveDefiniteError if numeric else lapgrad.NonFiniteError
            with pytest.raises(error) as caught:
                lapgrad.potrf(A, lower=lower)
            text = str(caught.value)
            assert torch.equal(A.view(torch.int64), before.view(torch.int64))
            assert caught.value.item == ()
            if numeric:
                assert caught.value.minor == k
                assert text.startswith("potrf: A is not positive definite: its leading minor of order ")
                assert f" order {k} is not positive." in text
            else:
                assert caught.value.pivot == k
                assert text.startswith(f"potrf: A contains NaN or infinity: pivot {k} is not finite.")
            assert "potrf_ex" in text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [3, 8, 24, 33, 65])
def test_first_failed_item_of_a_batch_is_named(n: int, path: str) -> None:
    A = sample("potrf", n, {}, batch=(3, 5)).args[0]
    spoil(A, "NaN", (2, 4), 2)
    spoil(A, "indefinite", (1, 3), 3)
    with take_path(path):
        message = r"^potrf: A\[1, 3\] is not positive definite: .* order 3 "
        with pytest.raises(lapgrad.NotPositiveDefiniteError, match=message) as indefinite:
            lapgrad.potrf(A)
        assert (indefinite.value.item, indefinite.value.minor) == ((1, 3), 3)
        message = r"^potrf: A\[1, 4\] contains NaN or infinity: pivot 2 "
        with pytest.raises(lapgrad.NonFiniteError, match=message) as infinite:
            lapgrad.potrf(A[::2])
        assert (infinite.value.item, infinite.value.pivot) == ((1, 4), 2)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("lower", [True, False])
def test_status_per_item(lower: bool, dtype: torch.dtype, path: str) -> None:
    with take_path(path):
        for n in (4, 13, 24, 33, 65):
            A = sample("potrf", n, {}, batch=(2, 9), dtype=dtype).args[0]
            wanted = torch.zeros(2, 9, dtype=torch.int32, device=DEVICE)
            for position, what in enumerate(FAILURES):
                k = 1 + (5 * position) % n
                spoil(A, what, (position % 2, position + 1), k)
                wanted[position % 2, position + 1] = k if what in ("indefinite", "zero") else -k
            good = wanted == 0
            for overwrite in (False, True):
                L, info = lapgrad.potrf_ex(A.clone() if overwrite else A, lower=lower, overwrite=overwrite)
                assert info.dtype == torch.int32
                assert torch.equal(info, wanted)
                assert torch.equal(L[~good], torch.eye(n, dtype=dtype, device=DEVICE).expand_as(L[~good]))
                expected = torch.linalg.cholesky(A[good].double(), upper=not lower).to(dtype)
                assert_all_close(L[good], expected, of_order(n))


@pytest.mark.parametrize("n", [4, 65])
def test_overwrite_leaves_factors_and_identities(n: int) -> None:
    A = sample("potrf", n, {}, batch=(3,)).args[0]
    spoil(A, "indefinite", (1,), 2)
    expected = lapgrad.potrf_ex(A).L
    with pytest.raises(lapgrad.NotPositiveDefiniteError):
        lapgrad.potrf(A, overwrite=True)
    assert_all_close(A, expected, of_order(n))
    assert torch.equal(A[1], torch.eye(n, dtype=A.dtype, device=DEVICE))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "flags", [{}, {"transpose": True, "lower": False}, {"rightside": True, "alpha": 2.0}], ids=str
)
def test_singular_triangle(flags: Flags, path: str) -> None:
    with take_path(path):
        for n, index in ((1, 0), (5, 3), (33, 32), (70, 40)):
            L, A = sample("trsm", n, flags).args
            L[index, index] = 0.0
            for overwrite in (False, True):
                before = A.clone()
                message = rf"^trsm: L is singular: its diagonal entry {index} is exactly zero\.$"
                with pytest.raises(lapgrad.SingularMatrixError, match=message) as caught:
                    lapgrad.trsm(L, A, **flags, overwrite=overwrite)
                assert (caught.value.item, caught.value.index) == ((), index)
                assert torch.equal(A, before)


@pytest.mark.parametrize("path", PATHS)
def test_first_singular_item_of_a_batch_is_named(path: str) -> None:
    with take_path(path):
        for n in (3, 8, 33):
            L, A = sample("trsm", n, {}, batch=(3, 5)).args
            L[1, 3, 2, 2] = L[2, 0, 0, 0] = -0.0
            before = A.clone()
            for overwrite in (False, True):
                message = r"^trsm: L\[1, 3\] is singular: .* entry 2 "
                with pytest.raises(lapgrad.SingularMatrixError, match=message) as caught:
                    lapgrad.trsm(L, A, overwrite=overwrite)
                assert (caught.value.item, caught.value.index) == ((1, 3), 2)
                assert torch.equal(A, before)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("rightside", [False, True])
def test_one_singular_triangle_for_a_batch(rightside: bool, overwrite: bool) -> None:
    """L is named as the caller handed it over: without an index if it has no leading dimensions."""
    L, A = torch.eye(3, device=DEVICE), torch.ones(2, 3, 3, device=DEVICE)
    L[1, 1] = 0.0
    with pytest.raises(lapgrad.SingularMatrixError, match=r"^trsm: L is singular: its diagonal entry 1 "):
        lapgrad.trsm(L, A, rightside=rightside, overwrite=overwrite)
    assert torch.equal(A, torch.ones(2, 3, 3, device=DEVICE))


@pytest.mark.parametrize("n", [0, 3])
def test_empty_batches_do_not_fail(n: int) -> None:
    A = torch.empty(0, n, n, device=DEVICE)
    L, info = lapgrad.potrf_ex(A)
    assert (L.shape, info.shape, info.dtype) == (A.shape, (0,), torch.int32)
    assert lapgrad.potrf(A).shape == A.shape
    assert lapgrad.trsm(A, A).shape == A.shape


def test_errors_survive_other_processes() -> None:
    """Workers of a DataLoader send exceptions home by pickle."""
    A = -torch.eye(3, device=DEVICE).expand(2, 3, 3)
    for provoke in (
        lambda: lapgrad.potrf(A),
        lambda: lapgrad.potrf(torch.full((3, 3), torch.nan, device=DEVICE)),
        lambda: lapgrad.trsm(torch.zeros(3, 3, device=DEVICE), torch.eye(3, device=DEVICE)),
        lambda: lapgrad.potrf(torch.ones(2, 3, device=DEVICE)),
    ):
        with pytest.raises(lapgrad.LapgradError) as caught:
            provoke()
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert (str(again), vars(again)) == (str(caught.value), vars(caught.value))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [("LAPGRAD_BLAS", "nonsense", "torch, mkl, scipy"), ("LAPGRAD_ISA", "sse9", "avx512, avx2, baseline")],
)
def test_wrong_settings_are_named(variable: str, value: str, named: str) -> None:
    code = """
import torch, lapgrad
try:
    lapgrad.potrf(torch.eye(3))
except ValueError as error:
    print(error)
"""
    assert f"{variable}='{value}' is not one of {named}" in get_output(code, **{variable: value})


#: For each operator: LAPACK's routine, the number of its arguments, the position of ``lwork`` among them.
ITERATIONS = {"syevd": ("dsyevd", 11, 7), "gesvd": ("dgesdd", 14, 11)}


@pytest.mark.cpu
@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
@pytest.mark.parametrize("name", ITERATIONS)
def test_the_item_whose_iteration_does_not_converge_is_named(name: str) -> None:
    """LAPACK is replaced by a routine that gives up on the matrix that begins with 7."""
    routine, arguments, workspace = ITERATIONS[name]
    address = _blas.find().addresses[routine]
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)
    lapack = signature(address)

    def give_up_on_seven(*pointers: int) -> None:
        matrix = ctypes.cast(pointers[3], ctypes.POINTER(ctypes.c_double))
        asks_for_workspace = ctypes.cast(pointers[workspace], ctypes.POINTER(ctypes.c_int))[0] == -1
        if asks_for_workspace or matrix[0] != 7.0:
            lapack(*pointers)
        else:
            ctypes.cast(pointers[-1], ctypes.POINTER(ctypes.c_int))[0] = 1

    stubborn = signature(give_up_on_seven)
    n = 70  # past the orders that run one matrix per lane
    A = torch.eye(n, dtype=torch.float64, device=DEVICE).repeat(2, 3, 1, 1)
    A[1, 1, 0, 0] = 7.0
    _cpu.core.bind_routine(routine, ctypes.cast(stubborn, ctypes.c_void_p).value)
    try:
        message = rf"^{name}: the iteration for A\[1, 1\] did not converge"
        with pytest.raises(lapgrad.ConvergenceError, match=message) as caught:
            OPERATORS[name].fn(A)
    finally:
        _cpu.core.bind_routine(routine, address)
    assert caught.value.item == (1, 1)
    assert torch.isfinite(join_results(OPERATORS[name].fn(A))).all()
