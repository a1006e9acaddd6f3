"""gelqf and lstsq: factors at any conditioning and scale, LAPACK signs, matrices without full rank."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.linalg
import torch
from device import DEVICE, KERNELS
from hypothesis import given, settings
from paths import PATHS, take_path
from samples import Shape
from tolerances import HOUSEHOLDER, assert_all_close, of_order
from torch import Tensor, func
from torch.autograd import grad

import lapgrad
from lapgrad._kernels import table as _kernels

DTYPES = (torch.float64, torch.float32)
SHAPES: tuple[Shape, ...] = (
    (1, 1), (7, 7), (8, 20), (20, 8), (33, 33), (70, 90), (90, 70), (40, 600),
    (17, 4, 16), (17, 16, 4), (17, 8, 8), (17, 24, 24), (3, 40, 50), (3, 50, 40),
)  # fmt: skip


def draw_normal(shape: Shape, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .to(DEVICE)
        .to(dtype)
    )


def assert_factors(A: Tensor, Q: Tensor, L: Tensor) -> None:
    """Check that Q is orthogonal, L triangular and L Q = A, relative to the length of each row."""
    rank, eps = min(A.shape[-2:]), torch.finfo(A.dtype).eps
    allowed = HOUSEHOLDER * max(A.shape[-2:]) * eps
    assert Q.shape == (*A.shape[:-2], rank, A.shape[-1])
    assert L.shape == (*A.shape[:-2], A.shape[-2], rank)
    assert torch.equal(L, L.tril())
    Q, L, A = Q.double(), L.double(), A.double()
    # Numbers of the size of 1 whatever the scale of the row: a power of two changes nothing.
    scale = torch.exp2(-A.abs().amax(-1, keepdim=True).clamp(min=2.3e-308).log2().round())
    A, L = A * scale, L * scale
    assert (Q @ Q.mT - torch.eye(rank, dtype=torch.float64, device=DEVICE)).abs().max() <= allowed
    length = A.norm(dim=-1, keepdim=True)
    assert ((L @ Q - A).norm(dim=-1, keepdim=True) <= allowed * length).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factors_and_lapacks_signs(dtype: torch.dtype, path: str) -> None:
    """Gaussian matrices, whose pivots have either sign in LAPACK, and are positive on CUDA."""
    with take_path(path):
        for shape in SHAPES:
            A = draw_normal(shape, dtype)
            Q, L = lapgrad.gelqf(A)
            assert_factors(A, Q, L)
            signs = torch.linalg.qr(A.double().mT).R.mT.diagonal(dim1=-2, dim2=-1).sign()
            expected = signs if DEVICE.type == "cpu" else torch.ones_like(signs)
            assert torch.equal(L.diagonal(dim1=-2, dim2=-1).sign(), expected.to(dtype))
            assert_all_close(lapgrad.gelqf(A, mode="l"), L, 50.0 * max(shape[-2:]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", ["reduced", "l"])
def test_positive_is_the_cholesky_factor(mode: Any, path: str) -> None:
    with take_path(path):
        for shape in ((5, 9), (40, 130), (17, 4, 16)):
            A = draw_normal(shape)
            result = lapgrad.gelqf(A, mode=mode, positive=True)
            L = result if isinstance(result, Tensor) else result.L
            assert_all_close(L, torch.linalg.cholesky(A @ A.mT), 1000.0)


@pytest.mark.parametrize("shape", [(4, 6), (6, 6), (6, 4), (100, 300)], ids=str)
def test_agrees_with_scipy(shape: Shape) -> None:
    A = draw_normal(shape)
    q, r = scipy.linalg.qr(A.mT.cpu().numpy(), mode="economic")
    expected = fix_signs(torch.from_numpy(q.T.copy()).to(DEVICE), torch.from_numpy(r.T.copy()).to(DEVICE))
    assert_all_close(list(lapgrad.gelqf(A)), list(expected), 50.0 * max(shape))


def fix_signs(Q: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """Return LAPACK's factors, with the signs that lapgrad uses: on CUDA the diagonal is positive."""
    if DEVICE.type == "cpu":
        return Q, L
    signs = torch.where(L.detach().diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(L.dtype)
    return signs[..., :, None] * Q, L * signs[..., None, :]


@pytest.mark.parametrize("mode", ["reduced", "l"])
@pytest.mark.parametrize("shape", [(5, 8), (6, 6), (3, 4, 7)], ids=str)
def test_gradients_agree_with_torch(shape: Shape, mode: Any) -> None:
    A = draw_normal(shape).requires_grad_()
    columns, R = torch.linalg.qr(A.mT)
    Q, L = fix_signs(columns.mT, R.mT)
    loss = L.sin().sum() if mode == "l" else (Q.sin() * L.cos()[..., :, :1]).sum()
    result = lapgrad.gelqf(A, mode=mode)
    ours = result.sin().sum() if mode == "l" else (result.Q.sin() * result.L.cos()[..., :, :1]).sum()
    assert_all_close(grad(ours, A), grad(loss, A), 2000.0)


def make_graded(shape: Shape, decades: float, dtype: torch.dtype) -> Tensor:
    """Return a matrix whose row norms fall by that many decades from the first row to the last."""
    return draw_normal(shape, dtype) * torch.logspace(
        0, -decades, shape[-2], dtype=torch.float64, device=DEVICE
    )[:, None].to(dtype)


@pytest.mark.parametrize("path", ["default", "no lanes", "two threads inside"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_graded_and_badly_scaled_rows(dtype: torch.dtype, path: str) -> None:
    """Each row is as exact as its own size allows, down to denormal numbers and up to the largest."""
    decades = 250 if dtype is torch.float64 else 30
    info = torch.finfo(dtype)
    with take_path(path):
        for shape in ((6, 6), (40, 60), (60, 40), (9, 5, 8), (9, 8, 5)):
            for A in (
                make_graded(shape, decades, dtype),
                make_graded(shape, decades, dtype).flip(-2),
                make_graded(shape, decades, dtype).mT.contiguous().mT,
                draw_normal(shape, dtype) * (info.max / 1e3),
                draw_normal(shape, dtype) * info.tiny * 1e3,
            ):
                assert_factors(A, *lapgrad.gelqf(A))
                L = lapgrad.gelqf(A, mode="l")
                assert_all_close(L, lapgrad.gelqf(A).L, 50.0 * max(shape[-2:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_condition_does_not_matter(dtype: torch.dtype) -> None:
    """Q is orthogonal to rounding also if the condition number of A is far above 1 / sqrt(eps)."""
    i = torch.arange(150, dtype=torch.float64, device=DEVICE)
    hilbert = 1.0 / (i[:, None] + i + 1.0)
    nearly_parallel = torch.ones(150, 300, dtype=torch.float64, device=DEVICE) + 1e-12 * draw_normal(
        (150, 300)
    )
    powers = torch.linspace(0.0, 1.0, 200, dtype=torch.float64, device=DEVICE) ** i[:100, None]
    for A in (hilbert, nearly_parallel, powers, powers.mT, hilbert[:20, :20].expand(9, 20, 20)):
        A = A.to(dtype)
        assert_factors(A, *lapgrad.gelqf(A))


@pytest.mark.parametrize("shape", [(5, 5), (3, 6), (6, 3), (40, 50), (4, 5, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_identity_and_diagonal(shape: Shape, dtype: torch.dtype) -> None:
    """Rows that are reduced already are left alone, as in LAPACK: L is A itself, up to signs on CUDA."""
    identity = torch.eye(*shape[-2:], dtype=dtype, device=DEVICE).expand(shape)
    for A in (identity, -identity, identity * torch.arange(1.0, shape[-1] + 1, dtype=dtype, device=DEVICE)):
        Q, L = lapgrad.gelqf(A)
        unit = torch.eye(min(shape[-2:]), shape[-1], dtype=dtype, device=DEVICE).expand_as(Q)
        rows, factor = fix_signs(unit, A[..., : min(shape[-2:])])
        assert torch.equal(Q, rows)
        assert torch.equal(L, factor)
        assert torch.equal(lapgrad.gelqf(A, mode="l"), L)
        assert torch.equal(lapgrad.gelqf(A, positive=True).L, L.abs())


def make_rank_deficient(shape: Shape, kind: str) -> Tensor:
    A = draw_normal(shape)
    rank = min(shape[-2:])
    if kind == "zero":
        A.zero_()
    elif kind == "zero row":
        A[..., rank - 1, :] = 0.0
    elif kind == "repeated row":
        A[..., rank - 1, :] = A[..., 0, :]
    else:
        A[..., rank - 1, :] = 3.0 * A[..., 0, :] - A[..., 1, :]
    return A


KINDS = ("zero", "zero row", "repeated row", "sum of rows")


@pytest.mark.parametrize("path", ["default", "no lanes", "two threads inside"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (6, 4), (40, 50), (50, 40)], ids=str)
def test_without_full_rank(shape: Shape, kind: str, path: str) -> None:
    """The factors are as good as ever; a derivative is refused, naming the item, in every mode."""
    A = make_rank_deficient(shape, kind)
    first = 0 if kind == "zero" else min(shape) - 1
    with take_path(path):
        assert_factors(A, *lapgrad.gelqf(A))
        batch = draw_normal((2, 3, *shape))
        batch[1, 2] = A
        for given_, item in ((A, ()), (batch, (1, 2))):
            for mode in ("reduced", "l"):
                leaf = given_.clone().requires_grad_()
                result = lapgrad.gelqf(leaf, mode=mode)
                for part in [result] if isinstance(result, Tensor) else result:
                    assert part.isfinite().all()
                    with pytest.raises(lapgrad.RankDeficientError, match=f"row {first} depends") as caught:
                        grad(part.sum(), leaf, retain_graph=True)
                    assert (caught.value.item, caught.value.index) == (item, first)
                with pytest.raises(lapgrad.RankDeficientError):
                    func.jvp(lambda A, mode=mode: lapgrad.gelqf(A, mode=mode), (given_,), (given_,))


@pytest.mark.parametrize("path", ["default", "no lanes", "two threads inside"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_not_finite(value: float, path: str) -> None:
    with take_path(path):
        for shape in ((3, 5), (5, 5), (5, 3), (40, 50), (50, 40), (100, 300)):
            for row, column in itertools.product((0, shape[0] - 1), (0, shape[1] - 1)):
                for mode in ("reduced", "l"):
                    batch = torch.eye(*shape, dtype=torch.float64, device=DEVICE).repeat(4, 1, 1)
                    batch[2, row, column] = value
                    for A, item in ((batch, (2,)), (batch[2], ())):
                        with pytest.raises(
                            lapgrad.NonFiniteError, match=r"gelqf: A.*NaN or infinity"
                        ) as caught:
                            lapgrad.gelqf(A, mode=mode)
                        assert caught.value.item == item


def test_unknown_mode() -> None:
    with pytest.raises(lapgrad.OptionError, match="mode must be one of 'reduced', 'l', got 'complete'"):
        lapgrad.gelqf(torch.eye(3, device=DEVICE), mode="complete")


def test_each_result_alone() -> None:
    """A cotangent of Q alone, of L alone, and of both add up."""
    for shape in ((3, 5), (5, 3), (40, 50), (50, 40), (9, 4, 4)):
        A = draw_normal(shape).requires_grad_()
        Q, L = lapgrad.gelqf(A)
        of_q, of_l, of_both = (
            grad(loss, A, retain_graph=True)[0]
            for loss in (Q.sin().sum(), L.sin().sum(), Q.sin().sum() + L.sin().sum())
        )
        assert_all_close(of_q + of_l, of_both, 2000.0)


matrices = st.tuples(
    st.integers(0, 3), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**20), st.sampled_from(DTYPES)
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(matrices, st.booleans(), st.integers(-20, 20))
def test_factors_of_any_matrix(
    what: tuple[int, int, int, int, torch.dtype], positive: bool, power: int
) -> None:
    batch, m, n, seed, dtype = what
    A = draw_normal((batch, m, n) if batch else (m, n), dtype, seed) * 2.0**power
    Q, L = lapgrad.gelqf(A, positive=positive)
    if A.numel():
        assert_factors(A, Q, L)
    if positive:
        assert (L.diagonal(dim1=-2, dim2=-1) >= 0).all()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(matrices, st.sampled_from(["reduced", "l"]))
def test_forward_and_reverse_mode_are_adjoint(what: tuple[int, int, int, int, Any], mode: Any) -> None:
    """<g, J d> = <J^T g, d>."""
    batch, m, n, seed, _ = what
    shape = (batch, m, n) if batch else (m, n)
    A = draw_normal(shape, seed=seed) + 3.0 * torch.eye(m, n, dtype=torch.float64, device=DEVICE)
    d = draw_normal(shape, seed=seed + 1)

    def f(A: Tensor) -> tuple[Tensor, ...]:
        result = lapgrad.gelqf(A, mode=mode)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    results, pull_back = func.vjp(f, A)
    g = tuple(draw_normal(tuple(part.shape), seed=seed + 2) for part in results)
    tangents = func.jvp(f, (A,), (d,))[1]
    forward = sum(float((one * other).sum()) for one, other in zip(g, tangents, strict=True))
    reverse = float((pull_back(g)[0] * d).sum())
    assert abs(forward - reverse) <= 1e-10 * max(1.0, abs(forward))


def test_numpy_layouts_do_not_matter() -> None:
    """Column-major input gives the same bits as row-major."""
    A = draw_normal((30, 45))
    fortran = torch.from_numpy(np.asfortranarray(A.cpu().numpy())).to(DEVICE)
    assert_all_close(lapgrad.gelqf(fortran), tuple(lapgrad.gelqf(A)), 0)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (5, 5), (40, 60), (60, 40), (7, 4, 9), (7, 9, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lstsq_agrees_with_torch_and_scipy(shape: Shape, dtype: torch.dtype) -> None:
    *batch, m, n = shape
    A = draw_normal(shape, dtype) + 4.0 * torch.eye(m, n, dtype=dtype, device=DEVICE)
    B = draw_normal((*batch, m, 3), dtype, seed=1)
    X = lapgrad.linalg.lstsq(A, B)
    theirs = torch.linalg.lstsq(A.double().cpu(), B.double().cpu(), driver="gelsd")  # on the CPU only
    assert_all_close(X, theirs.solution.to(DEVICE, dtype), 500.0)
    if not batch:
        expected = scipy.linalg.lstsq(A.double().cpu().numpy(), B.double().cpu().numpy())[0]
        assert_all_close(X, torch.from_numpy(expected).to(DEVICE).to(dtype), 500.0)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (5, 5)], ids=str)
def test_gradients_of_lstsq_agree_with_torch(shape: Shape) -> None:
    A = (draw_normal(shape) + 4.0 * torch.eye(*shape, dtype=torch.float64, device=DEVICE)).requires_grad_()
    B = draw_normal((shape[0], 2), seed=1).requires_grad_()
    ours = lapgrad.linalg.lstsq(A, B)
    theirs = torch.linalg.lstsq(A.cpu(), B.cpu(), driver="gelsd").solution  # on the CPU only
    assert_all_close(grad(ours.sin().sum(), (A, B)), grad(theirs.sin().sum(), (A, B)), 2000.0)


@pytest.mark.parametrize(("dtype", "exponent"), [(torch.float32, 80), (torch.float64, 700)])
def test_gradients_of_lstsq_do_not_depend_on_scale(dtype: torch.dtype, exponent: int) -> None:
    """With A and B times 2^e, the gradient of A is 2^-e times as large; A^-2 alone would not be in range."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(shape, generator=generator, dtype=dtype).to(DEVICE) for shape in ((7, 3), (7, 2)))

    def gradient(scale: float) -> Tensor:
        leaf = (A * scale).requires_grad_()
        return torch.autograd.grad(lapgrad.linalg.lstsq(leaf, B * scale).sum(), leaf)[0]

    for scale in (2.0**exponent, 2.0**-exponent):
        assert_all_close(gradient(scale) * scale, gradient(1.0), of_order(7))


def test_lstsq_residual_and_length() -> None:
    """A tall system leaves a residual orthogonal to A; of a wide one the smallest solution is taken."""
    tall, wide, right = draw_normal((50, 7)), draw_normal((7, 50)), draw_normal((50, 2), seed=1)
    X = lapgrad.linalg.lstsq(tall, right)
    assert (tall.mT @ (right - tall @ X)).abs().max() < 1e-12
    X = lapgrad.linalg.lstsq(wide, right[:7])
    assert_all_close(wide @ X, right[:7], 500.0)
    null_space = torch.linalg.svd(wide).Vh[7:]
    assert (null_space @ X).abs().max() < 1e-13


def test_lstsq_keeps_what_the_normal_equations_lose() -> None:
    """At a condition number of 1e10, A^T A is singular in float64; a factorisation loses 10 digits of 16."""
    U, _, V = torch.linalg.svd(draw_normal((30, 6)), full_matrices=False)
    A = U * torch.logspace(0, -10, 6, dtype=torch.float64, device=DEVICE) @ V
    wanted = draw_normal((6, 1), seed=1)
    X = lapgrad.linalg.lstsq(A, A @ wanted)
    assert (X - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (6, 4)], ids=str)
def test_lstsq_without_full_rank(shape: Shape, kind: str) -> None:
    tall = shape[0] > shape[1]
    A = make_rank_deficient(shape[::-1], kind).mT if tall else make_rank_deficient(shape, kind)
    batch = draw_normal((3, *shape))
    batch[2] = A
    right = draw_normal((shape[0], 2))
    line = "column" if tall else "row"
    for given_, item in ((A, ()), (batch, (2,))):
        with pytest.raises(
            lapgrad.RankDeficientError, match=rf"linalg.lstsq: A.*{line} \d depends"
        ) as caught:
            lapgrad.linalg.lstsq(given_, right)
        assert caught.value.item == item
    with pytest.raises(lapgrad.NonFiniteError, match=r"linalg.lstsq: A"):
        lapgrad.linalg.lstsq(A * torch.nan, right)


def test_rcond() -> None:
    """A large rcond refuses ill-conditioned matrices; with 0 and by default they are solved with."""
    A = torch.diag(torch.tensor([1.0, 1e-3, 1e-10], dtype=torch.float64, device=DEVICE))
    B = torch.ones(3, 1, dtype=torch.float64, device=DEVICE)
    expected = torch.tensor([[1.0], [1e3], [1e10]], dtype=torch.float64, device=DEVICE)
    for rcond in (None, 0.0, 1e-11):
        assert_all_close(lapgrad.linalg.lstsq(A, B, rcond=rcond), expected)
    with pytest.raises(lapgrad.RankDeficientError, match="row 2"):
        lapgrad.linalg.lstsq(A, B, rcond=1e-9)
    with pytest.raises(lapgrad.RankDeficientError, match="row 1"):
        lapgrad.linalg.lstsq(A, B, rcond=1e-2)


def test_one_matrix_for_a_batch_is_factorised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _kernels.lookup("gelqf", torch.empty(0, device=DEVICE))
    seen: list[tuple[int, ...]] = []

    def counting(L: Tensor, Q: Tensor, A: Tensor, positive: bool) -> Any:
        seen.append(tuple(A.shape))
        return kernel(L, Q, A, positive)

    monkeypatch.setitem(KERNELS, "gelqf", counting)
    for shortcut in ("lstsq_shortcut", "gelqf_shortcut"):  # they do not call the kernel
        monkeypatch.delitem(KERNELS, shortcut, raising=False)
    A, B = draw_normal((4, 6)), draw_normal((5, 3, 4, 2))
    X = lapgrad.linalg.lstsq(A, B)
    assert seen == [(4, 6)]
    assert_all_close(X, torch.linalg.pinv(A) @ B, 500.0)
