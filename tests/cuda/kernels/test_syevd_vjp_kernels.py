"""The gradient of syevd on CUDA: kernels for small matrices and for tiles, on the CPU and on a device."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import torch
from kernel_packages import on_cuda
from stand_ins import replace_gpu
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import syevd as _syevd_batch
from lapgrad._kernels.cuda.small import syevd_vjp_tiles as _syevd_vjp_tiles
from lapgrad.ops import syevd as formulas

Run = Callable[..., tuple[Tensor, tuple[int, int] | None]]


def run_emulated(
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
    reverse_order: bool = False,
) -> tuple[Tensor, tuple[int, int] | None]:
    """Run the kernels that ``_syevd_batch.syevd_vjp`` launches, emulated on the CPU."""
    gA, reported = torch.full(U.shape, 7.0, dtype=U.dtype), _items.create_status_cell(U)
    plan = _syevd_batch.plan_vjp(gA, U, eigenvalues, gU, slope, degeneracy, tol, reported)
    emulated.launch(*plan, reverse_order=reverse_order)
    return gA, _items.read_first_failure(reported)


def run_on_device(
    U: Tensor, eigenvalues: Tensor, gU: Tensor | None, slope: Tensor | None, degeneracy: str, tol: float
) -> tuple[Tensor, tuple[int, int] | None]:
    there = [None if given is None else given.cuda() for given in (U, eigenvalues, gU, slope)]
    gA = torch.empty(U.shape, dtype=U.dtype, device="cuda")
    failure = _syevd_batch.syevd_vjp(gA, *there, degeneracy, tol)
    return gA.cpu(), failure


def run_tiles_emulated(
    U: Tensor, eigenvalues: Tensor, gU: Tensor | None, slope: Tensor | None, degeneracy: str, tol: float
) -> tuple[Tensor, tuple[int, int] | None]:
    """Run ``_syevd_vjp_tiles.syevd_vjp`` with emulated kernels."""
    gA = torch.full(U.shape, 7.0, dtype=U.dtype)
    with replace_gpu():
        failure = _syevd_vjp_tiles.syevd_vjp(gA, U, eigenvalues, gU, slope, degeneracy, tol)
    return gA, failure


def run_tiles_on_device(
    U: Tensor, eigenvalues: Tensor, gU: Tensor | None, slope: Tensor | None, degeneracy: str, tol: float
) -> tuple[Tensor, tuple[int, int] | None]:
    there = [None if given is None else given.cuda() for given in (U, eigenvalues, gU, slope)]
    gA = torch.empty(U.shape, dtype=U.dtype, device="cuda")
    failure = _syevd_vjp_tiles.syevd_vjp(gA, *there, degeneracy, tol)
    return gA.cpu(), failure


_TILES = places.make_places(run_tiles_emulated, run_tiles_on_device, "tiles, ")


@pytest.fixture(params=[*places.make_places(run_emulated, run_on_device), *_TILES])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def make_problem(
    items: int, n: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return U, eigenvalues with gaps, and the cotangents gU and slope."""
    generator = torch.Generator().manual_seed(n)
    U = torch.linalg.qr(torch.randn(items, n, n, dtype=torch.float64, generator=generator))[0]
    eigenvalues = torch.linspace(-1, 2, n, dtype=torch.float64).expand(items, n).contiguous()
    gU = torch.randn(items, n, n, dtype=torch.float64, generator=generator)
    slope = torch.randn(items, n, dtype=torch.float64, generator=generator)
    return U.to(dtype), eigenvalues.to(dtype), gU.to(dtype), slope.to(dtype)


def compute_expected(
    U: Tensor, eigenvalues: Tensor, gU: Tensor | None, slope: Tensor | None, degeneracy: str, tol: float
) -> Tensor:
    return formulas._compute_vjp_composite(U, eigenvalues, gU, slope, degeneracy, tol)


@pytest.mark.parametrize(
    ("n", "dtype"), [(n, torch.float64) for n in (1, 5, 8, 13, 16, 32, 35)] + [(16, torch.float32)]
)
def test_against_the_formula(run: Run, n: int, dtype: torch.dtype) -> None:
    U, eigenvalues, gU, slope = make_problem(3, n, dtype)
    tol = _gaps.choose_tolerance(n, dtype, None)
    for cotangents in ((gU, slope), (gU, None), (None, slope)):
        gA, failure = run(U, eigenvalues, *cotangents, "mask", tol)
        assert failure is None
        assert torch.equal(gA, gA.mT)
        wanted = compute_expected(
            U.double(), eigenvalues.double(), *[_convert_to_double(c) for c in cotangents], "mask", tol
        )
        assert_close(gA, wanted.to(dtype), of_order(n) * n)


def _convert_to_double(given: Tensor | None) -> Tensor | None:
    return None if given is None else given.double()


def test_order_of_threads_does_not_matter() -> None:
    for n in (13, 20):
        U, eigenvalues, gU, slope = make_problem(2, n)
        one, _ = run_emulated(U, eigenvalues, gU, slope, "mask", 1e-14)
        other, _ = run_emulated(U, eigenvalues, gU, slope, "mask", 1e-14, reverse_order=True)
        assert torch.equal(one, other)


@pytest.mark.parametrize("degeneracy", ["mask", "lorentz", "clamp", "quiet", "nan"])
def test_policies_at_close_eigenvalues(run: Run, degeneracy: str) -> None:
    U, eigenvalues, gU, slope = make_problem(4, 9)
    eigenvalues[1, 3:5] = eigenvalues[1, 4]
    eigenvalues[2] = 0.0
    tol = 1e-3
    gA, failure = run(U, eigenvalues, gU, slope, degeneracy, tol)
    unread = degeneracy in ("nan", "quiet") and run in (run_tiles_emulated, run_tiles_on_device)
    assert failure == (None if unread else (1, 1))
    wanted = compute_expected(U, eigenvalues, gU, slope, degeneracy, tol)
    if degeneracy == "nan":
        gA, wanted = gA[[0, 3]], wanted[[0, 3]]
    assert_close(gA, wanted)


def test_a_loss_that_is_even_on_equal_eigenvalues_is_not_reported(run: Run) -> None:
    """gU U^T is symmetric within the group and slopes are equal, as for a loss of the group's projector."""
    U, eigenvalues, _, slope = make_problem(3, 12)
    eigenvalues[:, 4:8] = 0.5
    slope[:, 4:8] = 1.0
    S = torch.randn(3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, failure = run(U, eigenvalues, (S + S.mT) @ U, slope, "mask", 1e-12)
    assert failure is None
    slope[2, 5] = 1.5
    _, failure = run(U, eigenvalues, (S + S.mT) @ U, slope, "mask", 1e-12)
    assert failure == (2, 1)


@pytest.mark.parametrize(("n", "dtype"), [(6, torch.float64), (13, torch.float64), (20, torch.float32)])
def test_rounding_is_not_divided_by_small_gaps(run: Run, n: int, dtype: torch.dtype) -> None:
    """The gradient of a projector onto close eigenvalues needs no gaps; the last item's loss needs them."""
    U, eigenvalues, gU, slope = make_problem(3, n, dtype)
    W = torch.randn(3, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    group, loose, tight = slice(2, 5), 1e-2, 1e-15
    even = torch.zeros_like(gU)
    even[:, group] = U[:, group] @ (W + W.mT)
    even[2] = gU[2]
    slope[:, group] = 1.0
    for gap in (1e-12, 1e-9, 1e-6) if dtype == torch.float64 else (1e-6, 1e-4):
        eigenvalues[:, group] = torch.tensor([0.0, gap, 3 * gap], dtype=dtype) + eigenvalues[0, 3]
        gA, failure = run(U, eigenvalues, even, slope, "mask", tight)
        assert failure is None
        # With a threshold above its gaps the group is tied, and its gaps do not matter.
        exact = compute_expected(
            U.double(), eigenvalues.double(), even.double(), slope.double(), "mask", loose
        )
        assert_close(gA[:2], exact[:2].to(dtype), of_order(n) * n)
        bare = compute_expected(U, eigenvalues, even, slope, "nan", tight)
        assert_close(gA[2], bare[2], of_order(n) * n)
        assert float(gA[2].abs().max()) > 0.01 / gap


@pytest.mark.parametrize("run", _TILES)
@pytest.mark.parametrize("triangle", [1, 1000])
def test_several_tiles(run: Run, triangle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values lie within a tile and in two tiles; the loss of item 2 has a gradient there."""
    n = 70
    monkeypatch.setattr(_thresholds, "SYEVD_VJP_TRIANGLE", triangle)
    monkeypatch.setattr(_thresholds, "PRODUCT_CUT", 40)
    U, eigenvalues, gU, slope = make_problem(3, n)
    S = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eigenvalues[1, 30:33], eigenvalues[2, 30:33] = eigenvalues[1, 31].clone(), eigenvalues[2, 31].clone()
    gU[2], slope[2] = (S + S.mT) @ U[2], 1.0
    tol = _gaps.choose_tolerance(n, torch.float64, None)
    for cotangents in ((gU, slope), (gU, None), (None, slope)):
        gA, failure = run(U, eigenvalues, *cotangents, "mask", tol)
        assert failure == (1, 1)
        assert torch.equal(gA, gA.mT)
        assert_close(gA, compute_expected(U, eigenvalues, *cotangents, "mask", tol), of_order(n) * n)
        of_last = [None if given is None else given[2:] for given in cotangents]
        assert run(U[2:], eigenvalues[2:], *of_last, "mask", tol)[1] is None


def test_batches_as_the_operator_hands_them_over() -> None:
    """Operators pass any leading dimensions, one matrix, and results that are not contiguous."""
    U, eigenvalues, gU, slope = make_problem(6, 7)
    wanted = compute_expected(U, eigenvalues, gU, slope, "mask", 1e-14)
    shaped = [part.unflatten(0, (2, 3)) for part in (U, eigenvalues, gU, slope)]
    gA = U.new_empty(3, 2, 7, 7).transpose(0, 1)
    with replace_gpu():
        assert _syevd_vjp_tiles.syevd_vjp(gA, *shaped, "mask", 1e-14) is None
        assert_close(gA.flatten(0, 1), wanted, of_order(7) * 7)
        alone = torch.empty(7, 7, dtype=torch.float64)
        single = [part[4] for part in (U, eigenvalues, gU, slope)]
        assert _syevd_vjp_tiles.syevd_vjp(alone, *single, "mask", 1e-14) is None
        assert_close(alone, wanted[4], of_order(7) * 7)


@pytest.mark.parametrize("many", [1, 1000])
def test_strides(run: Run, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to the formula up to rounding, because a library sums in an order of its own for each layout."""
    monkeypatch.setattr(_thresholds, "SPECTRAL_VJP_MANY_ROWS", many)
    U, eigenvalues, gU, slope = make_problem(3, 10)
    gA, _ = run(U.mT.contiguous().mT, eigenvalues, gU.mT.contiguous().mT, slope, "mask", 1e-14)
    wanted = compute_expected(U, eigenvalues, gU, slope, "mask", 1e-14)
    assert_close(gA, wanted, of_order(10) * 10)


@pytest.mark.parametrize("run", places.make_places(run_emulated, run_on_device))
def test_strides_do_not_change_what_the_kernel_computes(run: Run) -> None:
    U, eigenvalues, gU, slope = make_problem(3, 10)
    gA, _ = run(U, eigenvalues, gU, slope, "mask", 1e-14)
    again, _ = run(U.mT.contiguous().mT, eigenvalues, gU.mT.contiguous().mT, slope, "mask", 1e-14)
    assert torch.equal(gA, again)


@pytest.mark.parametrize("n", [7, 40])
def test_cotangents_of_the_last_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With cotangents of some vectors, small matrices take one kernel, larger ones tiles up to a limit."""
    monkeypatch.setattr(_thresholds, "SPECTRAL_VJP_SMALL", 32)
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    U, eigenvalues, gU, slope = make_problem(3, n)
    for cotangents in ((gU[:, -3:], slope[:, -3:]), (gU[:, -1:], None), (None, slope[:, -2:])):
        assert on_cuda.serves_syevd_vjp(U, *cotangents)
        gA = torch.empty_like(U)
        with replace_gpu():
            assert on_cuda.syevd_vjp(gA, U, eigenvalues, *cotangents, "mask", 1e-14) is None
        assert_close(gA, compute_expected(U, eigenvalues, *cotangents, "mask", 1e-14), of_order(n) * n)
    monkeypatch.setattr(_thresholds, "SYEVD_VJP_EXTENDED", n - 1)
    assert not on_cuda.serves_syevd_vjp(U, gU[:, -3:], None)
    assert on_cuda.serves_syevd_vjp(U, gU, slope)
