"""gesvd: accuracy on hard matrices, gradients at ties and zeros under every policy, truncation, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from device import DEVICE, KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_packages import in_torch as _fallback
from kernel_packages import replace_by_torch
from paths import PATHS_AND_ISAS, take_path
from tolerances import assert_close, of_order
from torch import Tensor, func
from torch.autograd import grad

import lapgrad
from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels import table as _kernels

FLOATS = (torch.float64, torch.float32)
POLICIES = ("mask", "lorentz", "clamp", "nan", "raise")

#: Orthogonality and residual: n rotations or reflections, each with an error of some eps.
ORTHOGONAL = 10.0


def draw_normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .to(DEVICE)
        .to(dtype)
    )


def draw_orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    """Return a random matrix with orthonormal rows."""
    return torch.linalg.qr(draw_normal(columns, rows, seed=seed))[0].mT


def make_with_values(values: list[float] | Tensor, m: int, n: int, seed: int = 0) -> Tensor:
    """Return a matrix with these singular values; further ones are zero."""
    S = torch.as_tensor(values, dtype=torch.float64, device=DEVICE)
    return (draw_orthogonal(len(S), m, seed).mT * S) @ draw_orthogonal(len(S), n, seed + 1)


def check(A: Tensor, units: float = ORTHOGONAL) -> None:
    """Check reconstruction, orthonormal rows, order and signs, in units of max(m, n) eps."""
    U, S, V = lapgrad.gesvd(A)
    m, n = A.shape[-2:]
    k = min(m, n)
    assert (U.shape[-2:], S.shape[-1], V.shape[-2:]) == ((k, m), k, (k, n))
    eps = torch.finfo(A.dtype).eps * max(m, n, 1) * units
    U, S, V = U.double(), S.double(), V.double()
    scale = S.amax(-1)[..., None, None] if k else torch.ones((), device=DEVICE)
    scale = torch.where(scale > 0, scale, 1.0)
    assert (((U.mT * S[..., None, :]) @ V - A.double()).abs() <= eps * scale).all()
    for W in (U, V):
        assert (W @ W.mT - torch.eye(k, dtype=torch.float64, device=DEVICE)).abs().max() <= eps
    assert (S[..., 1:] <= S[..., :-1]).all()
    assert (S >= 0).all()
    assert (_gaps.find_row_signs(U) == 1).all()


def list_hard_matrices(m: int, n: int) -> dict[str, Tensor]:
    k = min(m, n)
    return {
        "zero": torch.zeros(m, n, dtype=torch.float64, device=DEVICE),
        "identity": torch.eye(m, n, dtype=torch.float64, device=DEVICE),
        "minus identity": -torch.eye(m, n, dtype=torch.float64, device=DEVICE),
        "diagonal": torch.diag_embed(torch.arange(k, dtype=torch.float64, device=DEVICE))
        @ torch.eye(k, n, dtype=torch.float64, device=DEVICE)
        if m == k
        else torch.eye(m, k, dtype=torch.float64, device=DEVICE)
        * torch.arange(k, dtype=torch.float64, device=DEVICE),
        "ones": torch.ones(m, n, dtype=torch.float64, device=DEVICE),
        "rank one": draw_normal(m, 1) @ draw_normal(1, n, seed=1),
        "half rank": draw_normal(m, max(k // 2, 1)) @ draw_normal(max(k // 2, 1), n, seed=1),
        "one entry": torch.nn.functional.pad(
            torch.tensor([[-2.0]], dtype=torch.float64, device=DEVICE), (0, n - 1, 0, m - 1)
        ),
        "repeated": make_with_values([3.0] * (k // 2) + [1.0] * (k - k // 2), m, n),
        "graded": make_with_values(torch.logspace(0, -12, k, dtype=torch.float64, device=DEVICE), m, n),
        "normal": draw_normal(m, n),
        "huge": 1e30 * draw_normal(m, n),
        "minute": 1e-30 * draw_normal(m, n),
    }


SHAPES = ((1, 1), (1, 5), (5, 1), (4, 4), (5, 8), (8, 5), (8, 8), (40, 40), (33, 50), (70, 35))


@pytest.mark.parametrize(("path", "isa"), PATHS_AND_ISAS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hard_matrices(dtype: torch.dtype, path: str, isa: str) -> None:
    with take_path(path, isa):
        for m, n in SHAPES if isa == "" else SHAPES[:7]:
            matrices = [A.to(dtype) for A in list_hard_matrices(m, n).values()]
            if max(m, n) > 32:
                for A in matrices:
                    check(A)
            check(torch.stack(matrices))
            check(torch.stack(matrices).mT)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_alone_are_the_same(dtype: torch.dtype) -> None:
    for m, n in SHAPES:
        A = torch.stack([A.to(dtype) for A in list_hard_matrices(m, n).values()])
        S = lapgrad.gesvd(A, vectors=False)
        expected = torch.linalg.svdvals(A.double().cpu()).to(DEVICE)  # cuSOLVER's are good to 1000s of eps
        scale = expected.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        error = ((S.double() - expected) / scale).abs().max() / torch.finfo(dtype).eps
        assert error <= 3 * of_order(max(m, n))
        assert_close(S, lapgrad.gesvd(A).S, 3 * of_order(max(m, n)))


def test_small_singular_values_of_small_matrices_have_small_relative_errors() -> None:
    """Rows of very different size: each singular value keeps its digits in a batch."""
    sizes = 10.0 ** torch.tensor([0.0, -40.0, -80.0, -120.0, -140.0], dtype=torch.float64, device=DEVICE)
    A = (sizes[:, None] * draw_orthogonal(5, 5, 3)).expand(9, 5, 5)
    S = lapgrad.gesvd(A).S
    assert ((S / sizes - 1).abs() < 1e-14).all()


def test_extremes_of_the_number_range() -> None:
    values = torch.tensor([1e300, 1e200, 1e50, 1e10, 0.0], dtype=torch.float64, device=DEVICE)
    A = torch.diag(values).requires_grad_()
    for batch in ((), (3,)):
        U, S, V = lapgrad.gesvd(A.expand(*batch, 5, 5), tol=0.0)
        # The kernel for CUDA takes what is 200 decades below the largest for zero: then several are zero,
        # and a loss of one of them alone would be reported.
        expected = values if DEVICE.type == "cpu" else torch.where(values < 1e100, 0.0, values)
        apart = int((expected > 0).sum())
        assert ((S - expected).abs() <= 1e-15 * expected).all()
        for loss in (S[..., :apart].sum(), U[..., 0, 1].sum() + V[..., 1, 2].sum()):
            assert grad(loss, A, retain_graph=True)[0].isfinite().all()


@pytest.mark.parametrize("shape", [(5, 5), (3, 6), (6, 3), (7, 4, 4), (7, 2, 5), (7, 5, 2), (60, 60)])
def test_agrees_with_torch(shape: tuple[int, ...]) -> None:
    """Values, and the gradient of a loss that does not change with signs."""

    def loss(U: Tensor, S: Tensor, V: Tensor) -> Tensor:
        weights = torch.linspace(1, 2, U.shape[-1], dtype=U.dtype, device=U.device)
        return (U.square() * weights).cos().sum() + (V.sin().square()).cumsum(-1).sum() + (S * S).cos().sum()

    A = draw_normal(*shape).requires_grad_()
    on_cpu = A.detach().cpu().requires_grad_()  # cuSOLVER's are good to 1000s of eps
    columns, S, rows = torch.linalg.svd(on_cpu, full_matrices=False)
    ours = lapgrad.gesvd(A)
    assert_close(ours.S, S.to(DEVICE), of_order(max(shape[-2:])))
    (expected,) = grad(loss(columns.mT, S, rows), on_cpu)
    (actual,) = grad(loss(*ours), A)
    assert_close(actual, expected.to(DEVICE), 200 * of_order(max(shape[-2:])))


def estimate_slope(loss: Callable[[Tensor], Tensor], A: Tensor, direction: Tensor, h: float = 1e-5) -> Tensor:
    """Return the derivative of the loss along a direction, by central differences of fourth order."""
    near = loss(A + h * direction) - loss(A - h * direction)
    far = loss(A + 2 * h * direction) - loss(A - 2 * h * direction)
    return (8 * near - far) / (12 * h)


def check_slope(loss: Callable[[Tensor], Tensor], A: Tensor, units: float = 1e-8) -> None:
    (gA,) = grad(loss(leaf := A.clone().requires_grad_()), leaf)
    for seed in range(3):
        direction = draw_normal(*A.shape, seed=seed + 5)
        expected = estimate_slope(loss, A, direction)
        assert abs((gA * direction).sum() - expected) <= units * max(1.0, abs(expected))


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (7, 4), (3, 5, 4)])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_truncated_gradient(shape: tuple[int, ...], rank: int) -> None:
    """The directions that were left out move the ones that are returned."""
    weights = draw_normal(*shape, seed=9)

    def loss(A: Tensor) -> Tensor:
        U, S, V = lapgrad.gesvd(A, rank=rank)
        assert (U.shape[-2], S.shape[-1], V.shape[-2]) == (rank, rank, rank)
        best = (U.mT * S[..., None, :]) @ V
        return (best * weights).sum() + (U.mT @ U).pow(3).sum() + (V.mT @ V).pow(3).sum()

    check_slope(loss, draw_normal(*shape, seed=2))


INVARIANT: dict[str, Callable[[Tensor], Tensor]] = {
    "nuclear norm": lambda A: lapgrad.gesvd(A).S.sum(),
    "nuclear norm of the values": lambda A: lapgrad.gesvd(A, vectors=False).sum(),
    "Frobenius norm": lambda A: lapgrad.gesvd(A).S.square().sum(),
    "log volume": lambda A: lapgrad.gesvd(A).S.log().sum(),
    "polar factor": lambda A: (
        (factors := lapgrad.gesvd(A)).U.mT @ factors.V * draw_normal(*A.shape[-2:], seed=8)
    ).sum(),
    "leading projectors": lambda A: sum(
        ((P := W[..., :2, :]).mT @ P * draw_normal(W.shape[-1], W.shape[-1], seed=8)).sum()
        for W in (lapgrad.gesvd(A).U, lapgrad.gesvd(A).V)
    ),
    "sum of the leading pair": lambda A: lapgrad.gesvd(A, rank=2).S.sum().sin(),
}


@pytest.mark.parametrize("policy", ["mask", "raise"])
@pytest.mark.parametrize("shape", [(4, 4), (4, 6), (6, 4)])
@pytest.mark.parametrize("loss", INVARIANT)
def test_invariant_losses_are_exact_at_ties(
    loss: str, shape: tuple[int, int], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs of equal singular values: no warning, no error, the derivative of finite differences."""
    plain = lapgrad.gesvd
    monkeypatch.setattr(lapgrad, "gesvd", lambda A, **flags: plain(A, degeneracy=policy, **flags))
    for A in (
        make_with_values([3.0, 3.0, 1.0, 1.0], *shape),
        2 * torch.eye(*shape, dtype=torch.float64, device=DEVICE),
    ):
        if loss in ("leading projectors", "sum of the leading pair") and A[0, 1] == 0:
            continue  # all four are equal: a leading pair is not determined
        check_slope(INVARIANT[loss], A, 1e-7)
        check_slope(lambda A: INVARIANT[loss](A[0]) + INVARIANT[loss](A[1]), torch.stack([A, A]), 1e-7)


def test_polar_factor_needs_the_part_that_a_tie_leaves_determined() -> None:
    """At the identity the polar factor moves with the skew part of the change, and with nothing else."""
    A = torch.eye(4, dtype=torch.float64, device=DEVICE)

    def polar(A: Tensor) -> Tensor:
        U, _, V = lapgrad.gesvd(A)
        return U.mT @ V

    change = draw_normal(4, 4)
    skew = 0.5 * (change - change.mT)
    for actual in (func.jvp(polar, (A,), (change,))[1], func.vjp(polar, A)[1](change)[0]):
        assert_close(actual, skew)


def test_spectral_norm() -> None:
    A = make_with_values([3.0, 2.0, 2.0, 0.0], 4, 4)
    check_slope(lambda A: lapgrad.gesvd(A).S[0], A)
    check_slope(lambda A: lapgrad.gesvd(A, rank=1, vectors=False).sum(), A)


@pytest.mark.parametrize("policy", ["mask", "lorentz", "clamp"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (40, 40), (35, 40)])
def test_gradients_are_finite_everywhere(shape: tuple[int, int], policy: str) -> None:
    """Losses of single vectors at ties and zeros: a warning in place of NaN, at every order."""
    for name, A in list_hard_matrices(*shape).items():
        for batch in (A, A.expand(3, *shape)):
            leaf = batch.clone().requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
                U, S, V = lapgrad.gesvd(leaf / (A.abs().max() or 1.0), degeneracy=policy)
                loss = (
                    (U * draw_normal(*U.shape[-2:])).sum()
                    + (V * draw_normal(*V.shape[-2:])).sum()
                    + S.sin().sum()
                )
                (first,) = grad(loss, leaf, create_graph=True)
                assert first.isfinite().all(), name
                if max(shape) <= 5 and policy != "clamp":
                    assert grad(first.sin().sum(), leaf)[0].isfinite().all(), name


def multiply_factors(U: Tensor, S: Tensor, V: Tensor) -> Tensor:
    return (U.mT * S.unsqueeze(-2)) @ V


AMBIGUOUS: dict[str, tuple[Tensor, Callable[..., Tensor]]] = {
    "one vector of a tie": (
        make_with_values([3.0, 2.0, 2.0], 3, 3),
        lambda U, S, V: U[..., 1, :].exp().sum(),
    ),
    "one value of a tie": (make_with_values([3.0, 2.0, 2.0], 3, 3), lambda U, S, V: S[..., 1].sum()),
    "left vectors of zeros": (make_with_values([3.0], 3, 3), lambda U, S, V: U[..., 2, :].exp().sum()),
    "the right vector of a zero": (
        make_with_values([3.0, 1.0], 3, 5),
        lambda U, S, V: V[..., 2, :].exp().sum(),
    ),
    "the left vector of a zero": (
        make_with_values([3.0, 1.0], 5, 3),
        lambda U, S, V: U[..., 2, :].exp().sum(),
    ),
    "wide product with a zero": (
        make_with_values([3.0, 1.0], 3, 5),
        lambda *USV: multiply_factors(*USV).exp().sum(),
    ),
    "tall product with a zero": (
        make_with_values([3.0, 1.0], 5, 3),
        lambda *USV: multiply_factors(*USV).exp().sum(),
    ),
    "square product with two zeros": (
        make_with_values([3.0], 3, 3),
        lambda *USV: multiply_factors(*USV).exp().sum(),
    ),
}


@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_losses_without_a_derivative(name: str, core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not core:
        replace_by_torch(monkeypatch, KERNELS, "gesvd", "gesvd_vjp")
    A, loss = AMBIGUOUS[name]
    harmless = make_with_values([3.0, 2.0, 1.0], *A.shape, seed=4)
    batch = torch.stack([harmless, A, A])
    for many in (batch, torch.nn.functional.pad(batch, (0, 40, 0, 40))):
        if many is not batch and "zero" in name:
            continue
        leaf = many.clone().requires_grad_()
        with pytest.warns(lapgrad.DegenerateSpectrumWarning, match="has no derivative there") as caught:
            (gradient,) = grad(loss(*lapgrad.gesvd(leaf)), leaf)
        assert len(caught) == 1
        assert gradient.isfinite().all()
        with pytest.raises(
            lapgrad.DegenerateSpectrumError, match=r"^gesvd: A\[1\] has equal or zero singular"
        ) as error:
            grad(loss(*lapgrad.gesvd(leaf, degeneracy="raise")), leaf)
        assert error.value.item == (1,)
    one = A.clone().requires_grad_()
    with pytest.raises(
        lapgrad.DegenerateSpectrumError, match=r"^gesvd: A has equal or zero singular"
    ) as error:
        grad(loss(*lapgrad.gesvd(one, degeneracy="raise")), one)
    assert error.value.item == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad(loss(*lapgrad.gesvd(one, degeneracy="nan")), one)


#: What a matrix of rank 2 determines, although it has zeros among its singular values.
DETERMINED: dict[str, Callable[..., Tensor]] = {
    "product": lambda U, S, V: multiply_factors(U[..., :2, :], S[..., :2], V[..., :2, :]),
    "square": lambda U, S, V: multiply_factors(U, S**2, V),
    "projector": lambda U, S, V: V[..., :2, :].mT @ V[..., :2, :],
    "pseudoinverse": lambda U, S, V: multiply_factors(
        V, torch.where(S > 1e-8, 1.0 / S.clamp_min(1e-8), 0.0), U
    ),
}


@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (33, 40)])
@pytest.mark.parametrize("name", DETERMINED)
def test_losses_with_a_derivative_at_zeros(
    name: str, shape: tuple[int, int], core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No warning (it would be an error), with and without rounding errors in the cotangents."""
    if not core:
        replace_by_torch(monkeypatch, _kernels._CPU, "gesvd", "gesvd_vjp")
    for A in (make_with_values([3.0, 1.0], *shape), make_with_values([3.0, 1.0], *shape).expand(3, *shape)):
        leaf = A.clone().requires_grad_()
        result = DETERMINED[name](*lapgrad.gesvd(leaf, degeneracy="raise"))
        assert grad((result * draw_normal(*result.shape[-2:])).sum(), leaf)[0].isfinite().all()


def test_the_warning_reaches_compiled_and_mapped_code() -> None:
    A, loss = AMBIGUOUS["one vector of a tie"]
    with pytest.warns(lapgrad.DegenerateSpectrumWarning):
        func.vmap(func.grad(lambda A: loss(*lapgrad.gesvd(A))))(A.expand(2, 3, 3))
    compiled = torch.compile(lambda A: loss(*lapgrad.gesvd(A)), backend="aot_eager", fullgraph=True)
    leaf = A.clone().requires_grad_()
    with pytest.warns(lapgrad.DegenerateSpectrumWarning):
        compiled(leaf).backward()


def test_policies() -> None:
    """The gradient of each policy for a pair at a distance of 1e-6, with a tolerance on either side."""
    A = torch.diag(torch.tensor([2.0, 1.0 + 1e-6, 1.0], dtype=torch.float64, device=DEVICE)).requires_grad_()

    def gradient(policy: str, tol: float) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
            return grad(lapgrad.gesvd(A, degeneracy=policy, tol=tol).U[1, 2], A)[0]

    exact = gradient("nan", 0.0)
    assert_close(exact[1, 2] * 1e-6, torch.tensor(0.5, dtype=torch.float64, device=DEVICE), 1e11)
    for policy in ("mask", "clamp"):
        assert_close(gradient(policy, 1e-9), exact)
    assert gradient("mask", 1e-4).abs().max() < 1.0
    assert 1e3 < gradient("clamp", 1e-4).abs().max() < 1e4
    assert 10 < gradient("lorentz", 1e-4).abs().max() < 1e2
    assert not gradient("nan", 1e-4).equal(gradient("mask", 1e-4))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (36, 40)])
def test_kernel_and_fallback_agree(policy: str, shape: tuple[int, int]) -> None:
    """The same gradient from both, at a tie and a zero, for every choice of cotangents."""
    values = torch.linspace(3, 1, min(shape), dtype=torch.float64, device=DEVICE)
    if policy != "nan":
        values[1] = values[0]
        values[-1] = 0.0
    A = make_with_values(values, *shape).expand(5, *shape).contiguous()
    with torch.no_grad():
        U, S, V = lapgrad.gesvd(A)
    tol = _gaps.choose_tolerance(min(shape), A.dtype, None)
    cotangents = [draw_normal(*W.shape, seed=7) for W in (U, S, V)]
    for present in range(1, 8):
        given = [g if present >> i & 1 else None for i, g in enumerate(cotangents)]
        for count in (5, 1):
            some = [None if g is None else g[:count] for g in given]
            results = []
            for kernel in (_kernels.lookup("gesvd_vjp", A), _fallback.gesvd_vjp):
                gA = torch.empty_like(A[:count])
                marks = kernel(gA, U[:count], S[:count], V[:count], *some, policy, tol)
                # On CUDA the first item that has no derivative is marked, on the CPU all of them.
                marked = marks is not None and bool(marks.any() if A.is_cuda else marks.all())
                results.append((gA, policy != "nan" and marked))
            (ours, found), (theirs, expected) = results
            assert_close(ours / theirs.abs().max(), theirs / theirs.abs().max(), 1000)
            assert found == expected


def test_non_finite_input_names_the_item() -> None:
    for n in (3, 40):
        for bad in (torch.nan, torch.inf, -torch.inf):
            A = draw_normal(2, 3, n, n)
            A[1, 2, n - 1, 0] = bad
            for flags in ({}, {"vectors": False}):
                with pytest.raises(lapgrad.NonFiniteError, match=r"^gesvd: A\[1, 2\] contains NaN") as caught:
                    lapgrad.gesvd(A, **flags)
                assert caught.value.item == (1, 2)
                with pytest.raises(lapgrad.NonFiniteError, match=r"^gesvd: A contains NaN"):
                    lapgrad.gesvd(A[1, 2], **flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"degeneracy": "ignore"},
            "degeneracy must be one of 'mask', 'lorentz', 'clamp', 'nan', 'raise', got 'ignore'",
        ),
        ({"tol": -1.0}, "tol must be None or a number >= 0, got -1.0"),
        ({"rank": 4}, r"rank must be between 0 and min\(m, n\), which is 3, got 4"),
        ({"rank": -1}, "rank must be between 0"),
    ],
)
def test_options(flags: dict[str, object], message: str) -> None:
    with pytest.raises(lapgrad.OptionError, match=rf"^gesvd: {message}"):
        lapgrad.gesvd(torch.ones(3, 5, device=DEVICE), **flags)
    assert issubclass(lapgrad.OptionError, ValueError)


def test_signs_do_not_follow_rounding() -> None:
    """Noise of 1e-14 changes no sign, though vectors of a symmetric grid have two largest entries."""
    x = torch.linspace(0, 1, 24, dtype=torch.float64, device=DEVICE)
    K = torch.exp(-20 * (x[:, None] - x).square())[:, :20]
    U = lapgrad.gesvd(K, rank=8).U
    for seed in range(5):
        again = lapgrad.gesvd(K + 1e-14 * draw_normal(24, 20, seed=seed), rank=8).U
        assert (U * again).sum(-1).min() > 0.999
        batch = lapgrad.gesvd((K + 1e-14 * draw_normal(24, 20, seed=seed)).expand(5, 24, 20), rank=8).U
        assert (U * batch).sum(-1).min() > 0.999


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 12), n=st.integers(1, 12), count=st.integers(1, 9), seed=st.integers(0, 1000),
    rank=st.integers(1, 12), log_scale=st.integers(-30, 30), float32=st.booleans(),
)  # fmt: skip
def test_reconstruction_and_orthogonality(
    m: int, n: int, count: int, seed: int, rank: int, log_scale: int, float32: bool
) -> None:
    inner = min(m, n, rank)
    A = (
        draw_normal(count, m, inner, seed=seed)
        @ draw_normal(count, inner, n, seed=seed + 1)
        * 10.0**log_scale
    )
    check(A.float() if float32 else A)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(m=st.integers(1, 8), n=st.integers(1, 8), seed=st.integers(0, 1000), policy=st.sampled_from(POLICIES))
def test_forward_and_reverse_mode_are_adjoint(m: int, n: int, seed: int, policy: str) -> None:
    A, tangent = draw_normal(3, m, n, seed=seed), draw_normal(3, m, n, seed=seed + 1)
    f = lambda A: lapgrad.gesvd(A, degeneracy=policy)  # noqa: E731
    results, pushed = func.jvp(f, (A,), (tangent,))
    cotangents = tuple(draw_normal(*part.shape, seed=seed + 2 + i) for i, part in enumerate(results))
    (pulled,) = func.vjp(lambda A: tuple(f(A)), A)[1](cotangents)
    left = sum((g * d).sum() for g, d in zip(cotangents, pushed, strict=True))
    size = sum((g * d).abs().sum() for g, d in zip(cotangents, pushed, strict=True))
    assert abs(left - (pulled * tangent).sum()) <= 1e-10 * (1 + size)
