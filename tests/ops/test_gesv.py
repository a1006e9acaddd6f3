"""gesv: what is particular to it, beyond the properties that all operators share."""

from __future__ import annotations

import pytest
import torch
from device import DEVICE, KERNELS
from kernel_packages import replace_by_torch
from samples.case import MAKERS
from tolerances import SOLVED_TWICE, assert_close, of_order
from torch import Tensor

import lapgrad
from lapgrad import gesv

DTYPES = (torch.float32, torch.float64)


def draw(*shape: int, kind: str = "regular", dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return MAKERS[kind](shape, torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=["kernels of the device", "plain PyTorch"])
def _kernels_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain PyTorch":
        replace_by_torch(monkeypatch, KERNELS, "gesv", "gesv_factored")


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("n", [2, 5, 40, 70])
def test_singular_item_and_pivot_are_named(n: int, transpose: bool) -> None:
    """Columns of zeros: the pivot there is exactly zero, and the first such item is named."""
    A = draw(2, 3, n, n)
    A[0, 2, :, n - 1] = 0.0
    A[1, 0, :, 0] = 0.0
    message = rf"gesv: A\[0, 2\] is singular: pivot {n} of "
    with pytest.raises(lapgrad.SingularMatrixError, match=message) as raised:
        gesv(A, draw(n, 2, kind="general"), transpose=transpose)
    assert (raised.value.item, raised.value.index) == ((0, 2), n - 1)


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [3, 40])
def test_what_is_not_finite_is_named(n: int, bad: float) -> None:
    A = draw(4, n, n)
    A[2, n - 1, 1] = bad
    with pytest.raises(lapgrad.NonFiniteError, match=r"gesv: A\[2\]"):
        gesv(A, draw(n, 1, kind="general"))


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("end", ["largest", "smallest"])
@pytest.mark.parametrize("n", [1, 6, 40])
def test_ends_of_the_range(n: int, end: str, dtype: torch.dtype, transpose: bool) -> None:
    """Entries of A and B near the largest or smallest number: X, and both gradients, are of the order of 1.

    A power of two changes no digit, so that the reference is the same system at the order of 1.
    """
    numbers = torch.finfo(dtype)
    power = torch.tensor(numbers.max if end == "largest" else numbers.tiny, dtype=dtype).log2().floor()
    scale = torch.ldexp(torch.ones((), dtype=dtype), power - 3 if end == "largest" else power + 4).to(DEVICE)
    A, B = draw(3, n, n, dtype=dtype), draw(3, n, 2, kind="general", dtype=dtype)
    weight = draw(3, n, 2, kind="general", dtype=dtype, seed=1)
    far, near = [], []
    for found, factor in ((far, scale), (near, torch.ones_like(scale))):
        left, right = (factor * A).requires_grad_(), (factor * B).requires_grad_()
        X = gesv(left, right, transpose=transpose)
        # gA is of the order of gX / scale: cotangents of the order of the operands keep it at 1.
        gA, gB = torch.autograd.grad(X, (left, right), factor * weight)
        found += [X.detach(), gA, gB]
    for one, other in zip(far, near, strict=True):
        assert one.isfinite().all()
        assert_close(one, other, of_order(n) * SOLVED_TWICE)


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_vectors(batch: tuple[int, ...]) -> None:
    """One vector for all matrices; its gradient is the sum over them."""
    A, b = draw(*batch, 5, 5).requires_grad_(), draw(5, kind="general").requires_grad_()
    x = gesv(A, b)
    assert x.shape == (*batch, 5)
    assert_close((A @ x[..., None])[..., 0], b.expand(*batch, 5))
    (gradient,) = torch.autograd.grad(x.sum(), b)
    ones = torch.ones(*batch, 5, 1, dtype=torch.float64, device=DEVICE)
    assert_close(gradient, gesv(A, ones, transpose=True).view(-1, 5).sum(0))
    assert torch.autograd.gradcheck(gesv, (A, b), check_forward_ad=True)


def test_vector_of_another_length_is_refused() -> None:
    with pytest.raises(lapgrad.ShapeError, match=r"gesv"):
        gesv(draw(3, 3), draw(4, kind="general"))


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 2), (4, 0)])
@pytest.mark.parametrize("batch", [(), (3,), (0,)])
def test_sizes_of_zero(n: int, m: int, batch: tuple[int, ...]) -> None:
    A = draw(*batch, n, n).requires_grad_()
    B = draw(*batch, n, m, kind="general").requires_grad_()
    X = gesv(A, B)
    assert X.shape == (*batch, n, m)
    gA, gB = torch.autograd.grad(X.sum(), (A, B))
    assert gA.shape == A.shape
    assert not gA.any()
    assert gB.shape == B.shape


def test_backward_does_not_factorise_again(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = draw(6, 6).requires_grad_(), draw(6, 2, kind="general").requires_grad_()
    X = gesv(A, B)

    def refuse(*_: object) -> None:
        raise AssertionError("factorised again")

    monkeypatch.setitem(KERNELS, "gesv", refuse)
    torch.autograd.grad(X.sum(), (A, B))


def test_a_shared_matrix_is_factorised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix is factorised once for a batch of right-hand sides, also under vmap over them."""
    A, B = draw(6, 6), draw(7, 6, 2, kind="general")
    shapes: list[torch.Size] = []
    kernel = KERNELS["gesv"]

    def record(X: Tensor, LU: Tensor, *rest: object) -> object:
        shapes.append(LU.shape)
        return kernel(X, LU, *rest)

    monkeypatch.setitem(KERNELS, "gesv", record)
    expected = gesv(A, B)
    mapped = torch.func.vmap(gesv, (None, 0))(A, B)
    assert shapes == [(6, 6), (6, 6)]
    assert_close(mapped, expected)
    assert_close(A @ expected, B)


def test_factors_are_shared_under_vmap_of_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Jacobian is one solve with many right-hand sides."""
    A, b = draw(6, 6), draw(6, kind="general")
    widths: list[int] = []
    kernel = KERNELS["gesv_factored"]

    def record(X: Tensor, *rest: object) -> object:
        widths.append(X.shape[-1])
        return kernel(X, *rest)

    monkeypatch.setitem(KERNELS, "gesv_factored", record)
    jacobian = torch.func.jacrev(gesv, 1)(A, b)
    assert widths == [6]
    assert_close(A @ jacobian, torch.eye(6, dtype=torch.float64, device=DEVICE))
