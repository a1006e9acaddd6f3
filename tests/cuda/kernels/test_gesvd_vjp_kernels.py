"""The gradient of gesvd on CUDA: the kernel for small matrices, run on the CPU, and on a device."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import torch
from kernel_packages import in_torch as _fallback
from stand_ins import replace_gpu
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._kernels.cuda.small import gesvd_vjp_tiles as _gesvd_vjp_tiles

Run = Callable[..., tuple[Tensor, int | None]]
Cotangents = tuple[Tensor | None, Tensor | None, Tensor | None]


def run_emulated(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    cotangents: Cotangents,
    degeneracy: str,
    tol: float,
    reverse_order: bool = False,
) -> tuple[Tensor, int | None]:
    """Run the kernels that ``_gesvd_batch.gesvd_vjp`` launches, emulated on the CPU."""
    gU, gS, gV = cotangents
    gA, reported = S.new_full((len(S), U.shape[-1], V.shape[-1]), 7.0), _items.create_status_cell(U)
    plan = _gesvd_batch.plan_vjp(gA, U, V, gU, gV, S, gS, degeneracy, tol, reported)
    emulated.launch(*plan, reverse_order=reverse_order)
    found = _items.read_first_failure(reported)
    return gA, None if found is None else found[0]


def run_on_device(
    U: Tensor, S: Tensor, V: Tensor, cotangents: Cotangents, degeneracy: str, tol: float
) -> tuple[Tensor, int | None]:
    gU, gS, gV = (None if given is None else given.cuda() for given in cotangents)
    gA = torch.empty((len(S), U.shape[-1], V.shape[-1]), dtype=S.dtype, device="cuda")
    marked = _gesvd_batch.gesvd_vjp(gA, U.cuda(), S.cuda(), V.cuda(), gU, gS, gV, degeneracy, tol)
    return gA.cpu(), None if marked is None else int(marked.int().argmax())


def run_tiles_emulated(
    U: Tensor, S: Tensor, V: Tensor, cotangents: Cotangents, degeneracy: str, tol: float
) -> tuple[Tensor, int | None]:
    """Run ``_gesvd_vjp_tiles.gesvd_vjp`` with emulated kernels."""
    gA = S.new_full((len(S), U.shape[-1], V.shape[-1]), 7.0)
    with replace_gpu():
        marked = _gesvd_vjp_tiles.gesvd_vjp(gA, U, S, V, *cotangents, degeneracy, tol)
    return gA, None if marked is None else int(marked.int().argmax())


def run_tiles_on_device(
    U: Tensor, S: Tensor, V: Tensor, cotangents: Cotangents, degeneracy: str, tol: float
) -> tuple[Tensor, int | None]:
    gU, gS, gV = (None if given is None else given.cuda() for given in cotangents)
    gA = torch.empty((len(S), U.shape[-1], V.shape[-1]), dtype=S.dtype, device="cuda")
    marked = _gesvd_vjp_tiles.gesvd_vjp(gA, U.cuda(), S.cuda(), V.cuda(), gU, gS, gV, degeneracy, tol)
    return gA.cpu(), None if marked is None else int(marked.int().argmax())


@pytest.fixture(
    params=[
        *places.make_places(run_emulated, run_on_device),
        *places.make_places(run_tiles_emulated, run_tiles_on_device, "tiles, "),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def make_problem(
    m: int, n: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Cotangents]:
    """U, S, V and cotangents of three matrices with gaps between their singular values."""
    k, items = min(m, n), 3
    generator = torch.Generator().manual_seed(m + 100 * n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(items, *shape, dtype=torch.float64, generator=generator)

    U, V = (torch.linalg.qr(normal(side, k))[0].mT for side in (m, n))
    S = torch.linspace(3, 0.5, k, dtype=torch.float64).expand(items, k).contiguous()
    given = [part.to(dtype) for part in (normal(k, m), normal(k), normal(k, n))]
    return U.to(dtype), S.to(dtype), V.to(dtype), (given[0], given[1], given[2])


def compute_expected(
    U: Tensor, S: Tensor, V: Tensor, cotangents: Cotangents, degeneracy: str, tol: float
) -> tuple[Tensor, int | None]:
    gA = S.new_empty((len(S), U.shape[-1], V.shape[-1]))
    marked = _fallback.gesvd_vjp(gA, U, S, V, *cotangents, degeneracy, tol)
    return gA, None if marked is None or not marked.any() else int(marked.int().argmax())


@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [
        (1, 1, torch.float64), (6, 8, torch.float64), (9, 4, torch.float64), (16, 16, torch.float64),
        (13, 16, torch.float32), (7, 30, torch.float64), (36, 10, torch.float64),
    ],
)  # fmt: skip
def test_against_the_formula(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    U, S, V, (gU, gS, gV) = make_problem(m, n, dtype)
    tol = _gaps.choose_tolerance(S.shape[-1], dtype, None)
    for cotangents in ((gU, gS, gV), (gU, None, None), (None, gS, None), (None, None, gV)):
        gA, marked = run(U, S, V, cotangents, "mask", tol)
        a, b, c = (None if given is None else given.double() for given in cotangents)
        wanted, _ = compute_expected(U.double(), S.double(), V.double(), (a, b, c), "mask", tol)
        assert marked is None
        assert_close(gA, wanted.to(dtype), of_order(max(m, n)) * max(m, n))


@pytest.mark.parametrize("run", places.make_places(run_tiles_emulated, run_tiles_on_device))
@pytest.mark.parametrize(("m", "n"), [(70, 70), (40, 75), (90, 33)])
def test_several_tiles(run: Run, m: int, n: int) -> None:
    """Equal values lie within a tile, in two tiles, and at zero; the loss of item 2 has a gradient there."""
    U, S, V, (gU, gS, gV) = make_problem(m, n)
    assert gU is not None
    assert gS is not None
    assert gV is not None
    k = min(m, n)
    P = torch.randn(k, k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    S[1, 30:33], S[1, k - 1], S[2, 30:33] = S[1, 31].clone(), 0.0, S[2, 31].clone()
    gU[2], gV[2], gS[2] = (P + P.mT) @ U[2], (P + P.mT) @ V[2], 1.0
    tol = _gaps.choose_tolerance(k, torch.float64, None)
    for cotangents in ((gU, gS, gV), (gU, None, None), (None, None, gV), (None, gS, None)):
        gA, marked = run(U, S, V, cotangents, "mask", tol)
        wanted, ambiguous = compute_expected(U, S, V, cotangents, "mask", tol)
        assert marked == ambiguous == 1
        assert_close(gA, wanted, of_order(max(m, n)) * max(m, n))
        only_even = [None if given is None else given[2:] for given in cotangents]
        _, marked = run(U[2:], S[2:], V[2:], only_even, "mask", tol)
        assert marked is None


def test_order_of_threads_does_not_matter() -> None:
    for m, n in ((7, 13), (18, 17)):
        U, S, V, cotangents = make_problem(m, n)
        one, _ = run_emulated(U, S, V, cotangents, "mask", 1e-14)
        other, _ = run_emulated(U, S, V, cotangents, "mask", 1e-14, reverse_order=True)
        assert torch.equal(one, other)


@pytest.mark.parametrize("degeneracy", ["mask", "lorentz", "clamp", "raise", "nan"])
@pytest.mark.parametrize(("m", "n"), [(9, 9), (6, 11)])
def test_policies_at_close_and_at_zero_values(run: Run, m: int, n: int, degeneracy: str) -> None:
    U, S, V, cotangents = make_problem(m, n)
    S[1, 2:4] = S[1, 3]
    S[2, -2:] = 0.0
    tol = 1e-3
    gA, marked = run(U, S, V, cotangents, degeneracy, tol)
    policy = "mask" if degeneracy == "raise" else degeneracy
    wanted, ambiguous = compute_expected(U, S, V, cotangents, policy, tol)
    if degeneracy == "nan":
        assert marked is None
        gA, wanted = gA[:1], wanted[:1]
    else:
        assert marked == ambiguous == 1
    assert_close(gA, wanted)


def test_what_is_outside_of_the_rows_of_zeros_is_reported(run: Run) -> None:
    U, S, V, (_, _, gV) = make_problem(5, 9)
    assert gV is not None
    S[2, -1] = 0.0
    _, marked = run(U, S, V, (None, None, gV), "mask", 1e-12)
    assert marked == 2
    gV[2, -1] = 0.0
    _, marked = run(U, S, V, (None, None, gV), "mask", 1e-12)
    assert marked is None


@pytest.mark.parametrize(("m", "n"), [(10, 10), (7, 12)])
def test_a_loss_of_the_product_at_zeros_is_reported(run: Run, m: int, n: int) -> None:
    """The loss needs the gap (square A) or the inverse (wide A) of two values of item 1 near zero."""
    U, S, V, _ = make_problem(m, n)
    S[1, -2:] = torch.tensor([3e-16, 1e-16], dtype=torch.float64)
    A = U.mT @ (S[..., None] * V) + torch.randn(
        3, m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    gU, gV = S[..., None] * (V @ A.mT), S[..., None] * (U @ A)
    gS = (U @ A @ V.mT).diagonal(dim1=-2, dim2=-1).contiguous()
    tol = _gaps.choose_tolerance(m, torch.float64, None)
    _, marked = run(U, S, V, (gU, gS, gV), "mask", tol)
    assert marked == compute_expected(U, S, V, (gU, gS, gV), "mask", tol)[1] == 1


def test_a_loss_that_is_even_on_equal_values_is_not_reported(run: Run) -> None:
    """gU = P U, gV = P V with a symmetric P, and equal gS: the gradient does not depend on the tie."""
    U, S, V, (_, gS, _) = make_problem(10, 10)
    assert gS is not None
    S[:, 3:6] = S[:, 4:5].clone()
    gS[:, 3:6] = -2.0
    P = torch.randn(3, 10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    P = P + P.mT
    _, marked = run(U, S, V, (P @ U, gS, P @ V), "mask", 1e-12)
    assert marked is None
    gS[1, 4] = 0.0
    _, marked = run(U, S, V, (P @ U, gS, P @ V), "mask", 1e-12)
    assert marked == 1


def test_ends_of_the_number_range(run: Run) -> None:
    """Gradients are finite at the ends of the range; only a loss that needs a zero gap is reported."""
    U, V = (torch.eye(5, dtype=torch.float64).expand(2, 5, 5).contiguous() for _ in range(2))
    large, small = [1e300, 1e200, 1e50, 0.0, 0.0], [1e-20, 1e-300, 1e-307, 0.0, 0.0]
    S = torch.tensor([large, small], dtype=torch.float64)
    gU, gV, gS = torch.zeros_like(U), torch.zeros_like(V), torch.zeros_like(S)
    gU[:, 0, 1], gV[:, 0, 2], gS[:, :3] = 1.0, 1.0, 1.0
    for cotangents in ((gU, None, gV), (None, gS, None)):
        gA, marked = run(U, S, V, cotangents, "mask", 0.0)
        wanted, _ = compute_expected(U, S, V, cotangents, "mask", 0.0)
        assert marked is None
        assert gA.isfinite().all()
        assert ((gA - wanted).abs() <= 1e-14 * wanted.abs()).all()
    gS[1, 3] = 1.0
    assert run(U, S, V, (None, gS, None), "mask", 0.0)[1] == 1


@pytest.mark.parametrize(("m", "n"), [(7, 7), (6, 9), (12, 5), (18, 30)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rounding_is_not_divided_by_small_gaps(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    """Losses of the space of close values, and of U^T V, need no gaps; that of the last item needs them."""
    U, S, V, (gU, _, gV) = make_problem(m, n, dtype)
    assert gU is not None
    assert gV is not None
    generator = torch.Generator().manual_seed(0)
    W_left, W_right, W_both = (
        torch.randn(3, *shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in ((m, m), (n, n), (m, n))
    )
    group, tight = slice(1, 4), 1e-15
    of_u, of_v = torch.zeros_like(gU), torch.zeros_like(gV)
    of_u[:, group] = U[:, group] @ (W_left + W_left.mT) + V[:, group] @ W_both.mT
    of_v[:, group] = V[:, group] @ (W_right + W_right.mT) + U[:, group] @ W_both
    of_u[2], of_v[2] = gU[2], gV[2]
    units = of_order(max(m, n)) * max(m, n)
    for gap in (1e-12, 1e-9, 1e-6) if dtype == torch.float64 else (1e-6, 1e-4):
        S[:, group] = S[0, 2] - torch.tensor([0.0, gap, 3 * gap], dtype=dtype)
        gA, marked = run(U, S, V, (of_u, None, of_v), "mask", tight)
        assert marked is None
        # With a threshold above its gaps the group is tied, and its gaps do not matter.
        parts = (U.double(), S.double(), V.double())
        exact, _ = compute_expected(*parts, (of_u.double(), None, of_v.double()), "mask", 1e-2)
        assert_close(gA[:2], exact[:2].to(dtype), units)
        bare, _ = compute_expected(U, S, V, (of_u, None, of_v), "nan", tight)
        assert_close(gA[2], bare[2], units)
        assert float(gA[2].abs().max()) > 0.01 / gap


@pytest.mark.parametrize(("m", "n"), [(6, 6), (6, 9), (14, 40)])
def test_rounding_is_not_divided_by_small_values(run: Run, m: int, n: int) -> None:
    """Rounding is not divided by sums of small values either, nor the part of gV outside the rows of V.

    In the last item that part is not rounding, and must be divided.
    """
    U, S, V, (_, _, gV) = make_problem(m, n)
    assert gV is not None
    generator = torch.Generator().manual_seed(0)
    W_left, W_right = (torch.randn(3, m, m, dtype=torch.float64, generator=generator) for _ in range(2))
    group = slice(m - 2, m)
    of_u, of_v = torch.zeros_like(U), torch.zeros_like(V)
    of_u[:, group] = U[:, group] @ (W_left + W_left.mT)
    of_v[:, group] = ((W_right + W_right.mT) @ V)[:, group]
    of_v[2] = gV[2]
    for size in (1e-11, 1e-8, 1e-5):
        S[:, group] = size * torch.tensor([1.5, 1.0], dtype=torch.float64)
        gA, _ = run(U, S, V, (of_u, None, of_v), "mask", 1e-15)
        exact, _ = compute_expected(U, S, V, (of_u, None, of_v), "mask", 1e-3)
        assert_close(gA[:2], exact[:2], of_order(n) * n)
        bare, _ = compute_expected(U, S, V, (of_u, None, of_v), "nan", 1e-15)
        assert_close(gA[2], bare[2], of_order(n) * n)


def store_by_columns(*parts: Tensor) -> list[Tensor]:
    """Return the same matrices in column-major memory."""
    return [part.mT.contiguous().mT for part in parts]


@pytest.mark.parametrize("many", [1, 1000])
def test_strides(run: Run, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands stored by columns give the gradient of the formula.

    Up to rounding, because a library adds up products in an order of its own for each layout. A number that
    is read from the wrong place would be an error as large as the numbers.
    """
    monkeypatch.setattr(_thresholds, "SPECTRAL_VJP_MANY_ROWS", many)
    U, S, V, (gU, gS, gV) = make_problem(8, 12)
    assert gU is not None
    assert gV is not None
    by_columns = store_by_columns(U, V, gU, gV)
    gA, _ = run(by_columns[0], S, by_columns[1], (by_columns[2], gS, by_columns[3]), "mask", 1e-14)
    wanted, _ = compute_expected(U, S, V, (gU, gS, gV), "mask", 1e-14)
    assert_close(gA, wanted, of_order(12) * 12)


@pytest.mark.parametrize("run", places.make_places(run_emulated, run_on_device))
def test_strides_do_not_change_what_the_kernel_computes(run: Run) -> None:
    """Not by a bit: this kernel calls no library that sums in another order for other strides."""
    U, S, V, (gU, gS, gV) = make_problem(8, 12)
    assert gU is not None
    assert gV is not None
    by_columns = store_by_columns(U, V, gU, gV)
    gA, _ = run(U, S, V, (gU, gS, gV), "mask", 1e-14)
    again, _ = run(by_columns[0], S, by_columns[1], (by_columns[2], gS, by_columns[3]), "mask", 1e-14)
    assert torch.equal(gA, again)


def test_batches_as_the_operator_hands_them_over() -> None:
    """Operators pass any leading dimensions, also of a result in which they cannot be merged into one."""
    U, S, V, (gU, gS, gV) = make_problem(9, 11)
    assert gU is not None
    assert gS is not None
    assert gV is not None
    parts = [part[:2].repeat(3, *[1] * (part.dim() - 1)) for part in (U, S, V, gU, gS, gV)]
    U, S, V, gU, gS, gV = (part.unflatten(0, (2, 3)) for part in parts)
    gA = S.new_empty(3, 2, 9, 11).transpose(0, 1)
    with replace_gpu():
        assert _gesvd_vjp_tiles.gesvd_vjp(gA, U, S, V, gU, gS, gV, "mask", 1e-14) is None
    wanted = torch.empty_like(gA)
    _fallback.gesvd_vjp(wanted, U, S, V, gU, gS, gV, "mask", 1e-14)
    assert_close(gA, wanted, of_order(11) * 11)
