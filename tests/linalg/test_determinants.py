"""inverse, det and slogdet where matrices are singular, nearly so, or far out of range."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from device import DEVICE, KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PATHS, take_path
from samples import Shape
from sized import sample
from tolerances import assert_all_close, of_order
from torch import Tensor, func

import lapgrad
from lapgrad._kernels import table as _kernels
from lapgrad._torch import lu as torch_lu

Rows = list[list[Fraction]]

#: The factors are those of A + E for a rounding error E of A; cofactors are sums of products of entries.
ROUNDING = 100.0
#: With scaled rows, pivots are not the largest entries of the unscaled matrix, so that the factors grow.
OTHER_PIVOTS = 10.0


def compute_exact_det(rows: Rows) -> Fraction:
    """Return the exact determinant, by elimination in rational numbers."""
    rows, sign = [list(row) for row in rows], 1
    product = Fraction(1)
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        product *= rows[k][k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return sign * product


def make_exact(A: Tensor) -> Rows:
    return [[Fraction(x) for x in row] for row in A.tolist()]


def remove_rows_and_columns(
    rows: Rows, dropped_rows: tuple[int, ...], dropped_columns: tuple[int, ...]
) -> Rows:
    kept = range(len(rows))
    return [[rows[i][j] for j in kept if j not in dropped_columns] for i in kept if i not in dropped_rows]


def compute_exact_cofactors(A: Tensor) -> Tensor:
    n, rows = A.shape[-1], make_exact(A)
    entries = [
        [
            float((-1) ** (i + j) * compute_exact_det(remove_rows_and_columns(rows, (i,), (j,))))
            for j in range(n)
        ]
        for i in range(n)
    ]
    return torch.tensor(entries, dtype=torch.float64, device=DEVICE)


def compute_exact_second_derivative(A: Tensor) -> Tensor:
    """d^2 det / da_ij da_kl: a signed minor with two rows and two columns left out."""
    n, rows = A.shape[-1], make_exact(A)
    second = torch.zeros(n, n, n, n, dtype=torch.float64, device=DEVICE)
    for (i, k), (j, m) in itertools.product(itertools.combinations(range(n), 2), repeat=2):
        minor = float(
            (-1) ** (i + j + k + m) * compute_exact_det(remove_rows_and_columns(rows, (i, k), (j, m)))
        )
        second[i, j, k, m] = second[k, m, i, j] = minor
        second[i, m, k, j] = second[k, j, i, m] = -minor
    return second


def make_of_rank(n: int, rank: int, integers: bool, seed: int = 0, batch: Shape = ()) -> Tensor:
    """Return a matrix of that rank: exactly with ``integers``, else up to rounding."""
    generator = torch.Generator().manual_seed(100 * n + 10 * rank + seed)
    shapes = (*batch, n, rank), (*batch, rank, n)
    if integers:
        left, right = (
            torch.randint(-3, 4, shape, generator=generator, dtype=torch.float64).to(DEVICE)
            for shape in shapes
        )
    else:
        left, right = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE) for shape in shapes
        )
    return left @ right


def compute_gradient(f: Any, A: Tensor) -> Tensor:
    return torch.autograd.grad(f(A := A.detach().requires_grad_()).sum(), A)[0]


def compute_relative_error(actual: Tensor, expected: Tensor, scale: Tensor) -> float:
    return float((actual.double() - expected).abs().max() / scale.abs().max().clamp_min(1e-300))


RANKS = [
    pytest.param(n, n - missing, integers, id=f"n={n} rank={n - missing} {kind}")
    for n in (1, 2, 3, 5, 6)
    for missing in range(min(n, 4) + 1)
    for integers, kind in ((True, "exact"), (False, "rounded"))
]


@pytest.fixture(params=["core", "fallback"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled kernels, or those in plain PyTorch."""
    if request.param == "fallback":
        for routine in ("det", "det_vjp", "slogdet", "slogdet_vjp", "inverse", "inverse_vjp"):
            _kernels.lookup(routine, torch.empty(0, device=DEVICE))
            monkeypatch.setitem(KERNELS, routine, _kernels._ELSEWHERE[routine])
    return request.param


@pytest.mark.parametrize(("n", "rank", "integers"), RANKS)
def test_first_derivatives_at_every_rank(n: int, rank: int, integers: bool, kernels: str) -> None:
    """They equal cofactors in rational arithmetic: backward and forward mode, alone and in a batch."""
    eps = torch.finfo(torch.float64).eps
    A = make_of_rank(n, rank, integers)
    expected, size = compute_exact_cofactors(A), A.abs().max().clamp_min(1.0) ** (n - 1)
    assert compute_relative_error(compute_gradient(lapgrad.det, A), expected, size) <= ROUNDING * n * eps
    mixed = torch.stack(
        [torch.eye(n, dtype=A.dtype, device=DEVICE), A, 2.0 * torch.eye(n, dtype=A.dtype, device=DEVICE)]
    )
    assert (
        compute_relative_error(compute_gradient(lapgrad.det, mixed)[1], expected, size) <= ROUNDING * n * eps
    )
    tangent = torch.cos(torch.arange(n * n, dtype=A.dtype, device=DEVICE)).view(n, n)
    pushed = func.jvp(lapgrad.det, (A,), (tangent,))[1]
    assert abs(float(pushed - (expected * tangent).sum())) <= ROUNDING * n * n * eps * float(size)


@pytest.mark.parametrize(("n", "rank", "integers"), RANKS)
@pytest.mark.parametrize("modes", ["reverse", "forward over reverse", "reverse over forward", "forward"])
def test_second_derivatives_at_every_rank(n: int, rank: int, integers: bool, modes: str) -> None:
    """They equal minors in rational arithmetic, also where those of torch are wrong or NaN."""
    A = make_of_rank(n, rank, integers)
    outer, inner = {
        "reverse": (func.jacrev, func.jacrev),
        "forward over reverse": (func.jacfwd, func.jacrev),
        "reverse over forward": (func.jacrev, func.jacfwd),
        "forward": (func.jacfwd, func.jacfwd),
    }[modes]
    actual, expected = outer(inner(lapgrad.det))(A), compute_exact_second_derivative(A)
    size = A.abs().max().clamp_min(1.0) ** max(n - 2, 0)
    assert compute_relative_error(actual, expected, size) <= 1000 * n * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("missing", [0, 1, 2, 3, 4])
def test_third_derivatives(missing: int) -> None:
    """det(A + t H) is a polynomial in t: its third derivative from values at exact points."""
    n = 5
    A, H = make_of_rank(n, n - missing, True), make_of_rank(n, n, True, seed=1)
    values = [compute_exact_det(make_exact(A + t * H)) for t in range(-n, n + 1)]
    # The coefficient of t^3 by Lagrange interpolation in rational numbers.
    nodes = [Fraction(t) for t in range(-n, n + 1)]
    coefficient = Fraction(0)
    for i, value in enumerate(values):
        polynomial = [Fraction(1)]
        for j, node in enumerate(nodes):
            if j != i:
                shifted = [Fraction(0), *polynomial]
                polynomial = [
                    (a - node * b) / (nodes[i] - node)
                    for a, b in zip(shifted, [*polynomial, Fraction(0)], strict=True)
                ]
        coefficient += value * polynomial[3]

    def along(t: Tensor) -> Tensor:
        return lapgrad.det(A + t * H)

    expected = 6.0 * float(coefficient)
    for third in (
        func.grad(func.grad(func.grad(along))),
        func.jacfwd(func.jacfwd(func.jacfwd(along))),
        func.jacfwd(func.grad(func.grad(along))),
    ):
        actual = float(third(torch.zeros((), dtype=torch.float64, device=DEVICE)))
        assert abs(actual - expected) <= 1e-9 * max(1.0, abs(expected))


@pytest.mark.parametrize("n", [4, 8, 30, 40])
@pytest.mark.parametrize("smallest", [1e-4, 1e-8, 1e-12, 1e-16, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_near_a_singular_matrix_no_digits_are_lost(n: int, smallest: float, dtype: torch.dtype) -> None:
    """One singular value goes to zero, and the cofactors stay as accurate as those of a regular matrix."""
    generator = torch.Generator().manual_seed(n)
    U, V = (
        torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator).to(DEVICE))[0]
        for _ in range(2)
    )
    s = torch.linspace(1.5, 0.5, n, dtype=torch.float64, device=DEVICE)
    s[-1] = smallest
    A = ((U * s) @ V.mT).to(dtype)
    others = torch.stack([torch.cat((s[:i], s[i + 1 :])).prod() for i in range(n)])
    expected = torch_lu.det(U) * torch_lu.det(V) * (U * others) @ V.mT
    error = compute_relative_error(compute_gradient(lapgrad.det, A), expected, expected)
    assert error <= ROUNDING * torch.finfo(dtype).eps


@pytest.mark.parametrize("n", [6, 40])
def test_graded_matrices(n: int) -> None:
    """Rows and columns of very different size: D1 A D2 has det(D1) det(D2) det(A)."""
    A = sample("det", n, {}).args[0]
    powers = 2.0 ** torch.linspace(-30, 30, n, dtype=torch.float64, device=DEVICE).round()
    graded = powers[:, None] * A * powers.flip(0)[None, :]
    scale = float(powers.log2().sum()) * 2
    expected = lapgrad.det(A) * 2.0**scale
    assert_all_close(lapgrad.det(graded) / expected, torch.ones_like(expected), of_order(n))
    # cof(D1 A D2) = det(D1) det(D2) D1^-1 cof(A) D2^-1, entry by entry.
    found = compute_gradient(lapgrad.det, graded) * powers[:, None] * powers.flip(0)[None, :] / 2.0**scale
    units = of_order(n) + _of_elimination(A, powers[:, None] * powers.flip(0)[None, :])
    assert_all_close(found, compute_gradient(lapgrad.det, A), units)


def _of_elimination(A: Tensor, factors: Tensor) -> float:
    """Return the tolerance, in eps, of cofactors of ``A`` from factors with the pivots of ``factors * A``.

    Its pivots are not the largest ones of A, so that L and U grow. With these factors (scaled back) an
    inverse errs by up to eps |A^-1| |L| |U| |A^-1|, entry by entry. At n = 40 that is 2000 units; 145
    are seen.
    """
    P, L, U = torch.lu_unpack(*torch_lu.lu_factor(factors * A))
    grown = (P @ (L.abs() @ U.abs())) / factors
    inverse = torch_lu.inv(A).abs()
    return float((inverse @ grown @ inverse).max() / inverse.max())


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 33, 40])
@pytest.mark.parametrize("batched", [False, True])
def test_permutations_identity_and_zero(n: int, batched: bool, kernels: str) -> None:
    generator = torch.Generator().manual_seed(n)
    for _ in range(5):
        order = torch.randperm(n, generator=generator).to(DEVICE)
        P = torch.eye(n, dtype=torch.float64, device=DEVICE)[order]
        parity = float((-1) ** sum(a > b for a, b in itertools.combinations(order.tolist(), 2)))
        if batched:
            P = P.expand(3, n, n)
        sign, logarithm = lapgrad.slogdet(P)
        assert (sign == parity).all()
        assert (logarithm == 0.0).all()
        assert (lapgrad.det(P) == parity).all()
        assert torch.equal(lapgrad.inverse(P), P.mT.contiguous())
        assert torch.equal(compute_gradient(lapgrad.det, P), parity * P)
    zero = torch.zeros((3, n, n) if batched else (n, n), dtype=torch.float64, device=DEVICE)
    sign, logarithm = lapgrad.slogdet(zero)
    assert (sign == 0.0).all()
    assert (logarithm == -math.inf).all()
    assert (lapgrad.det(zero) == 0.0).all()
    assert torch.equal(compute_gradient(lapgrad.det, zero), torch.full_like(zero, float(n == 1)))


def test_nilpotent_matrix() -> None:
    """Every pivot is zero, and yet one cofactor is not."""
    for n in (2, 3, 6, 33):
        A = torch.zeros(n, n, dtype=torch.float64, device=DEVICE)
        A.diagonal(1).fill_(1.0)
        expected = torch.zeros_like(A)
        expected[-1, 0] = (-1.0) ** (n - 1)
        assert_all_close(compute_gradient(lapgrad.det, A), expected)


@pytest.mark.cpu
@pytest.mark.parametrize("items", [1, 1000])
def test_gradient_of_single_entries_is_exact(items: int) -> None:
    A = torch.randn(items, 1, 1, dtype=torch.float64)
    cotangent = torch.randn(items, dtype=torch.float64)
    gradient = compute_gradient(lambda A: (lapgrad.det(A) * cotangent).sum(), A)
    assert torch.equal(gradient.flatten(), cotangent)


def test_matrices_without_rows() -> None:
    for batch in ((), (3,), (0,)):
        A = torch.empty(*batch, 0, 0, device=DEVICE)
        assert torch.equal(lapgrad.det(A), torch.ones(batch, device=DEVICE))
        sign, logarithm = lapgrad.slogdet(A)
        assert torch.equal(sign, torch.ones(batch, device=DEVICE))
        assert torch.equal(logarithm, torch.zeros(batch, device=DEVICE))
        assert lapgrad.inverse(A).shape == A.shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1e5, 1e-5])
@pytest.mark.parametrize("n", [8, 24, 300])
def test_out_of_range(n: int, factor: float, dtype: torch.dtype, kernels: str) -> None:
    """Logarithms stay finite where determinants are infinite or zero; products on the way do not overflow."""
    A = sample("det", n, {}, dtype=dtype).args[0]
    sign, logarithm = lapgrad.slogdet(factor * A)
    expected = torch_lu.slogdet((factor * A).double())
    assert float(sign) == float(expected.sign)
    units = of_order(n) * n
    assert_all_close(logarithm, expected.logabsdet.to(dtype), units)
    gradients = compute_gradient(lambda X: lapgrad.slogdet(X)[1], factor * A) * factor
    assert_all_close(gradients, compute_gradient(lambda X: lapgrad.slogdet(X)[1], A), units)
    d = float(lapgrad.det(factor * A))
    if expected.logabsdet > math.log(torch.finfo(dtype).max):
        assert d == math.inf * float(sign)
    elif expected.logabsdet < math.log(torch.finfo(dtype).tiny) - 40:
        assert d == 0.0
    # Half of the rows large and half of them small: the determinant is that of A.
    rows = torch.ones(n, 1, dtype=dtype, device=DEVICE)
    rows[: n // 2], rows[n - n // 2 :] = 2.0**20, 2.0**-20
    rows = rows ** (5 if dtype == torch.float64 else 1)
    units = OTHER_PIVOTS * of_order(n)
    assert_all_close(lapgrad.det(rows * A), lapgrad.det(A), units)
    assert_all_close(compute_gradient(lapgrad.det, rows * A) * rows, compute_gradient(lapgrad.det, A), units)


def test_cofactors_of_a_determinant_that_overflows() -> None:
    """det A is infinite, and most of its cofactors are numbers."""
    for pivots in ([1e300, 1e200, 1e-50, 1.0], [1e-300, 1e-200, 1e50, 1.0]):
        for n in (4, 40):
            diagonal = torch.ones(n, dtype=torch.float64, device=DEVICE)
            diagonal[:4] = torch.tensor(pivots, dtype=torch.float64, device=DEVICE)
            A = torch.diag(diagonal)
            assert lapgrad.det(A) in (0.0, math.inf)
            found = compute_gradient(lapgrad.det, A).diagonal()
            # Without the largest (or smallest) entry, the product of the others is in range.
            assert abs(float(found[0]) / (pivots[1] * pivots[2]) - 1.0) < 1e-14


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 4, 8, 9, 24, 33, 65])
def test_singular_matrices_are_named(n: int, path: str) -> None:
    with take_path(path):
        A = sample("inverse", n, {}, batch=(2, 3)).args[0]
        A[1, 0] = 0.0
        with pytest.raises(
            lapgrad.SingularMatrixError, match=r"^inverse: A\[1, 0\] is singular: pivot 1 "
        ) as caught:
            lapgrad.inverse(A)
        assert (caught.value.item, caught.value.index) == ((1, 0), 0)
        with pytest.raises(lapgrad.SingularMatrixError, match=r"^inverse: A is singular"):
            lapgrad.inverse(A[1, 0])
        copy = A.clone()
        with pytest.raises(lapgrad.SingularMatrixError):
            lapgrad.inverse(copy, overwrite=True)
        assert torch.equal(copy[1, 0], torch.eye(n, dtype=A.dtype, device=DEVICE))
        assert_all_close(copy[0], torch_lu.inv(A[0]), of_order(n))
        leaf = A.clone().requires_grad_()
        logarithm = lapgrad.slogdet(leaf).logabsdet
        assert logarithm[1, 0] == -math.inf
        with pytest.raises(
            lapgrad.SingularMatrixError, match=r"^slogdet: A\[1, 0\] is singular.* no derivative"
        ):
            logarithm.sum().backward()
        with pytest.raises(lapgrad.SingularMatrixError, match=r"^slogdet: A\[1, 0\] is singular"):
            func.jvp(lambda X: lapgrad.slogdet(X)[1], (A,), (A,))


@pytest.mark.parametrize("n", [3, 33])
def test_slogdet_of_a_singular_item_that_is_not_used(n: int, kernels: str) -> None:
    """A cotangent of zero gives a gradient of zero, to second order as well."""
    A = sample("slogdet", n, {}, batch=(3,)).args[0]
    A[1, :, 0] = 0.0
    A.requires_grad_()
    sign, logarithm = lapgrad.slogdet(A)
    (gA,) = torch.autograd.grad(torch.where(sign != 0, logarithm, 0.0).sum(), A, create_graph=True)
    assert torch.count_nonzero(gA[1]) == 0
    assert_all_close(gA[0], torch_lu.inv(A[0]).mT, of_order(n))
    (second,) = torch.autograd.grad(gA.square().sum(), A)
    assert torch.count_nonzero(second[1]) == 0
    assert second.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("start", ["regular", "identity", "upper"])
def test_not_finite(value: float, start: str, path: str) -> None:
    """NaN and infinity are refused, wherever they are and whatever zeros they are multiplied with."""
    with take_path(path):
        for n in (1, 2, 9, 33):
            for place in {(0, 0), (0, n - 1), (n - 1, 0), (n - 1, n - 1), (n // 2, n // 3)}:
                A = sample("det", n, {}, batch=(2,)).args[0]
                if start != "regular":
                    A[1] = (
                        torch.eye(n, dtype=A.dtype, device=DEVICE)
                        if start == "identity"
                        else A[1].roll(-1, -2).triu()
                    )
                A[(1, *place)] = value
                for f in (lapgrad.inverse, lapgrad.det, lapgrad.slogdet):
                    with pytest.raises(lapgrad.NonFiniteError, match=rf"^{f.__name__}: A\[1\] contains NaN"):
                        f(A)
                    with pytest.raises(lapgrad.NonFiniteError, match=rf"^{f.__name__}: A contains NaN"):
                        f(A[1])


@pytest.mark.parametrize("name", ["inv", "det", "slogdet"])
@pytest.mark.parametrize("shape", [(7, 7), (20, 3, 3), (50, 50)], ids=str)
def test_agrees_with_torch_and_scipy(name: str, shape: Shape) -> None:
    """Values and, at regular matrices, gradients."""
    linalg = pytest.importorskip("scipy.linalg")
    ours = {"inv": lapgrad.inverse, "det": lapgrad.det, "slogdet": lambda A: lapgrad.slogdet(A)[1]}[name]
    peer = {"slogdet": lambda A: torch_lu.slogdet(A)[1]}.get(name, getattr(torch_lu, name))
    A = sample("det", shape[-1], {}, batch=shape[:-2]).args[0]
    assert_all_close(ours(A), peer(A), of_order(shape[-1]))
    assert_all_close(compute_gradient(ours, A), compute_gradient(peer, A), of_order(shape[-1]))
    if name != "slogdet":
        flat = A.view(-1, *shape[-2:])
        theirs = torch.stack(
            [torch.as_tensor(getattr(linalg, name)(item.cpu().numpy()), device=DEVICE) for item in flat]
        )
        assert_all_close(ours(A), theirs.view(ours(A).shape), of_order(shape[-1]))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 40), batch=st.integers(1, 9), seed=st.integers(0, 2**31), half=st.booleans())
def test_properties(n: int, batch: int, seed: int, half: bool) -> None:
    """Random matrices have A A^-1 = I, det(A^-1) det(A) = 1, det(A B) = det(A) det(B); modes are adjoint."""
    dtype = torch.float32 if half else torch.float64
    generator = torch.Generator().manual_seed(seed)
    A, B = (
        torch.randn(batch, n, n, dtype=torch.float64, generator=generator).to(DEVICE).to(dtype) / math.sqrt(n)
        for _ in range(2)
    )
    eps = torch.finfo(dtype).eps
    inverse = lapgrad.inverse(A)
    condition = torch.linalg.cond(A.double()).max()
    residual = (A.double() @ inverse.double() - torch.eye(n, device=DEVICE)).abs().max()
    assert float(residual) <= 20 * n * eps * float(condition)
    one = lapgrad.slogdet(A)[1] + lapgrad.slogdet(inverse)[1]
    assert float(one.abs().max()) <= 20 * n * n * eps * float(condition)
    both = lapgrad.slogdet(A.double() @ B.double())
    signs, logs = zip(*(lapgrad.slogdet(X.double()) for X in (A, B)), strict=True)
    assert torch.equal(both.sign, signs[0] * signs[1])
    worst = max(float(torch.linalg.cond(X.double()).max()) for X in (A, B))
    assert float((both.logabsdet - logs[0] - logs[1]).abs().max()) <= 1e-13 * n * n * worst
    if dtype is torch.float64:
        for f in (lapgrad.inverse, lapgrad.det, lambda X: lapgrad.slogdet(X)[1]):
            result, pushed = func.jvp(f, (A,), (B,))
            cotangent = torch.randn(result.shape, dtype=dtype, generator=generator).to(DEVICE)
            (pulled,) = func.vjp(f, A)[1](cotangent)
            left, right = (cotangent * pushed).sum(), (pulled * B).sum()
            size = (cotangent * pushed).abs().sum() + (pulled * B).abs().sum()
            assert float((left - right).abs()) <= 1e-10 * float(size)


@pytest.mark.parametrize("n", [2, 8, 32, 33, 100, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("overwrite", [False, True], ids=["", "overwrite"])
def test_inverse_near_the_ends_of_the_range(
    n: int, dtype: torch.dtype, overwrite: bool, kernels: str
) -> None:
    """Entries up to the largest number, whose sums overflow on the way, and such an inverse."""
    A = sample("inverse", n, {}, batch=(3,), dtype=dtype).args[0]
    A = A / A.abs().amax((-2, -1), keepdim=True)
    expected = lapgrad.inverse(A)
    top = 1023 if dtype == torch.float64 else 127
    headroom = math.ceil(math.log2(float(expected.abs().max()))) + 1
    for exponent in (top, top - 2, top - 20, headroom - top, headroom + 10 - top):
        half = exponent // 2  # 2^exponent itself may be out of range
        scaled = A * 2.0**half * 2.0 ** (exponent - half)
        inverse = lapgrad.inverse(scaled.clone(), overwrite=overwrite)
        assert_all_close(inverse * 2.0**half * 2.0 ** (exponent - half), expected, of_order(n))


@pytest.mark.parametrize("n", [2, 8, 40])
def test_inverse_that_overflows_is_an_error(n: int, kernels: str) -> None:
    """One item of three has an inverse beyond the largest number: it is named, the others are inverted."""
    A = 2.0 * torch.eye(n, dtype=torch.float64, device=DEVICE).repeat(3, 1, 1)
    A[1, -1, -1] = 1e-310
    with pytest.raises(lapgrad.NonFiniteError, match=r"^inverse: the inverse of A\[1\] overflows\.$"):
        lapgrad.inverse(A)
    with pytest.raises(lapgrad.NonFiniteError, match="overflows"):
        lapgrad.inverse(A, overwrite=True)
    identity = torch.eye(n, dtype=torch.float64, device=DEVICE)
    assert_all_close(A, torch.stack([0.5 * identity, identity, 0.5 * identity]), 0.0)


def test_sign_is_differentiable_as_that_of_torch() -> None:
    """Its derivative is zero, in both modes and to second order."""
    A = sample("slogdet", 4, {}, batch=(2,)).args[0].requires_grad_()
    assert lapgrad.slogdet(A).sign.requires_grad
    assert torch.autograd.gradcheck(lapgrad.slogdet, (A,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lapgrad.slogdet, (A,))
    (gA,) = torch.autograd.grad(lapgrad.slogdet(A).sign.sum(), A, materialize_grads=True)
    assert not gA.any()
