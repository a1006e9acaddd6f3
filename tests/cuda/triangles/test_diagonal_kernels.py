"""sumlogdiag, mirrored triangles and diagonals: the CUDA kernels against the definition."""

from __future__ import annotations

import pytest
import torch
from machines import MACHINES, Machine
from tolerances import assert_close

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.small import packing as _packing
from lapgrad._kernels.cuda.small import sumlogdiag as _sumlogdiag

machines = pytest.mark.parametrize("machine", MACHINES)

#: Orders at which a block has several items, a warp has one, and a block has one; (items, order).
SHAPES = ((300, 1), (5, 3), (2, 33), (2, 129), (1, 300))


@machines
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums(machine: Machine, dtype: torch.dtype) -> None:
    """Also of matrices inside of larger ones, and transposed; nothing beside the sums is written."""
    for items, n in SHAPES:
        whole = torch.randn(items, n + 1, n + 2, dtype=dtype).to(machine.device)
        for A in (whole[:, 1:, :n], whole[:, 1:, 2:].mT):
            memory = A.new_full((items + 1,), torch.nan)
            machine.launch(_sumlogdiag.plan_sum(memory[:items], A))
            expected = A.diagonal(dim1=-2, dim2=-1).double().abs().log().sum(-1).to(dtype)
            scale = float(A.diagonal(dim1=-2, dim2=-1).double().abs().log().abs().sum(-1).max())
            assert_close(memory[:items] / scale, expected / scale)
            assert memory[items].isnan()


@machines
@pytest.mark.parametrize("passes", [1, 4])
def test_gradients(machine: Machine, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thresholds, "PACKING_MANY_THREADS", 1 if passes > 1 else 1 << 60)
    _sumlogdiag._choose_rows.cache_clear()
    for items, n in SHAPES:
        A = torch.randn(items, n, n + 1, dtype=torch.float64).to(machine.device)[..., :n]
        gs = torch.randn(items, 2, dtype=torch.float64).to(machine.device)[:, 1]
        memory = A.new_full((items * n * n + 1,), torch.nan)
        gA = memory[:-1].view(items, n, n)
        machine.launch(_sumlogdiag.plan_vjp(gA, A, gs))
        expected = torch.diag_embed(gs[:, None] / A.diagonal(dim1=-2, dim2=-1))
        assert torch.equal(gA, expected)
        assert memory[-1].isnan()
    _sumlogdiag._choose_rows.cache_clear()


@machines
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_mirrored_rows(machine: Machine, n: int) -> None:
    A = torch.randn(3, n, n, dtype=torch.float64).to(machine.device)
    expected = A.tril() + A.tril(-1).mT
    A += torch.full_like(A, torch.nan).triu(1).nan_to_num(nan=9.0)
    machine.launch(_packing.plan_mirror(A))
    assert torch.equal(A, expected)


@machines
def test_diagonals(machine: Machine) -> None:
    for items, n in SHAPES:
        d = torch.randn(items, 2 * n, dtype=torch.float64).to(machine.device)[:, ::2]
        memory = d.new_full((items * n * n + 1,), torch.nan)
        machine.launch(_packing.plan_diagonals(memory[:-1].view(items, n, n), d))
        assert torch.equal(memory[:-1].view(items, n, n), torch.diag_embed(d))
        assert memory[-1].isnan()


@machines
@pytest.mark.parametrize("n", [1, 7, 64, 70])
def test_mirrored_copies(machine: Machine, n: int) -> None:
    """Row by row and by tiles, of matrices inside of larger ones and transposed."""
    whole = torch.randn(2, n + 1, n + 2, dtype=torch.float64).to(machine.device)
    for A in (whole[:, 1:, :n], whole[:, 1:, 2:].mT):
        for lower in (True, False):
            memory = A.new_full((A.numel() + 1,), torch.nan)
            machine.launch(_packing.plan_mirrored_copy(memory[:-1].view(A.shape), A, lower))
            expected = A.tril() + A.tril(-1).mT if lower else A.triu() + A.triu(1).mT
            assert torch.equal(memory[:-1].view(A.shape), expected)
            assert memory[-1].isnan()


@machines
def test_gathered_diagonals(machine: Machine) -> None:
    for items, n in SHAPES:
        A = torch.randn(items, n + 1, n + 2, dtype=torch.float64).to(machine.device)[:, 1:, :n]
        memory = A.new_full((items * n + 1,), torch.nan)
        machine.launch(_packing.plan_gathered_diagonals(memory[:-1], A))
        assert torch.equal(memory[:-1].view(items, n), A.diagonal(dim1=-2, dim2=-1))
        assert memory[-1].isnan()
