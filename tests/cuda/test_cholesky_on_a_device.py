"""Matrices that are factorised by blocks, on a device, at the orders they are meant for."""

from __future__ import annotations

import pytest
import torch
from tolerances import DEFAULT, assert_close, of_order
from torch import Tensor

import lapgrad
from lapgrad._cuda import _sizes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ORDER = _sizes.FACTOR_BY_BLOCKS_FROM + 700


def positive_definite(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    X = torch.randn(ORDER, 200, dtype=dtype, device="cuda", generator=generator)
    A = (X @ X.mT).div_(200.0)
    A.diagonal().add_(1.0)
    return A


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_factors(dtype: torch.dtype, lower: bool) -> None:
    A = positive_definite(dtype)
    found = lapgrad.potrf(A, lower=lower)
    assert_close(found, torch.linalg.cholesky(A, upper=not lower), DEFAULT * of_order(ORDER))
    overwritten = A.clone()
    assert torch.equal(lapgrad.potrf(overwritten, lower=lower, overwrite=True), found)


@pytest.mark.parametrize("row", [3, _sizes.FACTOR_BLOCK + 5, ORDER - 1])
def test_the_first_minor_that_is_not_positive(row: int) -> None:
    A = positive_definite(torch.float64)
    A[row, row] = A[ORDER - 1, ORDER - 1] = -5.0
    L, info = lapgrad.potrf_ex(A)
    assert int(info) == row + 1
    assert torch.equal(L, torch.eye(ORDER, dtype=L.dtype, device=L.device))
    A[row, row] = torch.nan
    assert int(lapgrad.potrf_ex(A).info) == -row - 1
