"""pstrf: what is particular to it, beyond the properties that all operators share."""

from __future__ import annotations

import pytest
import torch
from device import DEVICE, KERNELS
from kernel_packages import replace_by_torch
from tolerances import assert_close, of_order
from torch import Tensor

import lapgrad
from lapgrad import pstrf

DTYPES = (torch.float32, torch.float64)


@pytest.fixture(params=["kernels of the device", "plain PyTorch"])
def _kernels_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain PyTorch":
        replace_by_torch(monkeypatch, KERNELS, "pstrf")


def draw_low_rank(*batch: int, n: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Semidefinite matrices of that rank, whose entries and sums of them have no rounding errors."""
    X = torch.randint(-3, 4, (*batch, n, rank), dtype=dtype, device=DEVICE)
    return X @ X.mT


def restore(L: Tensor, pivots: Tensor) -> Tensor:
    """P L L^T P^T."""
    back = pivots.argsort()
    return (L @ L.mT)[back][:, back]


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize(("n", "rank"), [(1, 1), (6, 3), (70, 9), (70, 60), (150, 100)])
def test_rank_is_found(n: int, rank: int) -> None:
    """The product is the matrix, and columns past the rank are zero."""
    A = draw_low_rank(n=n, rank=rank)
    L, pivots, found = pstrf(A)
    assert int(found) == rank
    assert torch.count_nonzero(L[:, rank:]) == 0
    assert torch.equal(pivots.sort().values, torch.arange(n, device=DEVICE))
    assert_close(restore(L, pivots), A, of_order(n))


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("n", "most"), [(40, 40), (200, 20), (200, 199), (130, 70)])
def test_agrees_with_lapack(n: int, most: int, lower: bool) -> None:
    lapack = pytest.importorskip("scipy.linalg.lapack")
    X = torch.randn(n, n, dtype=torch.float64)
    A = X @ X.mT
    factor, pivots, rank, _ = lapack.dpstrf(A.numpy(), lower=int(lower))
    found = pstrf(A.to(DEVICE), rank=most, lower=lower)
    L = found.L if lower else found.L.mT
    expected = torch.from_numpy(factor if lower else factor.T).tril()[:, :most]
    assert rank == n
    assert int(found.rank) == most
    # LAPACK goes on, and exchanges the rows after the first ones once more.
    assert found.pivots[:most].cpu().equal(torch.from_numpy(pivots)[:most] - 1)
    # The condition number of these matrices is about n^2; the last columns divide by the smallest pivots.
    assert_close(L[:most].cpu(), expected[:most], of_order(n) * n)


@pytest.mark.usefixtures("_kernels_of")
def test_pivots_fall_and_what_is_left_is_no_larger() -> None:
    X = torch.randn(60, 60, dtype=torch.float64, device=DEVICE)
    A = X @ X.mT
    L, pivots, _ = pstrf(A, rank=25)
    diagonal = L.diagonal()
    assert (diagonal[1:] <= diagonal[:-1]).all()
    left = A - restore(L, pivots)
    assert left.abs().max() <= diagonal[-1].square()


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize(("tol", "rank"), [(0.0, 4), (1.0, 3), (4.5, 2), (9.0, 1), (16.0, 0)])
def test_ends_at_pivots_that_are_not_larger(tol: float, rank: int) -> None:
    A = torch.diag(torch.tensor([1.0, 9.0, 16.0, 4.5], device=DEVICE))
    L, pivots, found = pstrf(A, tol=tol)
    assert int(found) == rank
    assert L.diagonal().count_nonzero() == rank
    assert pivots[:rank].tolist() == [2, 1, 3, 0][:rank]


@pytest.mark.usefixtures("_kernels_of")
def test_items_of_a_batch_have_ranks_of_their_own() -> None:
    A = torch.stack([draw_low_rank(n=12, rank=rank) for rank in (12, 1, 5)])
    A = torch.cat((A, torch.zeros_like(A[:1]))).reshape(2, 2, 12, 12)
    L, pivots, rank = pstrf(A)
    assert rank.tolist() == [[12, 1], [5, 0]]
    for i in range(2):
        for j in range(2):
            alone = pstrf(A[i, j])
            assert pivots[i, j].equal(alone.pivots)
            assert_close(L[i, j], alone.L, of_order(12))


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_indefinite_matrix_ends_at_its_negative_part(dtype: torch.dtype) -> None:
    A = torch.tensor([[4.0, 2.0, 0.0], [2.0, 1.0, 3.0], [0.0, 3.0, -1.0]], dtype=dtype, device=DEVICE)
    L, pivots, rank = pstrf(A)
    assert (int(rank), pivots[0].item()) == (1, 0)
    assert L[:, 0].tolist() == [2.0, 1.0, 0.0]


@pytest.mark.usefixtures("_kernels_of")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [3, 90])
def test_what_is_not_finite_is_named(n: int, bad: float) -> None:
    A = torch.eye(n, dtype=torch.float64, device=DEVICE).expand(4, n, n).clone()
    A[2, n - 1, n - 1] = bad
    with pytest.raises(lapgrad.NonFiniteError, match=r"pstrf: A\[2\] .* pivot 1 ") as raised:
        pstrf(A)
    assert (raised.value.item, raised.value.pivot) == ((2,), 1)
    A[2, n - 1, n - 1] = 1.0
    A[2, n - 1, 0] = bad
    with pytest.raises(lapgrad.NonFiniteError) as raised:
        pstrf(A)
    assert raised.value.pivot == 2


@pytest.mark.parametrize("options", [{"rank": 4}, {"rank": -1}, {"tol": -1.0}, {"tol": float("nan")}])
def test_options(options: dict[str, float]) -> None:
    with pytest.raises(lapgrad.OptionError, match=f"pstrf: {next(iter(options))} must be"):
        pstrf(torch.eye(3), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("most", "lower"), [(5, True), (4, False), (2, True)])
def test_derivatives_of_deficient_matrices(most: int, lower: bool) -> None:
    """Columns past the rank are constant, and do not disturb the others; first and second order."""
    X = torch.randn(2, 5, 3, dtype=torch.float64, device=DEVICE)
    X[1, :, 2:] = 0.0

    def factor(X: Tensor) -> Tensor:
        return pstrf(X @ X.mT, rank=most, tol=1e-8, lower=lower).L

    assert pstrf(X @ X.mT, tol=1e-8).rank.tolist() == [3, 2]
    X.requires_grad_()
    assert torch.autograd.gradcheck(factor, X, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(factor, X)
