"""Close but unequal eigenvalues and singular values: rounding errors must not be divided by their gaps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from device import DEVICE, KERNELS
from kernel_packages import replace_by_torch
from paths import take_path
from tolerances import OF_A_GROUP, assert_close, of_order
from torch import Tensor, func
from torch.autograd import grad

import lapgrad
from lapgrad._kernels import cpu as _cpu

FLOATS = (torch.float64, torch.float32)
GAPS = (1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
SIZES = ((4, 2), (4, 3), (10, 2), (10, 5), (40, 3), (150, 5))

#: Paths through the compiled core, and the kernels in plain PyTorch.
PATHS_AND_ISAS = (
    *((path, "") for path in ("default", "no lanes", "two threads inside")),
    *(("default", isa) for isa in _cpu.ISA_VARIANTS),
    ("fallback", ""),
)


@contextlib.contextmanager
def force_path(path: str, isa: str = "") -> Iterator[None]:
    """Compute gradients on one code path: of the core (``paths.py``), or the fallback in plain PyTorch."""
    if path != "fallback":
        with take_path(path, isa):
            yield
        return
    with pytest.MonkeyPatch.context() as patch:
        replace_by_torch(patch, KERNELS, "syevd_vjp", "gesvd_vjp")
        yield


def _is_of_use(path: str, isa: str, n: int) -> bool:
    """Return whether matrices of order n run other code on this path than on the default one.

    Large matrices do not use the kernels of an instruction set, and small ones do not use two threads.
    """
    return n <= 10 if isa else n > 10 or path != "two threads inside"


def draw_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def draw_orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    """Return a random matrix with orthonormal rows."""
    return torch.linalg.qr(draw_normal(columns, rows, seed=seed)).Q.mT


def make_spectrum(n: int, group: int, gap: float) -> Tensor:
    """Return n values: a group at 1 with gaps of ``gap`` times the largest value, the others from 2 to 3."""
    inside = 1 + 3 * gap * torch.arange(group, dtype=torch.float64, device=DEVICE)
    return torch.cat([inside, torch.linspace(2, 3, n - group, dtype=torch.float64, device=DEVICE)])


def make_symmetric(n: int, group: int, gap: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    Q = draw_orthogonal(n, n, seed)
    A = Q.mT @ (make_spectrum(n, group, gap)[:, None] * Q)
    return (0.5 * (A + A.mT)).to(dtype)


def draw_weights(n: int, seed: int = 99) -> Tensor:
    W = draw_normal(n, n, seed=seed)
    return W + W.mT


def compute_loss_of_space(rows: Tensor, W: Tensor) -> Tensor:
    """<W, P> for the projector P onto the space of the rows."""
    return ((rows.mT @ rows) * W.to(rows.dtype)).sum()


def compute_gradient_of_space(A: Tensor, group: int, W: Tensor) -> Tensor:
    """Return the gradient of <W, P> for the projector P onto the group; it has no gaps within the group."""
    values, columns = torch.linalg.eigh(A.double())
    inside, outside = columns[..., :group], columns[..., group:]
    middle = inside.mT @ W @ outside / (values[..., :group, None] - values[..., None, group:])
    half = inside @ middle @ outside.mT
    return (half + half.mT).to(A.dtype)


@pytest.mark.parametrize(("path", "isa"), PATHS_AND_ISAS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_projectors_onto_close_eigenvectors(dtype: torch.dtype, path: str, isa: str) -> None:
    with force_path(path, isa):
        for n, group in SIZES:
            if not _is_of_use(path, isa, n):
                continue
            W, units = draw_weights(n), OF_A_GROUP * of_order(n)
            for gap in GAPS if n <= 10 else GAPS[1::4]:
                alone = make_symmetric(n, group, gap, dtype, seed=n)
                batch = torch.stack([make_symmetric(n, group, gap, dtype, seed=i) for i in range(3)])
                for A in (alone, batch):
                    leaf = A.clone().requires_grad_()
                    (actual,) = grad(compute_loss_of_space(lapgrad.syevd(leaf).U[..., :group, :], W), leaf)
                    assert_close(actual, compute_gradient_of_space(A, group, W), units)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_projectors_onto_the_largest(k: int) -> None:
    """The group is at the end of the spectrum, and ``k`` computes only the largest eigenvalues."""
    n = 10
    W = draw_weights(n)
    for gap in GAPS:
        A = -make_symmetric(n, k, gap, torch.float64)
        leaf = A.clone().requires_grad_()
        (actual,) = grad(compute_loss_of_space(lapgrad.syevd(leaf, k=k).U, W), leaf)
        assert_close(actual, -compute_gradient_of_space(-A, k, W), OF_A_GROUP * of_order(n))


@pytest.mark.parametrize("path", ["default", "no lanes", "fallback"])
@pytest.mark.parametrize("gap", [1e-11, 1e-8, 1e-6])
def test_single_vectors_keep_their_gradient(gap: float, path: str) -> None:
    """A loss of single vectors has a gradient of 1 / gap; one of their space, in the same batch, has not."""
    n, group = 6, 3
    W = draw_weights(n)
    A = torch.stack([make_symmetric(n, group, gap, torch.float64, seed=i) for i in range(4)])
    leaf = A.clone().requires_grad_()

    def compute_mixed_gradient(policy: str) -> Tensor:
        U, _ = lapgrad.syevd(leaf, degeneracy=policy)
        even = compute_loss_of_space(U[::2, :group], W)
        (gradient,) = grad(even + (U[1::2, 0] * W[0]).sum(), leaf)
        return gradient

    with force_path(path):
        kept, bare = compute_mixed_gradient("mask"), compute_mixed_gradient("nan")
    assert_close(kept[1::2], bare[1::2])
    assert (kept[1::2].abs().amax((-2, -1)) > 0.01 / gap).all()
    assert_close(kept[::2], compute_gradient_of_space(A[::2], group, W), OF_A_GROUP * of_order(n))


@pytest.mark.parametrize("path", ["default", "no lanes", "fallback"])
@pytest.mark.parametrize("gap", [1e-12, 1e-10, 1e-8])
def test_functions_of_the_matrix_keep_what_is_between_close_eigenvectors(gap: float, path: str) -> None:
    """<W, U^T diag(l) U> has the gradient W: between close vectors a quotient of two small numbers.

    Entries of W there, of all sizes down to 1e-3, are kept up to the rounding errors of the quotient.
    """
    n, group = 6, 3
    A = make_symmetric(n, group, gap, torch.float64)
    U = lapgrad.syevd(A).U
    inside = torch.tensor([[2.0, 1e-3, 1.0], [1e-3, -1.0, 1e-2], [1.0, 1e-2, 0.5]], dtype=torch.float64)
    middle = draw_weights(n)
    middle[:group, :group] = inside.to(DEVICE)
    W = U.mT @ middle @ U
    allowed = 20 * torch.finfo(torch.float64).eps / gap
    with force_path(path):
        for operand in (A, A.expand(3, n, n).clone()):
            leaf = operand.clone().requires_grad_()
            U, values = lapgrad.syevd(leaf)
            (actual,) = grad(((U.mT @ (values[..., None] * U)) * W).sum(), leaf)
            assert float((actual - W).abs().max()) <= allowed * float(W.abs().max())


def test_second_derivatives_where_the_first_vanish() -> None:
    """At a stationary point the cotangents are zero between close vectors, their derivatives are not."""
    A = torch.diag(torch.tensor([1.0, 1 + 1e-6, 2.0], dtype=torch.float64, device=DEVICE))
    W = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=DEVICE)
    turn = torch.zeros_like(A)
    turn[0, 1] = turn[1, 0] = 1.0

    def curvature(policy: str) -> Tensor:
        leaf = A.clone().requires_grad_()
        U, _ = lapgrad.syevd(leaf, degeneracy=policy)
        (first,) = grad((U.diagonal().square() * W).sum(), leaf, create_graph=True)
        (second,) = grad((first * turn).sum(), leaf)
        return second

    assert float(curvature("nan").abs().max()) > 1e11
    assert_close(curvature("mask"), curvature("nan"))


def test_forward_mode_by_two_reverse_ones() -> None:
    """Forward mode as the derivative of the gradient with respect to its cotangents, which are zero."""
    for A, f in (
        (make_symmetric(5, 2, 1e-8, torch.float64), lambda A: lapgrad.syevd(A).U),
        (make_rectangular(4, 6, 2, 1e-8, torch.float64), lambda A: lapgrad.gesvd(A).V),
    ):
        direction = draw_normal(*A.shape, seed=3)
        _, forward = func.jvp(f, (A,), (direction,))
        _, reverse = torch.autograd.functional.jvp(f, (A,), (direction,))
        assert_close(reverse, forward)


def make_rectangular(m: int, n: int, group: int, gap: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return a matrix whose singular values are those of ``make_spectrum``."""
    k = min(m, n)
    return (
        (draw_orthogonal(k, m, seed).mT * make_spectrum(k, group, gap)) @ draw_orthogonal(k, n, seed + 1)
    ).to(dtype)


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def list_losses(m: int, n: int) -> dict[str, Loss]:
    """Return losses of the vectors of a group that depend only on the spanned spaces and on U^T V."""
    left, right, both = draw_weights(m), draw_weights(n), draw_normal(m, n, seed=98)
    return {
        "left": lambda U, V, _: compute_loss_of_space(U, left),
        "right": lambda U, V, _: compute_loss_of_space(V, right),
        "both spaces": lambda U, V, _: compute_loss_of_space(U, left) + compute_loss_of_space(V, right),
        "U^T V": lambda U, V, _: ((U.mT @ V) * both.to(U.dtype)).sum(),
    }


def compute_gradient_of_group(
    U: Tensor, S: Tensor, V: Tensor, group: int, loss: Loss, *, parted: bool = True
) -> Tensor:
    """Return the gradient of a loss of the vectors of the smallest singular values, without their gaps.

    G_ij = 1/2 [(u + v) / (S_i - S_j) - (u - v) / (S_i + S_j)], u and v of sk(gU U^T) and sk(gV V^T): within
    the group without the first term, and without the second where sums of its values are small, too.
    """
    k, inside = S.shape[-1], torch.arange(S.shape[-1], device=DEVICE) >= S.shape[-1] - group
    U, V = U.clone().requires_grad_(), V.clone().requires_grad_()
    gU, gV = grad(loss(U[..., k - group :, :], V[..., k - group :, :], V), (U, V), materialize_grads=True)
    U, V = U.detach(), V.detach()
    X, Y = gU @ U.mT, gV @ V.mT
    u, v = X - X.mT, Y - Y.mT
    pairs = inside[:, None] & inside
    gap, total = S[..., :, None] - S[..., None, :], S[..., :, None] + S[..., None, :]
    turning = ((u + v) / gap.masked_fill(pairs, 1.0)).masked_fill(pairs | (gap == 0), 0.0)
    parting = ((u - v) / total).masked_fill(pairs & (not parted), 0.0)
    middle = U.mT @ (0.5 * (turning - parting)) @ V
    wide = U.mT @ ((gV - Y @ V) / S[..., None]) if parted else 0.0
    tall = ((gU - X @ U) / S[..., None]).mT @ V if parted else 0.0
    return middle + wide + tall


@pytest.mark.parametrize(("path", "isa"), PATHS_AND_ISAS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_spaces_of_close_singular_vectors(dtype: torch.dtype, path: str, isa: str) -> None:
    with force_path(path, isa):
        for m, n, group in ((4, 4, 2), (4, 7, 3), (9, 5, 2), (10, 10, 5), (40, 40, 3), (70, 100, 5)):
            if not _is_of_use(path, isa, m):
                continue
            units = OF_A_GROUP * of_order(max(m, n))
            losses = list_losses(m, n)
            for gap in GAPS[1::2] if m <= 10 else GAPS[2::6]:
                A = torch.stack([make_rectangular(m, n, group, gap, dtype, seed=2 * i) for i in range(3)])
                for operand in (A[0], A):
                    columns, S, rows = torch.linalg.svd(operand.double(), full_matrices=False)
                    for name, loss in losses.items():
                        leaf = operand.clone().requires_grad_()
                        U, _, V = lapgrad.gesvd(leaf)
                        (actual,) = grad(loss(U[..., -group:, :], V[..., -group:, :], V), leaf)
                        expected = compute_gradient_of_group(columns.mT, S, rows, group, loss)
                        assert float(expected.abs().max()) > 0.1, name
                        assert_close(actual, expected.to(dtype), units)


@pytest.mark.parametrize("path", ["default", "no lanes", "fallback"])
@pytest.mark.parametrize("shape", [(5, 5), (5, 8), (8, 5), (36, 50)], ids=str)
@pytest.mark.parametrize("size", [1e-11, 1e-9, 1e-7, 1e-5])
def test_spaces_of_small_singular_values(size: float, shape: tuple[int, int], path: str) -> None:
    """Sums of two small values are small, too; and gV may be in the space of V, up to rounding.

    The space of the short side is well determined; so is that of the long side within the space of all V,
    which itself is not: the reference is a formula of the same U, S and V.
    """
    (m, n), k, group = shape, min(shape), 2
    values = torch.linspace(3, 2, k, dtype=torch.float64, device=DEVICE)
    values[k - group :] = size * torch.tensor([1.5, 1.0], dtype=torch.float64, device=DEVICE)
    A = (draw_orthogonal(k, m, 0).mT * values) @ draw_orthogonal(k, n, 1)
    short = draw_weights(k)
    short_side: Loss = lambda U, V, _: compute_loss_of_space(U if m <= n else V, short)  # noqa: E731

    def long_side(U: Tensor, V: Tensor, rows: Tensor) -> Tensor:
        """<W, P P_0>, P_0 the constant projector onto all rows."""
        frame = rows.detach()
        return compute_loss_of_space(V, frame.mT @ frame @ draw_weights(n) @ frame.mT @ frame)

    with force_path(path):
        for operand in (A, torch.stack([A, A])):
            for loss in (short_side, long_side) if m <= n else (short_side,):
                leaf = operand.clone().requires_grad_()
                U, S, V = lapgrad.gesvd(leaf)
                (actual,) = grad(loss(U[..., -group:, :], V[..., -group:, :], V), leaf)
                found = (part.detach() for part in (U, S, V))
                expected = compute_gradient_of_group(*found, group, loss, parted=False)
                assert_close(actual, expected, OF_A_GROUP * of_order(max(m, n)))


@pytest.mark.parametrize("path", ["default", "no lanes", "fallback"])
def test_single_singular_vectors_keep_their_gradient(path: str) -> None:
    gap = 1e-8
    A = torch.stack([make_rectangular(5, 7, 3, gap, torch.float64, seed=2 * i) for i in range(3)])
    W = draw_weights(7)

    def gradient(policy: str) -> Tensor:
        leaf = A.clone().requires_grad_()
        U, _, V = lapgrad.gesvd(leaf, degeneracy=policy)
        return grad((U[:, -1] * W[0, :5]).sum() + (V[:, -2] * W[1]).sum(), leaf)[0]

    with force_path(path):
        kept, bare = gradient("mask"), gradient("nan")
    assert_close(kept, bare)
    assert (kept.abs().amax((-2, -1)) > 0.01 / gap).all()
