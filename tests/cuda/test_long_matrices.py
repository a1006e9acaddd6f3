"""Long matrices on CUDA: singular values of one by way of an LQ factorisation, and gradients of tall ones."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import emulated
import pytest
import torch
from kernel_packages import in_torch as _fallback
from stand_ins import replace_gpu
from tolerances import SPECTRAL, assert_close, of_order
from torch import Tensor

from lapgrad._formulas.gaps import find_row_signs
from lapgrad._kernels.cuda.runtime import stream as _stream

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
]

#: The modules; the package has functions of these names.
_gesvd, _gelqf = (importlib.import_module(f"lapgrad._kernels.cuda.{name}") for name in ("gesvd", "gelqf"))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    with replace_gpu():
        yield


@pytest.mark.parametrize("shape", [(5, 80), (90, 33), (1, 20, 150), (1, 1100, 3)], ids=str)
def test_singular_values_of_one_long_matrix(shape: tuple[int, ...]) -> None:
    A = torch.randn(shape, dtype=torch.float64)
    (m, n), k = shape[-2:], min(shape[-2:])
    assert _gesvd._is_longer(A)
    S, U, V = A.new_empty(*shape[:-2], k), A.new_empty(*shape[:-2], k, m), A.new_empty(*shape[:-2], k, n)
    assert _gesvd.gesvd(S, U, V, A) is None
    assert_close(S, torch.linalg.svdvals(A), SPECTRAL)
    assert_close(U.mT @ (S[..., None] * V), A, SPECTRAL)
    identity = torch.eye(k, dtype=A.dtype).expand(*shape[:-2], k, k)
    for vectors in (U, V):
        assert_close(vectors @ vectors.mT, identity, SPECTRAL)
    assert bool((find_row_signs(U) == 1.0).all())
    alone = torch.empty_like(S)
    assert _gesvd.gesvd(alone, None, None, A) is None
    assert_close(alone, S, SPECTRAL)
    A[..., 1, 2] = torch.nan
    assert _gesvd.gesvd(S, U, V, A) is not None


def test_batches_and_nearly_square_matrices_go_another_way() -> None:
    for shape in ((2, 5, 80), (60, 64), (70, 100), (130, 4000), (1000, 3)):
        assert not _gesvd._is_longer(torch.empty(shape, device="meta"))


def make_factors(m: int, n: int) -> tuple[Tensor, Tensor]:
    A = torch.randn(3, m, n, dtype=torch.float64)
    L, Q = A.new_empty(3, m, n), A.new_empty(3, n, n)
    assert _fallback.gelqf(L, Q, A, True) is None
    return Q, L


@pytest.mark.parametrize(("m", "n"), [(9, 4), (40, 20)])
@pytest.mark.parametrize(("has_q", "has_l"), [(True, True), (True, False), (False, True)])
def test_gradients_of_tall_matrices(m: int, n: int, has_q: bool, has_l: bool) -> None:
    Q, L = make_factors(m, n)
    gQ, gL = torch.randn_like(Q) if has_q else None, torch.randn_like(L) if has_l else None
    found, wanted = (torch.full((3, m, n), torch.nan, dtype=torch.float64) for _ in range(2))
    _gelqf.gelqf_vjp(found, Q, L, gQ, gL)
    _fallback.gelqf_vjp(wanted, Q, L, gQ, gL)
    # The triangle of a random matrix has a condition number of up to 100 at this seed and order.
    assert_close(found, wanted, 100.0 * of_order(m))
    if not has_q:
        alone = torch.full_like(found, torch.nan)
        _gelqf.gelqf_l_vjp(alone, L @ Q, L, gL)
        assert_close(alone, wanted, 100.0 * of_order(m))
