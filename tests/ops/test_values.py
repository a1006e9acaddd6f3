"""Values: every operator agrees with plain torch in float64, on every path through the compiled core."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from device import DEVICE
from fresh_process import get_output
from paths import PATHS, list_paths, take_path
from samples import OPERATORS, OperatorCase, Sample
from sized import FLAGS, list_flag_choices, sample
from tolerances import assert_all_close, of_order
from torch import Tensor

import lapgrad
from lapgrad._kernels import cpu as _cpu

DTYPES = (torch.float64, torch.float32)

#: One below, at and above the leaf (32), and past the first blocks (64, 128, 256) of the recursions.
ORDERS = (1, 31, 32, 33, 64, 65, 129, 257)
#: Around the width of a vector: 2 to 16 matrices go into the lanes of one.
BATCHES = (1, 2, 7, 17, 40)

SAMPLES = [
    pytest.param(case, position, id=f"{case.name} {recipe.id}")
    for case in OPERATORS.values()
    for position, recipe in enumerate(case.recipes)
]


def compute_in_double(case: OperatorCase, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of the reference in float64, rounded to the dtype of the operands."""
    expected = case.reference(*[arg.double() for arg in args], **kwargs)
    dtype = args[0].dtype
    if isinstance(expected, Tensor):
        return expected.to(dtype)
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in expected)


@functools.cache
def list_samples(name: str, dtype: torch.dtype) -> list[Sample]:
    return OPERATORS[name].samples(dtype)


@functools.cache
def list_rows(
    name: str, n: int, other: int, batch: int | None, dtype: torch.dtype
) -> list[tuple[Sample, Any]]:
    """Return samples of one size with all flags, and their expected results."""
    shape = () if batch is None else (batch,)
    samples = [
        sample(name, n, flags, other=other, batch=shape, dtype=dtype) for flags in list_flag_choices(name)
    ]
    return [(one, compute_in_double(OPERATORS[name], one.args, one.kwargs)) for one in samples]


def check(name: str, n: int, dtype: torch.dtype, other: int | None = None, batch: int | None = None) -> None:
    for one, expected in list_rows(name, n, other or n, batch, dtype):
        units = of_order(n) * OPERATORS[name].condition(n)
        assert_all_close(OPERATORS[name].fn(*one.args, **one.kwargs), expected, units)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("case", "position"), SAMPLES)
def test_samples(case: OperatorCase, position: int, dtype: torch.dtype) -> None:
    one = list_samples(case.name, dtype)[position]
    assert_all_close(case.fn(*one.args, **one.kwargs), compute_in_double(case, one.args, one.kwargs))


@pytest.mark.parametrize(("name", "path", "isa"), list_paths(FLAGS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_orders(name: str, dtype: torch.dtype, path: str, isa: str) -> None:
    with take_path(path, isa):
        for n in ORDERS:
            check(name, n, dtype)


@pytest.mark.parametrize(("name", "path", "isa"), list_paths(FLAGS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(name: str, dtype: torch.dtype, path: str, isa: str) -> None:
    """Orders below, at and past the largest that goes one matrix per lane."""
    with take_path(path, isa):
        for batch in BATCHES:
            for n in (1, 4, 13, 24, 33):
                check(name, n, dtype, batch=batch)
        for n in (25, 32):
            check(name, n, dtype, batch=17)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name",
    [
        "trsm",
        "trmm",
        "gemmt",
        "syrk",
        "gesvd",
        "linalg.cho_solve",
        "linalg.solve_psd",
        "fused.mvn_nll",
        "gelqf",
        "linalg.lstsq",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rectangles(name: str, dtype: torch.dtype, path: str) -> None:
    """Other sides from one column to many more than rows, around the sizes of vectors, slices and tiles."""
    with take_path(path):
        for n, other in ((33, 1), (5, 70), (70, 5), (130, 33), (33, 300), (140, 257)):
            check(name, n, dtype, other=other)
        for n, other in ((4, 1), (1, 9), (5, 13), (13, 5), (24, 30)):
            check(name, n, dtype, other=other, batch=17)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["gemmt", "syrk"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangles_larger_than_their_kernel(name: str, dtype: torch.dtype, path: str) -> None:
    """A triangle of order 256 is one kernel; above that it is halved, unevenly."""
    with take_path(path):
        for n, other in ((256, 40), (257, 3), (300, 40)):
            check(name, n, dtype, other=other)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [5, 32, 65, 129])
def test_symmetric_to_the_last_bit(n: int, path: str) -> None:
    """syrk, copyltu and inverses are symmetric, and so are gradients of symmetric matrices."""
    A = sample("potrf", n, {}).args[0].requires_grad_()
    B = sample("linalg.solve_psd", n, {}, other=3).args[1]
    functions = {
        "potrf": lapgrad.potrf,
        "logdet_psd": lapgrad.linalg.logdet_psd,
        "solve_psd": lambda A: lapgrad.linalg.solve_psd(A, B),
        "inverse_psd": lapgrad.linalg.inverse_psd,
        "mvn_nll": lambda A: lapgrad.fused.mvn_nll(A, B),
    }
    with take_path(path):
        results = {
            f.__name__: f(A.detach())
            for f in (lapgrad.syrk, lapgrad.copyltu, lapgrad.potri, lapgrad.linalg.inverse_psd)
        }
        for name, f in functions.items():
            (results[f"gradient of {name}"],) = torch.autograd.grad(f(A).sin().sum(), A)
        for name, result in results.items():
            assert torch.equal(result, result.mT), name


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["potrf", "gemmt"])
def test_other_triangle_is_zero(name: str, path: str) -> None:
    with take_path(path):
        for n in (5, 33, 129):
            for flags in list_flag_choices(name):
                one = sample(name, n, flags)
                result = OPERATORS[name].fn(*one.args, **flags)
                other = result.triu(1) if flags["lower"] else result.tril(-1)
                assert torch.count_nonzero(other) == 0


def test_gemm_does_not_read_c_when_beta_is_zero() -> None:
    for batch in ((), (3,), (2, 3)):
        A = torch.randn(*batch, 4, 4, dtype=torch.float64, device=DEVICE)
        C = torch.full_like(A, torch.nan)
        assert_all_close(lapgrad.gemm(A, A, C, beta=0.0), A @ A)


@pytest.mark.cpu
@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    if not _cpu.core.isa_supported(isa):
        pytest.skip(f"this CPU has no {isa}")
    code = "from lapgrad._kernels import native; print(native.is_available(), native.describe()['isa'])"
    assert get_output(code, LAPGRAD_ISA=isa).split() == ["True", isa]
