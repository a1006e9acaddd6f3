"""Functions of positive definite matrices: errors by name, factors left behind, one factor for many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device import DEVICE, KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PATHS, take_path
from samples import OPERATORS
from sized import sample
from tolerances import assert_all_close, assert_close, of_order
from torch import Tensor

import lapgrad
from lapgrad._kernels import table as _kernels
from lapgrad._torch import lu as torch_lu

FACTORISING = ("linalg.logdet_psd", "linalg.solve_psd", "linalg.inverse_psd", "fused.mvn_nll")
#: Those whose overwrite=True leaves the Cholesky factor in A.
LEAVING_A_FACTOR = ("linalg.logdet_psd", "fused.mvn_nll")


def make_operands(name: str, n: int, batch: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    return sample(name, n, {}, other=2, batch=batch).args


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", FACTORISING)
def test_first_failed_item_is_named(name: str, path: str) -> None:
    with take_path(path):
        for n in (3, 8, 33, 65):
            A, *others = make_operands(name, n, (2, 3))
            A[1, 2, 1, 1] = torch.nan
            A[1, 0, 2, 2] = -1.0
            message = rf"^{name}: A\[1, 0\] is not positive definite: its leading minor of order 3 "
            with pytest.raises(lapgrad.NotPositiveDefiniteError, match=message) as indefinite:
                OPERATORS[name].fn(A, *others)
            assert (indefinite.value.item, indefinite.value.minor) == ((1, 0), 3)
            A[1, 0] = torch.eye(n, device=DEVICE)
            message = rf"^{name}: A\[1, 2\] contains NaN or infinity: pivot 2 "
            with pytest.raises(lapgrad.NonFiniteError, match=message):
                OPERATORS[name].fn(A, *others)


@pytest.mark.parametrize("name", ["linalg.solve_psd", "fused.mvn_nll"])
def test_failed_item_is_named_as_it_was_handed_over(name: str) -> None:
    """Where A is broadcast, the error names the index in A as the caller passed it."""
    A, B = make_operands(name, 3, (2, 1))
    A[1, 0, 0, 0] = -1.0
    B = B.expand(2, 5, 3, 2)
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match=rf"^{name}: A\[1, 0\] is not") as caught:
        OPERATORS[name].fn(A, B)
    assert (caught.value.item, caught.value.minor) == ((1, 0), 1)
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match=rf"^{name}: A is not"):
        OPERATORS[name].fn(A[1, 0], B)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["potri", "linalg.cho_solve"])
def test_singular_factor(name: str, path: str) -> None:
    with take_path(path):
        for n in (3, 8, 33, 70):
            L, *others = make_operands(name, n, (2, 3))
            L[1, 2, 0, 0] = L[1, 0, 2, 2] = -0.0
            before = L.clone()
            overwrites = (False, True) if name == "potri" else (False,)
            for flags in [{"overwrite": True} if overwrite else {} for overwrite in overwrites]:
                message = rf"^{name}: L\[1, 0\] is singular: its diagonal entry 2 is exactly zero\.$"
                with pytest.raises(lapgrad.SingularMatrixError, match=message) as caught:
                    OPERATORS[name].fn(L, *others, **flags)
                assert (caught.value.item, caught.value.index) == ((1, 0), 2)
                assert torch.equal(L, before)


def test_singular_factor_for_a_batch() -> None:
    L = torch.zeros(1, 3, 3, device=DEVICE)
    with pytest.raises(lapgrad.SingularMatrixError, match=r"^linalg.cho_solve: L\[0\] is singular"):
        lapgrad.linalg.cho_solve(L, torch.ones(4, 3, 2, device=DEVICE))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("name", LEAVING_A_FACTOR)
def test_overwrite_leaves_the_factor(name: str, lower: bool) -> None:
    for n, batch in ((5, ()), (5, (2, 3)), (40, (2,))):
        A, *others = make_operands(name, n, batch)
        case = OPERATORS[name]
        expected = case.reference(A, *others, lower=lower)
        layouts: tuple[Callable[[Tensor], Tensor], ...] = (
            lambda A: A.clone(),
            lambda A: A.mT.contiguous().mT,
            lambda A: torch.stack([A, A])[1],
            lambda A: torch.stack([A, A], -1)[..., 0],
        )
        for layout in layouts:
            target = layout(A)
            version, address = target._version, target.data_ptr()
            assert_close(case.fn(target, *others, lower=lower, overwrite=True), expected, of_order(n))
            assert target._version > version
            assert target.data_ptr() == address
            assert_close(target, torch.linalg.cholesky(A, upper=not lower), of_order(n))


@pytest.mark.parametrize("name", LEAVING_A_FACTOR)
@pytest.mark.parametrize("view", [False, True])
def test_overwrite_with_gradients(name: str, view: bool) -> None:
    """First and second derivatives, through the value and through the factor that is left."""
    case = OPERATORS[name]

    def derivatives(f: Callable[..., Any], overwrite: bool) -> list[Tensor]:
        leaves = [arg.detach().clone().requires_grad_() for arg in make_operands(name, 5)]
        A = torch.stack([leaves[0], leaves[0]])[1] if view else leaves[0] * 1.0
        if overwrite:
            value, L = f(A, *leaves[1:], overwrite=True), A
        else:
            value, L = f(A, *leaves[1:]), torch.linalg.cholesky(A)
        loss = value.sin() + L.sin().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
        return [loss.detach(), *[g.detach() for g in first], *second]

    assert_all_close(derivatives(case.fn, True), derivatives(case.reference, False))


@pytest.mark.parametrize("name", LEAVING_A_FACTOR)
def test_overwrite_refuses_leaves_and_shared_memory(name: str) -> None:
    A, *others = make_operands(name, 4)
    with pytest.raises(RuntimeError, match=rf"^{name}: overwrite=True would overwrite A, a leaf"):
        OPERATORS[name].fn(A.requires_grad_(), *others, overwrite=True)
    spread = [arg.detach().expand(2, *arg.shape) for arg in (A, *others)]
    with pytest.raises(lapgrad.ShapeError, match=rf"^{name}: .* share memory"):
        OPERATORS[name].fn(*spread, overwrite=True)


def test_overwrite_of_one_covariance_for_many() -> None:
    A, Y = make_operands("fused.mvn_nll", 5)
    Y = torch.stack([Y, 2.0 * Y])
    expected = OPERATORS["fused.mvn_nll"].reference(A, Y)
    target = A.clone()
    assert_close(lapgrad.fused.mvn_nll(target, Y, overwrite=True), expected)
    assert_close(target, torch.linalg.cholesky(A))


@pytest.mark.parametrize("name", ["linalg.solve_psd", "fused.mvn_nll"])
def test_one_matrix_is_factorised_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    A, B = make_operands(name, 4)
    kernel = _kernels.lookup("potrf", A)
    factorised: list[int] = []

    def counting(L: Tensor, A: Tensor, *flags: Any) -> Any:
        factorised.append(math.prod(A.shape[:-2]))
        return kernel(L, A, *flags)

    monkeypatch.setitem(KERNELS, "potrf", counting)
    # Shortcuts bypass the table of kernels: they are switched off, so that all factorisations are counted.
    for shortcut in [key for key in KERNELS if key.endswith("_shortcut")]:
        monkeypatch.delitem(KERNELS, shortcut)
    OPERATORS[name].fn(A, B.expand(3, 5, 4, 2))
    OPERATORS[name].fn(A.expand(3, 1, 4, 4), B.expand(3, 5, 4, 2))
    assert factorised == [1, 3]


@pytest.mark.parametrize("name", ["linalg.logdet_psd", "fused.mvn_nll"])
def test_first_derivative_is_the_inverse_from_the_factor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    leaves = [arg.requires_grad_() for arg in make_operands(name, 4)]
    kernel = _kernels.lookup("potri_update", leaves[0])
    calls: list[int] = []

    def counting(*args: Any) -> Any:
        calls.append(1)
        return kernel(*args)

    monkeypatch.setitem(KERNELS, "potri_update", counting)
    torch.autograd.grad(OPERATORS[name].fn(*leaves), leaves)
    torch.func.grad(OPERATORS[name].fn)(*[leaf.detach() for leaf in leaves])
    assert calls == [1, 1]


def test_mvn_nll_is_the_density_of_torch() -> None:
    A, Y = make_operands("fused.mvn_nll", 6)
    distribution = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=A.dtype, device=DEVICE), A)
    assert_close(lapgrad.fused.mvn_nll(A, Y), -distribution.log_prob(Y.mT).sum())


def test_mvn_nll_of_a_vector_is_that_of_one_column() -> None:
    A, Y = make_operands("fused.mvn_nll", 6)
    y = Y[..., 0].contiguous()
    assert_close(lapgrad.fused.mvn_nll(A, y), lapgrad.fused.mvn_nll(A, y[:, None]))
    with pytest.raises(lapgrad.ShapeError, match=r"^fused.mvn_nll: "):
        lapgrad.fused.mvn_nll(A, y[:-1])


seeds = st.integers(0, 2**31 - 1)
orders = st.integers(0, 70)
batches = st.sampled_from([(), (1,), (5,), (2, 3)])
fixed = settings(max_examples=25, deadline=None, derandomize=True)


def draw_normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def draw_positive_definite(seed: int, n: int, batch: tuple[int, ...]) -> Tensor:
    X = draw_normal(seed, *batch, n, n)
    return X @ X.mT / max(n, 1) + 0.5 * torch.eye(n, dtype=torch.float64, device=DEVICE)


@fixed
@given(seed=seeds, n=orders, batch=batches, lower=st.booleans())
def test_inverses_invert(seed: int, n: int, batch: tuple[int, ...], lower: bool) -> None:
    A = draw_positive_definite(seed, n, batch)
    identity = torch.eye(n, dtype=A.dtype, device=DEVICE).expand_as(A)
    for inverse in (
        lapgrad.potri(lapgrad.potrf(A, lower=lower), lower=lower),
        lapgrad.linalg.inverse_psd(A, lower=lower),
        lapgrad.linalg.solve_psd(A, identity, lower=lower),
        lapgrad.linalg.cho_solve(lapgrad.potrf(A, lower=lower), identity, lower=lower),
    ):
        assert_close(inverse @ A, identity, of_order(n))
    logdet = lapgrad.linalg.logdet_psd(A, lower=lower)
    assert_close(logdet, torch_lu.slogdet(A)[1], of_order(n))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "potri": lambda A, B, lower: lapgrad.potri(A, lower=lower),
    "cho_solve": lambda A, B, lower: lapgrad.linalg.cho_solve(A, B, lower=lower),
    "logdet_psd": lambda A, B, lower: lapgrad.linalg.logdet_psd(A, lower=lower),
    "solve_psd": lambda A, B, lower: lapgrad.linalg.solve_psd(A, B, lower=lower),
    "inverse_psd": lambda A, B, lower: lapgrad.linalg.inverse_psd(A, lower=lower),
    "mvn_nll": lambda A, B, lower: lapgrad.fused.mvn_nll(A, B, lower=lower),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@fixed
@given(seed=seeds, n=st.integers(1, 40), batch=batches, lower=st.booleans())
def test_forward_and_reverse_mode_are_adjoint(
    name: str, seed: int, n: int, batch: tuple[int, ...], lower: bool
) -> None:
    """<g, J d> = <J^T g, d> for directions that are neither symmetric nor triangular."""
    A, B = draw_positive_definite(seed, n, batch), draw_normal(seed + 1, *batch, n, 2)
    dA, dB = draw_normal(seed + 2, *A.shape), draw_normal(seed + 3, *B.shape)

    def f(A: Tensor, B: Tensor) -> Tensor:
        return FUNCTIONS[name](A, B, lower)

    result, pushed = torch.func.jvp(f, (A, B), (dA, dB))
    g = draw_normal(seed + 4, *result.shape)
    gA, gB = torch.func.vjp(f, A, B)[1](g)
    left, right = (g * pushed).sum(), (gA * dA).sum() + (gB * dB).sum()
    scale = max(1.0, *(float(x.norm() * y.norm()) for x, y in ((g, pushed), (gA, dA), (gB, dB))))
    assert abs(float(left - right)) <= 1e-10 * scale
