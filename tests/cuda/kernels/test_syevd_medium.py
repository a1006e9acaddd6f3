"""syevd on CUDA at middle orders: batches on cuSOLVER, and the steps before and after its routine."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from unittest import mock

import pytest
import tolerances
import torch
from kernel_packages import on_cuda
from stand_ins import decompose_symmetric, replace_gpu
from torch import Tensor

from lapgrad._formulas.gaps import fix_signs
from lapgrad._kernels import cuda as _cuda
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import symmetric as _symmetric
from lapgrad._kernels.cuda.runtime import stream as _stream

#: The module; the package has a function of this name.
routines = importlib.import_module("lapgrad._kernels.cuda.syevd")

N = 70


def draw_symmetric(items: int, n: int = N) -> Tensor:
    A = torch.randn(items, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return (A + A.mT) / 2


def check(A: Tensor, eigenvalues: Tensor, U: Tensor) -> None:
    eps = torch.finfo(A.dtype).eps
    allowed = tolerances.SPECTRAL * A.shape[-1] * eps * float(A.abs().max())
    assert float((U @ A @ U.mT - torch.diag_embed(eigenvalues)).abs().max()) <= allowed
    assert float((U @ U.mT - torch.eye(A.shape[-1])).abs().max()) <= tolerances.SPECTRAL * A.shape[-1] * eps
    signed = U.clone()
    fix_signs(signed)
    assert torch.equal(signed, U)


@pytest.fixture
def solver() -> Iterator[list[int]]:
    """LAPACK behind cuSOLVER's interface: one triangle in, rows of eigenvectors out, a status per item."""
    statuses = [0] * 16

    def solve(values: Tensor, rows: Tensor, status: Tensor, vectors: bool) -> None:
        decompose_symmetric(values, rows, status, vectors)
        status.copy_(torch.tensor(statuses[: len(status)]))

    with replace_gpu(), mock.patch.object(_symmetric, "decompose_batch", solve):
        yield statuses


@pytest.mark.parametrize("lower", [True, False])
def test_one_triangle_is_read(solver: list[int], lower: bool) -> None:
    A = draw_symmetric(6).view(2, 3, N, N)
    seen = A.tril() if lower else A.triu()
    eigenvalues, U = A.new_empty(2, 3, N), torch.empty_like(A)
    assert routines._decompose_batch(eigenvalues, U, seen, lower) is None
    check(A, eigenvalues, U)
    alone = A.new_empty(2, 3, N)
    assert routines._decompose_batch(alone, None, seen, lower) is None
    torch.testing.assert_close(alone, eigenvalues)


def test_failures(solver: list[int]) -> None:
    A = draw_symmetric(4)
    eigenvalues, U = A.new_empty(4, N), torch.empty_like(A)
    solver[3] = 5
    assert routines._decompose_batch(eigenvalues, U, A, True) == (3, 1)
    A[2, 8, 3] = torch.inf
    assert routines._decompose_batch(eigenvalues, U, A, True) == (2, -1)
    assert eigenvalues[2].isnan().all()
    assert eigenvalues[1].isfinite().all()
    A[2, 8, 3] = 0.0
    A[1, 3, 8] = torch.nan  # in the other triangle
    solver[3] = 0
    assert routines._decompose_batch(eigenvalues, U, A, True) is None


def test_values_past_the_largest_number_are_not_finite(solver: list[int]) -> None:
    A = draw_symmetric(3)
    A[1] = 1.7e308
    with mock.patch.object(_symmetric, "decompose_batch") as solve:
        solve.side_effect = lambda values, rows, status, vectors: values.copy_(A.sum(-1))
        assert routines._decompose_batch(A.new_empty(3, N), torch.empty_like(A), A, True) == (1, -1)


@pytest.mark.parametrize("place", [(0, 0), (3, 2), (29, 29), (29, 0)])
def test_vectors_of_one_small_matrix_are_checked(solver: list[int], place: tuple[int, int]) -> None:
    """Where cuSOLVER's vectors are not orthonormal, the kernel for small matrices decomposes again."""
    A = draw_symmetric(1, 30)[0]
    eigenvalues, U = A.new_empty(30), torch.empty_like(A)
    with mock.patch.object(routines._syevd_batch, "syevd", side_effect=AssertionError("not needed")):
        assert routines._decompose(eigenvalues, U, A, True) is None
    check(A, eigenvalues, U)

    def lose_orthogonality(values: Tensor, rows: Tensor, status: Tensor, vectors: bool) -> None:
        decompose_symmetric(values, rows, status, vectors)
        rows[0][place] += 1e-12

    with mock.patch.object(_symmetric, "decompose_batch", lose_orthogonality):
        assert routines._decompose_batch(eigenvalues, U, A, True, verified=True) == (0, 2)
        assert routines._decompose(eigenvalues, U, A, True) is None
    check(A, eigenvalues, U)


def test_nothing_is_read_while_a_graph_is_captured(
    solver: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream, "is_capturing", lambda: True)
    A = draw_symmetric(2)
    A[1, 0, 0] = torch.nan
    eigenvalues = A.new_empty(2, N)
    assert routines._decompose_batch(eigenvalues, None, A, True) is None
    assert eigenvalues[1].isnan().all()


@pytest.mark.skipif(not (torch.cuda.is_available() and _cuda.is_available()), reason="no CUDA device")
@pytest.mark.parametrize("n", [65, 128])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_on_a_device(monkeypatch: pytest.MonkeyPatch, n: int, dtype: torch.dtype) -> None:
    A = draw_symmetric(5, n).to(dtype)
    for part in (_thresholds.SYEVD_WORKSPACE_PART, 1 << 40):  # the batch as a whole, and in parts of one
        monkeypatch.setattr(_thresholds, "SYEVD_WORKSPACE_PART", part)
        for lower in (True, False):
            seen = (A.tril() if lower else A.triu()).cuda()
            eigenvalues, U = seen.new_empty(5, n), torch.empty_like(seen)
            assert on_cuda.syevd(eigenvalues, U, seen, lower) is None
            check(A, eigenvalues.cpu(), U.cpu())
    spoilt = A.cuda()
    spoilt[3, 2, 1] = torch.nan
    assert on_cuda.syevd(eigenvalues, U, spoilt, True) == (3, -1)


def test_how_many_matrices_are_decomposed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small matrix is decomposed twice; of larger ones few are taken one after another."""
    taken = []

    def solve(values: Tensor, rows: Tensor, status: Tensor, vectors: bool, together: int) -> None:
        taken.append((len(rows), together))
        decompose_symmetric(values, rows, status, vectors)

    monkeypatch.setattr(_symmetric, "_call_solver", solve)
    monkeypatch.setattr(_stream, "is_capturing", lambda: False)
    monkeypatch.setattr(_thresholds, "SYEVD_IN_BLOCK", 100 * 8)
    monkeypatch.setattr(_thresholds, "SYEVD_DOUBLED", 70)
    for items, n, wanted in (
        (1, 9, (1, 1)),
        (1, 66, (2, 2)),
        (3, 9, (3, 3)),
        (1, 12, (1, 1)),
        (7, 12, (7, 1)),
        (8, 12, (8, 8)),
    ):
        A = draw_symmetric(items, n)
        values, rows, status = A.new_empty(items, n), A.clone(), torch.ones(items, dtype=torch.int32)
        _symmetric.decompose_batch(values, rows, status, True)
        assert taken.pop() == wanted
        assert not status.any()
        monkeypatch.setattr(_stream, "is_capturing", lambda: True)
        _symmetric.decompose_batch(values.clone(), A.clone(), status, True)
        assert taken.pop() == (max(items, 2), max(items, 2))
        monkeypatch.setattr(_stream, "is_capturing", lambda: False)
        difference = rows @ A @ rows.mT - torch.diag_embed(values)
        assert float(difference.abs().max()) <= tolerances.SPECTRAL * n * torch.finfo(A.dtype).eps * n
