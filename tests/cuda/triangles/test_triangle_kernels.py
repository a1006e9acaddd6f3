"""Triangles that are mirrored, moved and cleared, and inverses of diagonal blocks."""

from __future__ import annotations

import emulated
import pytest
import torch
from machines import MACHINES, Machine
from tolerances import INVERTED_BLOCKS, assert_close
from torch import Tensor

from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.native import core
from lapgrad._torch import lu as torch_lu

_STRIP, _DEPTH = (core.constants()[f"device_{name}"] for name in ("strip", "depth"))


def make_well_conditioned(n: int, dtype: torch.dtype, device: str) -> Tensor:
    entries = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (entries / n**0.5 + 2.0 * torch.eye(n)).to(device, dtype)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(("half", "n"), [(64, 200), (64, 128), (64, 140), (128, 250), (128, 384)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_merged_inverses(dtype: torch.dtype, half: int, n: int, by_columns: bool, machine: Machine) -> None:
    """Merging inverses of blocks reads only the lower triangle of L, and writes only below the blocks."""
    L = make_well_conditioned(n, dtype, machine.device)
    L = L.mT.contiguous().mT if by_columns else L
    W, wanted = torch.zeros(2, n, n, dtype=dtype, device=L.device), torch.zeros_like(L)
    for size, target in ((half, W), (2 * half, wanted)):
        for start in range(0, n, size):
            block = slice(start, min(start + size, n))
            target[:, block, block] = torch_lu.inv(L[:, block, block].tril())
    pairs = -(-n // (2 * half))
    shared = half * (_STRIP + _DEPTH + 1) * L.element_size()
    operands = (L.data_ptr(), *L.stride(), W.data_ptr(), *W.stride()[:2])
    plan = ("triangle", "merge_inverses<{T}>", L, (half // _STRIP, pairs, 2), half, shared)
    machine.launch((*plan, *operands, n, half))
    assert_close(W, wanted.tril(), INVERTED_BLOCKS)


#: Kind of reshaping: the expected result, and which triangle of the input is ignored.
RESHAPED = {
    _device.MIRROR_UP: (lambda A: A.tril() + A.tril(-1).mT, "upper"),
    _device.MIRROR_DOWN: (lambda A: A.triu() + A.triu(1).mT, "lower"),
    _device.MOVE_DOWN: (lambda A: A.triu().mT, "lower"),
    _device.CLEAR_UPPER: (torch.tril, "upper"),
    _device.CLEAR_LOWER: (torch.triu, "lower"),
}


@pytest.mark.cpu
@pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels")
@pytest.mark.parametrize("reverse_order", [False, True])
@pytest.mark.parametrize("n", [20, 32, 70])
@pytest.mark.parametrize("kind", RESHAPED)
def test_reshaped_triangles_of_which_only_one_was_written(kind: int, n: int, reverse_order: bool) -> None:
    reshaped, free = RESHAPED[kind]
    A = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    wanted = reshaped(A)
    everywhere = torch.ones(2, n, n, dtype=torch.bool)
    unwritten = everywhere.triu(1) if free == "upper" else everywhere.tril(-1)
    A[unwritten] = torch.nan
    tiles = -(-n // 32)
    plan = (
        "triangle",
        f"reshape_triangle<{{T}}, {kind}>",
        A,
        (tiles * (tiles + 1) // 2, 2),
        256,
        2 * 32 * 33 * 8,
    )
    arguments = (A.data_ptr(), *A.stride()[:2], n)
    emulated.launch(*plan, *arguments, reverse_order=reverse_order, unwritten=(A, unwritten))
    assert torch.equal(A, wanted)
