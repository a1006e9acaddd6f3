"""extracttrian and maketrian: the CUDA kernels against the fallback, bit by bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_packages import in_torch as _fallback
from kernel_packages import on_cuda
from machines import MACHINES, Machine
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import packing as _packing

machines = pytest.mark.parametrize("machine", MACHINES)

#: Orders at which a block has several items, a row takes a part of a warp or a warp, and tiles are partial.
ORDERS = (1, 2, 5, 16, 33, 70)
#: An order at which a row takes two warps.
LARGE = 520
FLAGS = [(0, True), (0, False), (1, True), (-1, True), (3, True), (-3, True)]


def make_numbered(machine: Machine, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor of distinct numbers, none of them zero."""
    count = torch.Size(shape).numel()
    return (1.0 + torch.arange(count, dtype=dtype)).view(shape).to(machine.device)


def count_packed(n: int, offset: int) -> int:
    k = n - abs(offset)
    return k * (k + 1) // 2


def check_packing(machine: Machine, A: Tensor, offset: int, lower: bool) -> None:
    """Check packing into vectors with gaps between them, which must not be written."""
    items, size = A.shape[0], count_packed(A.shape[-1], offset)
    expected = A.new_empty(items, size)
    _fallback.extracttrian(expected, A, offset, lower)
    for step in (1, 2):
        memory = A.new_full((items, 1, step * size + 1), torch.nan)
        v = memory[..., : step * size : step]
        machine.launch(_packing.plan_packing(v, A, offset, lower))
        assert torch.equal(v[:, 0], expected)
        assert int(memory.isnan().sum()) == memory.numel() - v.numel()


def check_unpacking(machine: Machine, v: Tensor, n: int, offset: int, lower: bool) -> None:
    """Check unpacking into blocks of larger matrices."""
    items = v.shape[0]
    expected = v.new_empty(items, n, n)
    _fallback.maketrian(expected, v[:, 0], offset, lower)
    memory = v.new_empty(items, n + 1, n + 2)
    for A in (memory[:, 1:, :-2], memory.mT[:, 1:-1, 1:]):
        memory.fill_(torch.nan)
        machine.launch(_packing.plan_unpacking(A, v, offset, lower))
        assert torch.equal(A, expected)
        assert int(memory.isnan().sum()) == memory.numel() - A.numel()


@machines
@pytest.mark.parametrize("n", ORDERS)
def test_orders_and_offsets(machine: Machine, n: int) -> None:
    dtype = torch.float32 if n == 5 else torch.float64
    for offset, lower in FLAGS:
        if abs(offset) > n:
            continue
        A = make_numbered(machine, 3, n, n, dtype=dtype)
        check_packing(machine, A, offset, lower)
        check_packing(machine, A.mT, offset, lower)
        check_unpacking(
            machine, make_numbered(machine, 3, 1, count_packed(n, offset), dtype=dtype), n, offset, lower
        )


@machines
def test_rows_of_several_warps(machine: Machine) -> None:
    for lower in (True, False):
        A = make_numbered(machine, 1, LARGE, LARGE)
        A = A if lower else A.mT
        check_packing(machine, A, 0, lower)
    check_unpacking(machine, make_numbered(machine, 1, 1, count_packed(LARGE, -2)), LARGE, -2, True)


@machines
@pytest.mark.parametrize("n", [1, 3, 16])
def test_more_items_than_a_block_takes(machine: Machine, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block is not full, blocks begin in the middle of items, and rows need several passes."""
    items = 1111 if n == 1 else 150
    monkeypatch.setattr(_thresholds, "PACKING_MANY_THREADS", 0)
    for lower in (True, False):
        check_packing(machine, make_numbered(machine, items, n, n), 0, lower)
        check_unpacking(machine, make_numbered(machine, items, 1, count_packed(n, 0)), n, 0, lower)


@machines
def test_any_strides(machine: Machine) -> None:
    for n, (offset, lower) in itertools.product((5, 40), ((0, True), (0, False), (-2, True))):
        A = make_numbered(machine, 2, n, n)
        apart = A.new_full((2, n, 2 * n), torch.nan)[..., ::2].copy_(A)
        innermost = A.movedim(0, -1).contiguous().movedim(-1, 0)
        for B in (apart, innermost, A[:1].expand_as(A), A[:, :1].expand_as(A), A[:, :1, :1].expand_as(A)):
            check_packing(machine, B, offset, lower)
        v = make_numbered(machine, 2, 1, count_packed(n, offset))
        for u in (v[:1].expand_as(v), v[..., :1].expand_as(v), v.movedim(0, -1).contiguous().movedim(-1, 0)):
            check_unpacking(machine, u, n, offset, lower)


@pytest.mark.parametrize("machine", [MACHINES[0], MACHINES[-1]])
@pytest.mark.parametrize("batch", [(), (2, 3), (0,), (2, 0)], ids=str)
def test_as_operators_call_them(
    machine: Machine, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called as operators do: any leading dimensions, also without a common stride, and empty triangles."""
    if machine.device != "cpu":
        check_calls(machine, batch)
        return
    monkeypatch.setattr(_stream, "bind_context", lambda _: None)
    with replace_gpu():
        check_calls(machine, batch)


def check_calls(machine: Machine, batch: tuple[int, ...]) -> None:
    for n, offset, lower in ((0, 0, True), (4, 0, True), (4, 0, False), (4, -4, True), (4, 1, True)):
        A, size = make_numbered(machine, *batch, n, n), count_packed(n, offset)
        operands = [(A, A.new_full((*batch, size), torch.nan), A.new_full((*batch, n, n), torch.nan))]
        if len(batch) > 1:
            first, second, *others = range(A.dim())
            B = A.permute(second, first, *others).contiguous().permute(second, first, *others)
            C = A.new_full((batch[1], batch[0], n, n), torch.nan).permute(second, first, *others)
            operands.append((B, A.new_full((batch[1], batch[0], size), torch.nan).transpose(0, 1), C))
        for matrix, v, result in operands:
            expected, back = torch.empty_like(v), torch.empty_like(A)
            _fallback.extracttrian(expected, matrix, offset, lower)
            on_cuda.extracttrian(v, matrix, offset, lower)
            assert torch.equal(v, expected)
            _fallback.maketrian(back, v, offset, lower)
            on_cuda.maketrian(result, v, offset, lower)
            assert torch.equal(result, back)


@pytest.mark.parametrize("machine", MACHINES[-1:])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("items", "n"), [(70000, 3), (300, 64), (5, 129), (2, 1000), (1, 2049)])
def test_all_sizes_on_a_device(machine: Machine, items: int, n: int, dtype: torch.dtype) -> None:
    A = torch.randn(items, n, n, generator=torch.Generator().manual_seed(n), dtype=dtype).to(machine.device)
    for offset, lower in FLAGS:
        check_packing(machine, A, offset, lower)
        check_packing(machine, A.mT, offset, lower)
        v = A.flatten(1)[:, None, : count_packed(n, offset)]
        check_unpacking(machine, v, n, offset, lower)
