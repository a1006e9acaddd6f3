"""extracttrian and maketrian past the shared samples: orders around tiles, offsets, layouts, threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from device import DEVICE, KERNELS
from samples.triangles_and_products import packed_places
from torch import Tensor

import lapgrad

#: Orders at which the kernel copies four entries at a time, uses memcpy, or transposes tiles of 32 x 32.
ORDERS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 65, 97)
#: One matrix of this order is packed by several threads.
LARGE = 201


def list_triangles(n: int) -> Iterator[tuple[int, bool]]:
    """Return pairs (offset, lower): both triangles, and smaller ones down to one entry and none."""
    yield from ((0, True), (0, False))
    for distance in sorted({1, 2, n // 2, n - 1, n} & set(range(1, n + 1))):
        yield from ((distance, True), (-distance, False))


def make_numbered(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor of distinct nonzero numbers, so that every misplaced entry is seen."""
    count = torch.Size(shape).numel()
    return (1.0 + torch.arange(count, dtype=dtype, device=DEVICE)).view(shape)


def pack_by_definition(A: Tensor, offset: int, lower: bool) -> Tensor:
    """Return the packed triangle, by the definition, entry by entry."""
    rows, columns = packed_places(A.shape[-1], offset, lower)
    return A[..., rows, columns]


def unpack_by_definition(v: Tensor, n: int, offset: int, lower: bool) -> Tensor:
    A = v.new_zeros(*v.shape[:-1], n, n)
    rows, columns = packed_places(n, offset, lower)
    A[..., rows, columns] = v
    return A


def check(A: Tensor, offset: int, lower: bool) -> None:
    """Check that A is packed, and the packed vector unpacked, as the definition says, bit by bit."""
    v = pack_by_definition(A, offset, lower)
    assert torch.equal(lapgrad.extracttrian(A, offset=offset, lower=lower), v)
    expected = unpack_by_definition(v, A.shape[-1], offset, lower)
    assert torch.equal(lapgrad.maketrian(v, offset=offset, lower=lower), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", ORDERS)
def test_orders_and_offsets(n: int, dtype: torch.dtype) -> None:
    for offset, lower in list_triangles(n):
        for batch in ((), (3,), (2, 1)):
            check(make_numbered(*batch, n, n, dtype=dtype), offset, lower)


def list_layouts(A: Tensor) -> Iterator[Tensor]:
    """Yield A and copies of it in other memory layouts, surrounded by NaN."""
    *batch, n, _ = A.shape
    yield A.mT.contiguous().mT
    yield A.new_full((*batch, n + 2, n + 3), torch.nan)[..., 1:-1, 2:-1].copy_(A)
    yield A.new_full((*batch, n, 2 * n), torch.nan)[..., 1::2].copy_(A)
    yield A.movedim(0, -1).contiguous().movedim(-1, 0)
    yield A.transpose(0, 1).contiguous().transpose(0, 1)
    yield A[:1].expand_as(A)
    yield A[..., :1, :].expand_as(A)
    yield A[..., :1, :1].expand_as(A)


@pytest.mark.parametrize("n", [5, 33, 40])
def test_matrices_of_any_strides(n: int) -> None:
    for offset, lower in ((0, True), (0, False), (2, True), (-3, True)):
        for A in list_layouts(make_numbered(2, 3, n, n)):
            expected = pack_by_definition(A.contiguous(), offset, lower)
            assert torch.equal(lapgrad.extracttrian(A, offset=offset, lower=lower), expected)


@pytest.mark.parametrize("n", [5, 33, 40])
def test_vectors_of_any_strides(n: int) -> None:
    for offset, lower in ((0, True), (0, False), (2, True), (-3, True)):
        k = n - abs(offset)
        v = make_numbered(2, 3, k * (k + 1) // 2)
        apart = torch.stack([v, torch.full_like(v, torch.nan)], -1)[..., 0]
        inside = torch.cat([v, torch.full_like(v, torch.nan)], -1)[..., : v.shape[-1]]
        turned = v.transpose(0, 1).contiguous().transpose(0, 1)
        innermost = v.movedim(-1, 0).contiguous().movedim(0, -1)
        for u in (apart, inside, turned, innermost, v[:, :1].expand_as(v), v[..., :1].expand_as(v)):
            expected = unpack_by_definition(u, n, offset, lower)
            assert torch.equal(lapgrad.maketrian(u, offset=offset, lower=lower), expected)


@pytest.mark.parametrize("lower", [True, False])
def test_results_of_any_strides_and_nothing_beside_them(lower: bool) -> None:
    """Kernels write results of any strides (operators only pass contiguous ones) and nothing around them."""
    n = 35
    A = make_numbered(2, 3, n, n)
    v = pack_by_definition(A, 0, lower)
    around = A.new_full((2, 3, n + 2, n + 3), torch.nan)
    for target in (around[..., 1:-1, 1:-2], around.mT[..., 2:-1, 1:-1], torch.empty_like(A.mT).mT):
        around.fill_(torch.nan)
        KERNELS["maketrian"](target, v, 0, lower)
        assert torch.equal(target, unpack_by_definition(v, n, 0, lower))
        if target.untyped_storage().data_ptr() == around.untyped_storage().data_ptr():
            assert int(around.isnan().sum()) == around.numel() - A.numel()
    wide = v.new_full((2, 3, 2 * v.shape[-1]), torch.nan)
    for place in (wide[..., ::2], wide[..., : v.shape[-1]]):
        wide.fill_(torch.nan)
        KERNELS["extracttrian"](place, A, 0, lower)
        assert torch.equal(place, v)
        assert int(wide.isnan().sum()) == v.numel()


@pytest.mark.cpu
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(LARGE, LARGE), (2, LARGE, LARGE), (500, 9, 9), (1001, 8, 8)], ids=str)
def test_any_number_of_threads(shape: tuple[int, ...], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for offset, lower in ((0, True), (0, False), (3, True), (-1, True)):
            check(make_numbered(*shape), offset, lower)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("lower", [True, False])
def test_each_is_the_gradient_of_the_other(lower: bool) -> None:
    """A cotangent may be one number, repeated by strides of zero."""
    n = 34
    A = make_numbered(2, n, n).requires_grad_()
    (gA,) = torch.autograd.grad(lapgrad.extracttrian(A, lower=lower).sum(), A)
    ones = torch.ones_like(A)
    assert torch.equal(gA, ones.tril() if lower else ones.triu())
    v = pack_by_definition(A.detach(), 0, lower).requires_grad_()
    (gv,) = torch.autograd.grad(lapgrad.maketrian(v, lower=lower).sum(), v)
    assert torch.equal(gv, torch.ones_like(v))
