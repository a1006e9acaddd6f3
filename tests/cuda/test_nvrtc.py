"""NVRTC compiles every kernel that the Python code can launch, and no kernel is left that it cannot."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from lapgrad._kernels.cuda import sgp_bound as _sgp_bound
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import kernel_matrix as _kernel_matrix
from lapgrad._kernels.cuda.large import lu as _lu_large
from lapgrad._kernels.cuda.large import symmetric as _symmetric
from lapgrad._kernels.cuda.runtime import compiler as _compile
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import centre as _centre
from lapgrad._kernels.cuda.small import eigh_fn as _eigh_fn
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch
from lapgrad._kernels.cuda.small import gelqf_panels as _gelqf_panels
from lapgrad._kernels.cuda.small import gelqf_wide as _gelqf_wide
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._kernels.cuda.small import gesvd_medium as _gesvd_medium
from lapgrad._kernels.cuda.small import gesvd_vjp_tiles as _gesvd_vjp_tiles
from lapgrad._kernels.cuda.small import kalman as _kalman_batch
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.cuda.small import lu_panels as _lu_panels
from lapgrad._kernels.cuda.small import packing as _packing
from lapgrad._kernels.cuda.small import potrf as _potrf_batch
from lapgrad._kernels.cuda.small import products as _products
from lapgrad._kernels.cuda.small import pstrf as _pstrf_batch
from lapgrad._kernels.cuda.small import sumlogdiag as _sumlogdiag
from lapgrad._kernels.cuda.small import syevd as _syevd_batch
from lapgrad._kernels.cuda.small import syevd_vjp_tiles as _syevd_vjp_tiles
from lapgrad._kernels.cuda.small import ties as _ties
from lapgrad._kernels.cuda.small import triangular as _triangular
from lapgrad._kernels.cuda.small import trmm as _trmm_batch
from lapgrad._kernels.cuda.small import trsm as _trsm_batch

STEMS = sorted(source.stem for source in _compile.SOURCES.glob("*.cu"))


def _is_compiler_installed() -> bool:
    """Whether cuda-core finds NVRTC, which needs no device."""
    try:
        from cuda.bindings import nvrtc

        return bool(nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError):
        return False


needs_nvrtc = pytest.mark.skipif(not _is_compiler_installed(), reason="needs cuda-core and nvidia-cuda-nvrtc")

NEWEST, OLDEST = "sm_90", "sm_80"

#: One size for every kind of kernel, and some more.
ORDERS = (1, 4, 5, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128)


def make_zeros(n: int, dtype: torch.dtype, m: int | None = None) -> Tensor:
    return torch.zeros(2, n, n if m is None else m, dtype=dtype)


def launch_potrf(n: int, dtype: torch.dtype) -> None:
    A = make_zeros(n, dtype)
    _potrf_batch.potrf(A.clone(), A, True, None)
    _potrf_batch.potrf_vjp(A.clone(), A, A, True, None)


def launch_triangular(n: int, dtype: torch.dtype) -> None:
    A = make_zeros(n, dtype)
    _trsm_batch.trsm(A.clone(), A, A, lower=True, transpose=False, rightside=False)
    _trmm_batch.trmm(A.clone(), A, A, lower=True, transpose=False, rightside=False)
    _launch.launch(*_triangular.plan_zero_pivot_search(A, _items.create_status_cell(A)))
    _launch.launch(*_products.plan_triangular_factor(A, A, A, lower=True, transpose=False, rightside=False))
    _launch.launch(*_products.plan_triangular_result(A, A, A, lower=True, alpha=1.0))
    _launch.launch(*_products.plan_symmetric_result(A, A))


def launch_pstrf(n: int, dtype: torch.dtype) -> None:
    # The last order needs the kernels for one step at a time.
    A = make_zeros(n if n < ORDERS[-1] else _thresholds.PSTRF_IN_BLOCK + 1, dtype)
    pivots, rank = torch.zeros(A.shape[:2], dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for one in _pstrf_batch.plan_factorisation(A.clone(), pivots, rank, A, None, None):
        _launch.launch(*one)
    _launch.launch(*_pstrf_batch.plan_vjp_begin(A, A, A, A, rank))
    _launch.launch(*_pstrf_batch.plan_vjp_end(A, A, pivots))


def launch_compositions(n: int, dtype: torch.dtype) -> None:
    A, values = make_zeros(n, dtype), torch.zeros(2, n, dtype=dtype)
    _launch.launch(*_eigh_fn.plan_scaling(A, A, values, "exp", 1.0, 0.0, None))
    _launch.launch(*_eigh_fn.plan_weighing(A, values, "exp", 1.0, 0.0))
    _launch.launch(*_eigh_fn.plan_symmetrising(A))
    _launch.launch(*_centre.plan_centring(values, A, values, A, 0.0, 1))
    _launch.launch(*_centre.plan_vjp(A, A, None, values))


def launch_gelqf(n: int, dtype: torch.dtype) -> None:
    for m in ORDERS:
        k = min(m, n)
        A, L, Q = make_zeros(m, dtype, n), make_zeros(m, dtype, k), make_zeros(k, dtype, n)
        _gelqf_batch.gelqf(L, Q, A, False)
        _gelqf_batch.find_dependent_row(L, 1e-6, True)
    A, wide = make_zeros(n, dtype), make_zeros(n, dtype, 200)
    _gelqf_batch.gelqf_vjp(A.clone(), A, A, A, A)
    _gelqf_wide.gelqf(A, wide.clone(), wide)


def launch_panels(n: int, dtype: torch.dtype) -> None:
    if n != 1:
        return
    for columns in (100, 200, 300, 600):
        work = make_zeros(40, dtype, columns)
        with mock.patch.object(_device, "multiply_blocks"):
            for rows_of_warp in (2, 4):
                for name, _, _ in _gelqf_panels.list_kernels(columns, rows_of_warp, dtype):
                    _launch.launch("gelqf_panel", name, work)
            _launch.launch(*_gelqf_panels.plan_finish(work, None, work, work, 32, None))
            _lu_panels.factorise(make_zeros(columns, dtype), torch.zeros(2, columns, dtype=torch.int32))


def launch_lu(n: int, dtype: torch.dtype) -> None:
    A, pivots, cell = (
        make_zeros(n, dtype),
        torch.zeros(2, n + 1, dtype=torch.int32),
        _items.create_status_cell,
    )
    _launch.launch(*_lu_batch.plan_factorisation(A, LU=A, pivots=pivots, cell=cell(A)))
    _launch.launch(*_lu_batch.plan_solution(A.clone(), A, pivots, A, False))
    if n <= _thresholds.LU_IN_WARP:
        _launch.launch(*_lu_batch.plan_small_inverse(A.clone(), A, reported=0, cell=None))
    else:
        _launch.launch(*_lu_batch.plan_inverse(A.clone(), A, pivots, reported=0, cell=None))
    _lu_large.finish(A, pivots, None)
    _lu_large.scale_items(A.clone(), A, pivots)
    with mock.patch.object(_device, "solve"), mock.patch.object(torch.linalg, "lu_solve"):
        _lu_large.invert(A.clone(), A, pivots)
        _lu_large.solve(A.clone(), A, pivots, A, False)


def launch_syevd(n: int, dtype: torch.dtype) -> None:
    A, values = make_zeros(n, dtype), torch.zeros(2, n, dtype=dtype)
    _launch.launch(*_ties.plan_search(values, 1e-10, True, None))
    codes = torch.zeros(2, dtype=torch.int32)
    _launch.launch(*_symmetric.plan_reading(A, A, True, codes, None))
    _launch.launch(*_symmetric.plan_finishing(A, values, codes, codes, None))
    _launch.launch(*_symmetric.plan_check(A[0], None))
    if n > _thresholds.SYEVD_SMALL:
        return
    for U in (A.clone(), None):
        _syevd_batch.syevd(values, U, A, True)
    _syevd_batch.syevd_vjp(A.clone(), A, values, A, values, "mask", 1e-10)


def launch_gesvd(n: int, dtype: torch.dtype) -> None:
    for m in ORDERS:
        k, small = min(m, n), max(m, n) <= _thresholds.GESVD_SMALL
        A, S, U, V = (
            make_zeros(m, dtype, n),
            torch.zeros(2, k, dtype=dtype),
            make_zeros(k, dtype, m),
            make_zeros(k, dtype, n),
        )
        for vectors in ((U, V), (None, None)):
            (_gesvd_batch if small else _gesvd_medium).gesvd(S, *vectors, A)
        if small:
            _gesvd_batch.gesvd_vjp(A.clone(), U, S, V, U, S, V, "mask", 1e-10)


def launch_kalman(n: int, dtype: torch.dtype) -> None:
    """Launch both variants (factors in registers, or in lanes) for several numbers of states."""
    for p in {4: (1, 16), 8: (2,), 16: (4,), 32: (8,)}.get(n, ()):
        y, A, B, R = (torch.zeros(2, 3, *shape, dtype=dtype) for shape in ((p,), (n, n), (p, n), (p, p)))
        model = [y, A, B, A, R, A[:, 0, 0], A[:, 0], A[:, :, 0]]
        s = y[:, 0, 0]
        _launch.launch(*_kalman_batch.plan_filter(s, model, None))
        _kalman_batch.compute_vjp(_launch.launch, s, [operand.clone() for operand in model], model)


def launch_packing(n: int, dtype: torch.dtype) -> None:
    A, v = make_zeros(n, dtype), torch.zeros(2, 1, n * (n + 1) // 2, dtype=dtype)
    for lower in (True, False):
        _launch.launch(*_packing.plan_packing(v, A, 0, lower))
        _launch.launch(*_packing.plan_unpacking(A, v, 0, lower))
        _launch.launch(*_packing.plan_mirrored_copy(A.clone(), A, lower))
    d = torch.zeros(2, n, dtype=dtype)
    _launch.launch(*_packing.plan_mirror(A))
    _launch.launch(*_packing.plan_gathered_diagonals(d, A))
    _launch.launch(*_packing.plan_diagonals(A, d))
    # The last order needs a block for each diagonal.
    for size in (n, n + 1):
        A = make_zeros(size, dtype)
        _launch.launch(*_sumlogdiag.plan_sum(d[:, 0], A))
        _launch.launch(*_sumlogdiag.plan_vjp(A.clone(), A, d[:, 0]))


def launch_formulas(n: int, dtype: torch.dtype) -> None:
    """Launch every formula once, and the two combinations."""
    if n > 1:
        return
    formulas = {name: f"{name}<2>" for name in ("Rbf", "Matern12", "Matern32", "Matern52", "Linear")}
    of_pairs = f"Sum<Product<{formulas['Rbf']}, Constant>, Product<White, RationalQuadratic<1>>>"
    for text, features, count in (*((text, 2, 1) for text in formulas.values()), (of_pairs, 3, 5)):
        F, scalars, K = (torch.zeros(shape, dtype=dtype) for shape in ((4, features), (count,), (4, 4)))
        _launch.launch(*_kernel_matrix.plan_fill(K, text, scalars, F, None, None, False))
        sums = torch.zeros(1, count, dtype=torch.float64)
        _launch.launch(*_kernel_matrix.plan_gradient(F[None], sums, text, scalars, F, F, K, (1, 16), 1.0))


def launch_bound(n: int, dtype: torch.dtype) -> None:
    if n > 1:
        return
    out, W, ones = (torch.zeros(shape, dtype=dtype) for shape in (3, (2, 2), (2, 1)))
    with mock.patch.multiple(_stream, get_current_device=lambda: -1, bind_context=lambda device: None):
        _sgp_bound.sgp_bound(out, W, ones[0], W, ones, ones[0, 0], ones[0, 0], 3)
        _sgp_bound.sgp_bound_vjp(out, out, W, ones, ones, W[0], True, ones[0, 0], ones[0, 0], 3, 1.0)


BATCHES: tuple[Callable[[int, torch.dtype], None], ...] = (
    launch_potrf,
    launch_triangular,
    launch_pstrf,
    launch_compositions,
    launch_gelqf,
    launch_panels,
    launch_lu,
    launch_syevd,
    launch_gesvd,
    launch_kalman,
    launch_packing,
    launch_formulas,
    launch_bound,
)

#: Kernels for large matrices that ``_device`` does not load; launching them would need NVIDIA's libraries.
OF_LARGE_MATRICES = (
    "take_triangle<{T}>",
    *(f"finish_factor<{{T}}, {kind}>" for kind in (_device.MOVE_DOWN, _device.CLEAR_LOWER)),
    "finish_inverse<{T}>",
    "place_factor<{T}>",
)


#: Kernels that the compiled core launches, by file.
OF_THE_CORE = {
    "triangle": (*_device._KERNELS, *OF_LARGE_MATRICES),
    "syevd_vjp_tiles": _syevd_vjp_tiles.KERNELS,
    "gesvd_vjp_tiles": _gesvd_vjp_tiles.KERNELS,
}


@functools.cache
def collect_expressions() -> dict[str, list[str]]:
    """Return, by source file, the kernel instances that launches need, planned with CPU tensors."""
    found: dict[str, dict[str, None]] = defaultdict(dict)

    def record(stem: str, name: str, like: Tensor, *_: Any) -> None:
        found[stem][name.replace("{T}", "double" if like.dtype is torch.float64 else "float")] = None

    with (
        mock.patch.object(_launch, "launch", record),
        mock.patch.object(_items, "get_status_cell", _items.create_status_cell),
        mock.patch.object(_items, "read_first_failure", return_value=None),
    ):
        for dtype in (torch.float64, torch.float32):
            for plan in BATCHES:
                for n in ORDERS:
                    plan(n, dtype)
            for stem, names in OF_THE_CORE.items():
                for name in names:
                    record(stem, name, torch.empty(0, dtype=dtype))
    return {stem: list(names) for stem, names in found.items()}


def select_expressions(stem: str) -> list[str]:
    """Return all instances in double precision, and one of each kernel in single precision."""
    singles = {one.partition("<")[0]: one for one in reversed(collect_expressions()[stem]) if "<float" in one}
    return [one for one in collect_expressions()[stem] if "<double" in one] + list(singles.values())


def compile_quickly(stem: str, wanted: tuple[str, ...], architecture: str) -> tuple[bytes, dict[str, str]]:
    """Compile as a launch does, but without optimisation, which takes nine tenths of the time."""
    from cuda import core

    quick = functools.partial(core.ProgramOptions, ofast_compile="max")
    with mock.patch.object(core, "ProgramOptions", quick):
        return _compile.compile_together(stem, wanted, architecture)


def list_kernels(stem: str) -> Iterator[str]:
    """Yield the names of the ``__global__`` functions in a source file."""
    text = (_compile.SOURCES / f"{stem}.cu").read_text()
    without_bounds = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", text)
    yield from re.findall(r"__global__\s+void\s+(\w+)\s*\(", without_bounds)


@pytest.mark.parametrize("stem", STEMS)
def test_every_kernel_can_be_launched(stem: str) -> None:
    launched = {expression.partition("<")[0] for expression in collect_expressions().get(stem, [])}
    assert set(list_kernels(stem)) == launched


@needs_nvrtc
@pytest.mark.parametrize("stem", STEMS)
def test_every_launch_compiles(stem: str) -> None:
    wanted = tuple(select_expressions(stem))
    code, symbols = compile_quickly(stem, wanted, NEWEST)
    assert code[:4] == b"\x7fELF"
    assert set(symbols) == set(wanted)
    assert len(set(symbols.values())) == len(wanted)
    for symbol in symbols.values():
        assert symbol.encode() in code


@needs_nvrtc
@pytest.mark.parametrize("stem", STEMS)
def test_oldest_devices_are_served(stem: str) -> None:
    """A kernel of each file compiles with optimisation, as a launch compiles it, for the oldest architecture.

    For the newest one ``test_every_launch_compiles`` compiles all of them.
    """
    code, symbol = _compile.compile_source(stem, collect_expressions()[stem][0], OLDEST)
    assert symbol.encode() in code
