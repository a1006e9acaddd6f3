"""Equal eigenvalues: gradients are finite, exact where they exist, and a warning says where they do not."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import scipy.linalg
import torch
from device import DEVICE, KERNELS
from hypothesis import strategies
from kernel_packages import replace_by_torch
from paths import PATHS, PATHS_AND_ISAS, take_path
from samples.case import MAKERS
from tolerances import assert_all_close
from torch import Tensor, func

import lapgrad

FINITE = ("mask", "lorentz", "clamp", "raise")
EPS = torch.finfo(torch.float64).eps

#: Warnings are errors (pyproject.toml): a test that expects one says so, and all others expect none.
Loss = Callable[[Tensor, Tensor], Tensor]


def draw_orthogonal(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64).to(DEVICE)).Q


def make_with_spectrum(values: list[float], seed: int = 0) -> Tensor:
    Q = draw_orthogonal(len(values), seed)
    A = Q @ (torch.tensor(values, dtype=torch.float64, device=DEVICE).unsqueeze(-1) * Q.mT)
    return 0.5 * (A + A.mT)


def compute_residual(A: Tensor, U: Tensor, eigenvalues: Tensor) -> float:
    """Return the norm of A U^T - U^T diag(eigenvalues), relative to that of A, in units of eps."""
    norm = torch.linalg.matrix_norm(A.double(), 2).clamp_min(1e-300)[..., None, None]
    difference = (A.double() / norm) @ U.double().mT - U.double().mT * (
        eigenvalues.double() / norm[..., 0]
    ).unsqueeze(-2)
    return float(difference.abs().max()) / torch.finfo(A.dtype).eps


def measure_orthogonality(U: Tensor) -> float:
    identity = torch.eye(U.shape[-2], dtype=torch.float64, device=DEVICE)
    return float((U.double() @ U.double().mT - identity).abs().max()) / torch.finfo(U.dtype).eps


def check_decomposition(A: Tensor, U: Tensor, eigenvalues: Tensor) -> None:
    assert U.isfinite().all()
    assert eigenvalues.isfinite().all()
    assert (eigenvalues.diff(dim=-1) >= 0).all()
    allowed = 10 + 2 * A.shape[-1]
    assert compute_residual(A, U, eigenvalues) <= allowed
    assert measure_orthogonality(U) <= allowed
    size = U.abs()
    leads = size >= (1 - 1e-6) * size.amax(-1, keepdim=True)
    assert (U.gather(-1, leads.int().argmax(-1, keepdim=True)) > 0).all()


def make_rank_deficient(n: int) -> Tensor:
    X = torch.randn(n, max(1, n // 3), generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(
        DEVICE
    )
    return X @ X.mT


def make_grid_kernel(n: int) -> Tensor:
    """A squared exponential kernel on a regular grid: centrosymmetric, with a spectrum down to rounding."""
    x = torch.linspace(0, 1, n, dtype=torch.float64, device=DEVICE)
    return (-0.5 * ((x[:, None] - x) / 0.3) ** 2).exp()


def make_one_ulp_asymmetric(n: int) -> Tensor:
    A = MAKERS["spaced"]((n, n), torch.Generator().manual_seed(n))
    return A + torch.triu(A.abs() * EPS, 1)


MATRICES: dict[str, Callable[[int], Tensor]] = {
    "identity": lambda n: torch.eye(n, dtype=torch.float64, device=DEVICE),
    "zero": lambda n: torch.zeros(n, n, dtype=torch.float64, device=DEVICE),
    "ones": lambda n: torch.ones(n, n, dtype=torch.float64, device=DEVICE),
    "diagonal": lambda n: torch.diag(torch.arange(n, 0, -1, dtype=torch.float64, device=DEVICE)),
    "diagonal with ties": lambda n: torch.diag(
        torch.arange(n, dtype=torch.float64, device=DEVICE).div(2, rounding_mode="floor")
    ),
    "repeated": lambda n: make_with_spectrum([float(i // 3) for i in range(n)]),
    "plus and minus": lambda n: make_with_spectrum([(-1.0) ** i for i in range(n)]),
    "rank deficient": make_rank_deficient,
    "graded": lambda n: torch.diag(10.0 ** torch.linspace(-300, 300, n, dtype=torch.float64, device=DEVICE)),
    "graded, full": lambda n: make_with_spectrum([10.0 ** (-40 * i / n) for i in range(n)]),
    "huge": lambda n: 1e300 * make_with_spectrum([float(i) / n for i in range(n)]),
    "tiny": lambda n: 1e-305 * make_with_spectrum([float(i) for i in range(n)]),
    "subnormal": lambda n: 1e-320 * make_with_spectrum([float(i) for i in range(n)]),
    "grid kernel": make_grid_kernel,
    "one ulp asymmetric": make_one_ulp_asymmetric,
}


@pytest.mark.parametrize("path", ["default", "no lanes"])
@pytest.mark.parametrize("what", MATRICES)
def test_difficult_matrices(what: str, path: str) -> None:
    """Finite and accurate values, finite gradients under every policy but "nan"; alone and in a batch."""
    with take_path(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
        for n in (1, 2, 3, 8, 13, 24, 40):
            A = MATRICES[what](n)
            for operand in (A, A.expand(5, n, n).clone()):
                U, eigenvalues = lapgrad.syevd(operand)
                if what != "subnormal":
                    check_decomposition(operand, U, eigenvalues)
                assert U.isfinite().all()
                scale = max(1.0, float(A.abs().max()))
                for policy in ("mask", "lorentz", "clamp"):
                    leaf = operand.clone().requires_grad_()
                    U, eigenvalues = lapgrad.syevd(leaf, degeneracy=policy)
                    loss = (eigenvalues / scale).sum() + (U * U.detach().roll(1, -1)).sum()
                    (gradient,) = torch.autograd.grad(loss, leaf)
                    if what != "subnormal" or policy == "mask":
                        assert gradient.isfinite().all(), (n, policy)
                    assert torch.equal(gradient, gradient.mT)


@pytest.mark.parametrize(("path", "isa"), PATHS_AND_ISAS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_decomposition_on_every_path(dtype: torch.dtype, path: str, isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with take_path(path, isa):
        for n, batch in (
            (2, 9),
            (3, 17),
            (5, 40),
            (8, 33),
            (16, 9),
            (24, 5),
            (32, 9),
            (33, 3),
            (33, 20),
            (64, 17),
            (65, 2),
            (130, 1),
        ):
            X = torch.randn(batch, n, n, dtype=torch.float64, generator=generator).to(DEVICE)
            A = (X + X.mT).to(dtype)
            A[0] = torch.eye(n, device=DEVICE)
            A[-1, 0] = A[-1, :, 0] = 0
            check_decomposition(A, *lapgrad.syevd(A))
            values = lapgrad.syevd(A, vectors=False)
            expected = torch.linalg.eigvalsh(A.double())
            scale = expected.abs().max()
            assert (
                float((values.double() - expected).abs().max() / scale)
                <= (10 + 2 * n) * torch.finfo(dtype).eps
            )


def list_invariant_losses(n: int) -> dict[str, tuple[Loss, Callable[[Tensor], Tensor]]]:
    """Losses of (U, eigenvalues) with a gradient at clusters of three, and the same without eigenvectors."""
    W = torch.randn(n, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(DEVICE)
    W = W + W.mT

    def projector(U: Tensor, eigenvalues: Tensor) -> Tensor:
        lowest = U[..., :3, :]
        return ((lowest.mT @ lowest) * W).sum()

    def compute_gradient_of_projector(A: Tensor) -> Tensor:
        """P0 W R + R W P0 with the reduced resolvent R = sum_j u_j u_j^T / (l_0 - l_j)."""
        values, V = torch.linalg.eigh(A)
        P0 = V[:, :3] @ V[:, :3].mT
        R = (V[:, 3:] / (values[:3].mean() - values[3:])) @ V[:, 3:].mT
        return P0 @ W @ R + R @ W @ P0

    def identity(A: Tensor) -> Tensor:
        return torch.eye(n, dtype=torch.float64, device=DEVICE)

    return {
        "projector": (projector, compute_gradient_of_projector),
        "trace": (lambda U, eigenvalues: eigenvalues.sum(), identity),
        "sum of squares": (lambda U, eigenvalues: eigenvalues.square().sum(), lambda A: 2 * A),
        "sum of exponentials": (lambda U, eigenvalues: eigenvalues.exp().sum(), torch.matrix_exp),
        "U^T U": (lambda U, eigenvalues: ((U.mT @ U) * W).sum(), torch.zeros_like),
        "reconstruction": (
            lambda U, values: (U.mT @ (values.unsqueeze(-1) * U)).square().sum(),
            lambda A: 2 * A,
        ),
    }


@pytest.mark.parametrize("policy", FINITE)
@pytest.mark.parametrize("n", [6, 9, 30, 60])
@pytest.mark.parametrize("name", list_invariant_losses(6))
def test_invariant_losses_have_exact_gradients(name: str, n: int, policy: str) -> None:
    """At clusters of three equal eigenvalues, without a warning."""
    loss, gradient = list_invariant_losses(n)[name]
    A = make_with_spectrum([float(i // 3) / n for i in range(n)])
    leaf = A.clone().requires_grad_()
    (actual,) = torch.autograd.grad(loss(*lapgrad.syevd(leaf, degeneracy=policy, tol=1e-10)), leaf)
    expected = gradient(A)
    allowed = 1e-4 if policy == "clamp" else 1e-9  # which divides rounding errors by the threshold
    assert float((actual - expected).abs().max()) <= allowed * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("path", ["default", "no lanes", "fallback"])
@pytest.mark.parametrize("k", [None, 2])
def test_one_warning_where_there_is_no_gradient(
    path: str, k: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of one eigenvector of a tie, or of one of two equal eigenvalues, warns once."""
    if path == "fallback":
        replace_by_torch(monkeypatch, KERNELS, "syevd", "syevd_vjp")
    with take_path("default" if path == "fallback" else path):
        for batch in ((), (3,)):
            A = make_with_spectrum([1.0, 2.0, 3.0, 3.0]).expand(*batch, 4, 4).clone().requires_grad_()
            for loss in (lambda U, values: U[..., -1, 2].sum(), lambda U, values: values[..., -1].sum()):
                result = loss(*lapgrad.syevd(A, k=k))
                with pytest.warns(
                    lapgrad.DegenerateSpectrumWarning, match="syevd: a matrix has equal eigen"
                ) as seen:
                    (gradient,) = torch.autograd.grad(result, A)
                assert len(seen) == 1
                assert gradient.isfinite().all()
                result = loss(*lapgrad.syevd(A, k=k, degeneracy="raise"))
                name = r"A\[0\]" if batch else "A "
                with pytest.raises(lapgrad.DegenerateSpectrumError, match=name) as caught:
                    torch.autograd.grad(result, A)
                assert caught.value.item == ((0,) if batch else ())


def test_the_warning_is_shown_once_and_can_be_switched_off() -> None:
    A = torch.eye(3, dtype=torch.float64, requires_grad=True, device=DEVICE)

    def backward() -> None:
        torch.autograd.grad(lapgrad.syevd(A, vectors=False)[0], A)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            backward()
    assert [one.category for one in seen] == [lapgrad.DegenerateSpectrumWarning]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
        backward()
    assert not seen


def test_the_item_without_a_gradient_is_named() -> None:
    A = MAKERS["spaced"]((2, 3, 4, 4), torch.Generator().manual_seed(0))
    A[1, 1] = torch.eye(4, device=DEVICE)
    A.requires_grad_()
    loss = lapgrad.syevd(A, degeneracy="raise", vectors=False)[..., 0].sum()
    with pytest.raises(lapgrad.DegenerateSpectrumError, match=r"A\[1, 1\]") as caught:
        torch.autograd.grad(loss, A)
    assert caught.value.item == (1, 1)


def test_policies_differ_at_a_gap_below_the_threshold() -> None:
    """Each puts its own value in place of 1 / gap."""
    gap, tol = 1e-9, 1e-6
    A = torch.diag(torch.tensor([1.0, 1.0 + gap], dtype=torch.float64, device=DEVICE)).requires_grad_()
    threshold = tol * (1.0 + gap)
    wanted = {
        "mask": 0.0,
        "lorentz": gap / (gap**2 + threshold**2),
        "clamp": 1 / threshold,
        "nan": 1 / gap,
    }
    for batch in ((), (3,)):
        for policy, inverse in wanted.items():
            U, _ = lapgrad.syevd(A.expand(*batch, 2, 2), degeneracy=policy, tol=tol)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
                (gradient,) = torch.autograd.grad(U[..., 1, 0].sum(), A)
            # U is the identity: dU_10 = dA_10 / (l_1 - l_0), and half of it belongs to each of A_10 and A_01.
            assert float(gradient[1, 0]) == pytest.approx(
                0.5 * inverse * math.prod(batch), rel=1e-6, abs=1e-12
            )


def test_bare_formula_is_not_finite_at_equal_eigenvalues() -> None:
    A = torch.eye(3, dtype=torch.float64, requires_grad=True, device=DEVICE)
    (gradient,) = torch.autograd.grad(lapgrad.syevd(A, degeneracy="nan").U[0, 1], A)
    assert not gradient.isfinite().all()


@pytest.mark.parametrize("n", [8, 24, 32, 50])
def test_signs_do_not_flip_under_noise(n: int) -> None:
    """Noise changes no sign, though half of the vectors have two largest entries of opposite sign."""
    A = make_grid_kernel(n)
    U, eigenvalues = lapgrad.syevd(A)
    apart = eigenvalues > 1e-6
    for seed in range(10):
        noise = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            DEVICE
        )
        for operand in (A + 1e-14 * (noise + noise.mT), torch.stack([A + 1e-14 * (noise + noise.mT)] * 2)):
            again = lapgrad.syevd(operand).U
            assert ((again * U).sum(-1)[..., apart] > 0.9).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n", [1, 5, 17, 40])
def test_agrees_with_torch_and_scipy(n: int, dtype: torch.dtype) -> None:
    A = MAKERS["spaced"]((n, n), torch.Generator().manual_seed(n)).to(dtype)
    U, eigenvalues = lapgrad.syevd(A)
    units = 20.0 * n
    values, V = torch.linalg.eigh(A)
    assert_all_close(eigenvalues, values, units)
    assert_all_close(U.abs(), V.mT.abs(), units)
    values, V = (torch.from_numpy(x).to(DEVICE) for x in scipy.linalg.eigh(A.cpu().numpy()))
    assert_all_close(eigenvalues, values, units)
    assert_all_close(U.abs(), V.mT.abs(), units)


def test_gradient_agrees_with_torch_where_that_is_right() -> None:
    """Symmetric parts of gradients are compared, for losses that do not depend on signs."""
    A = MAKERS["spaced"]((3, 7, 7), torch.Generator().manual_seed(0)).requires_grad_()
    W = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE)
    U, eigenvalues = lapgrad.syevd(A)
    (ours,) = torch.autograd.grad((U.square() * W).sum() + (eigenvalues * W[0]).sin().sum(), A)
    values, V = torch.linalg.eigh(0.5 * (A + A.mT))
    (theirs,) = torch.autograd.grad((V.mT.square() * W).sum() + (values * W[0]).sin().sum(), A)
    assert_all_close(ours, theirs)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lower", [True, False])
def test_bad_items_are_named(lower: bool, path: str) -> None:
    """NaN and infinity in the triangle that is read, and eigenvalues past the largest number."""
    with take_path(path):
        for n in (3, 8, 33, 65):
            A = MAKERS["spaced"]((2, 5, n, n), torch.Generator().manual_seed(0))
            for value in (torch.nan, torch.inf, -torch.inf):
                bad = A.clone()
                bad[1, 2, -1, 0] = bad[1, 2, 0, -1] = value
                for vectors in (True, False):
                    with pytest.raises(
                        lapgrad.NonFiniteError, match=r"^syevd: A\[1, 2\] contains NaN"
                    ) as caught:
                        lapgrad.syevd(bad, lower=lower, vectors=vectors)
                    assert caught.value.item == (1, 2)
            huge = torch.full((n, n), 1.7e308, dtype=torch.float64, device=DEVICE)
            with pytest.raises(lapgrad.NonFiniteError, match=r"^syevd: A contains"):
                lapgrad.syevd(huge)


def test_no_convergence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "syevd", lambda *_: (4, 1))
    message = r"^syevd: the iteration for A\[1, 1\] did not converge"
    with pytest.raises(lapgrad.ConvergenceError, match=message) as caught:
        lapgrad.syevd(torch.eye(2, device=DEVICE).expand(2, 3, 2, 2))
    assert caught.value.item == (1, 1)


def test_the_item_that_torch_fails_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's error concerns a batch: plain PyTorch tries the items one by one."""
    plain, eigh = importlib.import_module("lapgrad._kernels.torch.syevd"), torch.linalg.eigh

    def fail_on_five(A: Tensor, UPLO: str) -> Any:
        if A.amax() == 5.0:
            raise torch.linalg.LinAlgError("no convergence")
        return eigh(A, UPLO=UPLO)

    monkeypatch.setattr(torch.linalg, "eigh", fail_on_five)
    A = torch.eye(2, dtype=torch.float64).repeat(4, 1, 1)
    A[2, 1, 1] = 5.0
    assert plain.syevd(A.new_empty(4, 2), torch.empty_like(A), A, True) == (2, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"degeneracy": "ignore"}, "degeneracy must be one of 'mask'"),
        ({"tol": -1.0}, "tol must be"),
        ({"tol": math.nan}, "tol must be"),
        ({"k": 4}, "k must be between 0 and n, which is 3, got 4"),
        ({"k": -1}, "k must be between 0 and n, which is 3, got -1"),
    ],
    ids=str,
)
def test_unknown_options(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(lapgrad.OptionError, match=f"^syevd: {message}"):
        lapgrad.syevd(torch.eye(3, device=DEVICE), **flags)


def test_the_k_largest_are_the_last_rows() -> None:
    A = MAKERS["spaced"]((2, 6, 6), torch.Generator().manual_seed(0))
    U, eigenvalues = lapgrad.syevd(A)
    for k in (0, 2, 6):
        top = lapgrad.syevd(A, k=k)
        assert torch.equal(top.U, U[:, 6 - k :])
        assert torch.equal(top.eigenvalues, eigenvalues[:, 6 - k :])
        assert_all_close(lapgrad.syevd(A, k=k, vectors=False), eigenvalues[:, 6 - k :])


symmetric = strategies.builds(
    lambda n, batch, seed, ties: _draw_symmetric(n, batch, seed, ties),
    strategies.integers(1, 12),
    strategies.integers(1, 9),
    strategies.integers(0, 10**6),
    strategies.booleans(),
)


def _draw_symmetric(n: int, batch: int, seed: int, ties: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(batch, n, n, generator=generator, dtype=torch.float64).to(DEVICE)
    if ties:
        values = torch.randint(-2, 3, (batch, n), generator=generator).to(DEVICE).double()
        Q = torch.linalg.qr(X).Q
        X = Q @ (values.unsqueeze(-1) * Q.mT)
    return 0.5 * (X + X.mT)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(symmetric)
def test_decomposition_and_adjoint(A: Tensor) -> None:
    """Reconstruction, orthogonality, signs; <g, J d> = <J^T g, d>, also at ties."""
    check_decomposition(A, *lapgrad.syevd(A))
    generator = torch.Generator().manual_seed(A.shape[-1])
    direction = torch.randn(A.shape, generator=generator, dtype=A.dtype).to(DEVICE)
    for flags in ({}, {"k": 1}, {"degeneracy": "lorentz", "tol": 1e-3}, {"degeneracy": "clamp", "tol": 1e-3}):
        f = lambda A, flags=flags: tuple(lapgrad.syevd(A, **flags))  # noqa: E731
        results, pushed = func.jvp(f, (A,), (direction,))
        cotangents = tuple(
            torch.randn(r.shape, generator=generator, dtype=A.dtype).to(DEVICE) for r in results
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
            (pulled,) = func.vjp(f, A)[1](cotangents)
        left = sum((g * d).sum() for g, d in zip(cotangents, pushed, strict=True))
        scale = sum((g * d).abs().sum() for g, d in zip(cotangents, pushed, strict=True)) + pulled.abs().sum()
        assert float((left - (pulled * direction).sum()).abs()) <= 1e-10 * float(scale + 1)
