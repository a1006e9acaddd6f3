"""LU in torch's words on CUDA, emulated: values, memory layouts and statuses are those of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import emulated
import pytest
import torch
from kernel_packages import CUDA_KERNELS
from stand_ins import replace_gpu
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._translation import lu
from lapgrad._translation._torch_kernels import run_torch

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="stand-ins look into the compiled core"),
]

#: One matrix, a group of lanes, a block.
SHAPES = [(5, 5), (2, 3, 6, 6), (2, 40, 40)]


@pytest.fixture(autouse=True)
def tensors_count_as_those_of_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(lu, "lookup", lambda routine, tensor: CUDA_KERNELS[routine])
    monkeypatch.setattr(lu, "has_kernel", lambda routine, tensor: routine in CUDA_KERNELS)
    with replace_gpu():
        yield


def draw(shape: tuple[int, ...], row_major: bool = True) -> Tensor:
    A = torch.randn(shape, dtype=torch.float64) + 2.0 * torch.eye(shape[-1]).flip(-1)
    return A if row_major else A.mT.contiguous().mT


def compare(operator: str, found: Any, *operands: Tensor, **options: Any) -> None:
    """Check that torch's own operator returns the same values and strides."""
    expected = run_torch(operator, *operands, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.dtype == theirs.dtype
        if ours.is_floating_point():
            assert_close(ours, theirs, 10 * of_order(operands[0].shape[-1]))
        else:
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_one_matrix(shape: tuple[int, ...], row_major: bool) -> None:
    A = draw(shape, row_major)
    compare("linalg_lu_factor_ex", lu.compute_lu_factor_ex(A), A)
    compare("_linalg_det", lu.compute_det(A), A)
    compare("_linalg_slogdet", lu.compute_slogdet(A), A)
    compare("linalg_inv_ex", lu.compute_inv_ex(A), A)


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_solve(shape: tuple[int, ...], left: bool, row_major: bool) -> None:
    A = draw(shape, row_major)
    B = torch.randn((*shape[:-1], 3) if left else (*shape[:-2], 3, shape[-1]), dtype=torch.float64)
    compare("_linalg_solve_ex", lu.compute_solve_ex(A, B, left=left), A, B, left=left)
    if left:
        vectors = B[..., 0]
        compare("_linalg_solve_ex", lu.compute_solve_ex(A, vectors), A, vectors)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_matrices_and_such_with_nan(shape: tuple[int, ...]) -> None:
    A = draw(shape)
    first, last = A.view(-1, *shape[-2:])[0], A.view(-1, *shape[-2:])[-1]
    first[:, 2] = 0.0
    compute: dict[str, Any] = {
        "linalg_lu_factor_ex": lu.compute_lu_factor_ex,
        "linalg_inv_ex": lu.compute_inv_ex,
        "_linalg_solve_ex": lu.compute_solve_ex,
    }
    for operator, function in compute.items():
        operands = (A, A) if operator == "_linalg_solve_ex" else (A,)
        info = function(*operands)[-1].view(-1)
        assert info.tolist() == [3] + [0] * (len(info) - 1)
        with pytest.raises(RuntimeError) as expected:
            run_torch(operator, *operands, check_errors=True)
        with pytest.raises(expected.type, match=f"^{re.escape(str(expected.value))}$"):
            function(*operands, check_errors=True)
    assert lu.compute_det(A)[0].view(-1)[0] == 0.0
    assert lu.compute_slogdet(A)[1].view(-1)[0] == -torch.inf
    last[0, 0] = torch.nan  # torch does not call such a matrix singular, and returns NaN
    A = last.clone()
    assert not lu.compute_lu_factor_ex(A)[-1].any()
    assert not lu.compute_inv_ex(A)[-1].any()
    assert lu.compute_det(A)[0].isnan()
    assert lu.compute_solve_ex(A, A)[0].isnan().any()
