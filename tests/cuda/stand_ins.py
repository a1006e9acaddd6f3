"""CPU tensors through the algorithms of ``lapgrad._cuda``: libraries by their definition, own kernels emulated.

What is left of the real thing is what lapgrad adds: the order of the blocks, the flags, the addresses and strides
that are handed to libraries and kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import emulated
import numpy as np
import torch
from torch import Tensor

from lapgrad._cuda import _blas, _cholesky, _launch, _stream
from lapgrad._cuda._block import Block


def tensor_at(block: Block) -> Tensor:
    """The memory of a block as a tensor: (count, rows, cols)."""
    sizes = (block.items, block.rows, block.cols)
    strides = (block.step, block.row, block.col)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    kind = ctypes.c_double if block.bytes == 8 else ctypes.c_float
    memory = np.ctypeslib.as_array((kind * extent).from_address(block.address))
    return torch.from_numpy(memory).as_strided(sizes, strides)


class Blas:
    """``lapgrad._cuda._blas.Blas``, on the CPU."""

    def gemm(self, C: Block, A: Block, B: Block, alpha: float = 1.0, beta: float = 0.0) -> None:
        check(C, A, B)
        if not (C.rows and C.cols):
            return
        target = tensor_at(C)
        old = beta * target if beta != 0.0 else 0.0
        target.copy_(alpha * (tensor_at(A) @ tensor_at(B)) + old)

    def trmm(
        self, C: Block, L: Block, B: Block, lower: bool, rightside: bool = False, alpha: float = 1.0
    ) -> None:
        check(C, L)
        check(B)
        triangle = tensor_at(L).tril() if lower else tensor_at(L).triu()
        product = tensor_at(B) @ triangle if rightside else triangle @ tensor_at(B)
        tensor_at(C).copy_(alpha * product)

    def trsm(self, B: Block, L: Block, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
        check(B, L)
        target = tensor_at(B)
        solution = torch.linalg.solve_triangular(tensor_at(L), target, upper=not lower, left=not rightside)
        target.copy_(alpha * solution)

    def syrk(self, C: Block, A: Block, lower: bool = True, alpha: float = 1.0, beta: float = 0.0) -> None:
        check(C, A)
        target, source = tensor_at(C), tensor_at(A)
        product = alpha * (source @ source.mT) + (beta * target if beta != 0.0 else 0.0)
        named = torch.ones_like(target, dtype=torch.bool)
        target.copy_(torch.where(named.tril() if lower else named.triu(), product, target))


def factorise_upper(like: Tensor, A: Block, code: int) -> None:
    """As cuSOLVER leaves it: the named triangle is the factor, the other one untouched."""
    check(A)
    target = tensor_at(A)
    factor, status = torch.linalg.cholesky_ex(target, upper=True)
    named = torch.ones_like(target, dtype=torch.bool).triu()
    target.copy_(torch.where(named, factor, target))
    codes = (ctypes.c_int32 * A.items).from_address(code)
    codes[:] = status.tolist()


def check(result: Block, *operands: Block) -> None:
    """What cuBLAS asks for: rows of the result in a piece, unit stride somewhere in an operand."""
    assert result.col == 1 or result.cols == 1
    assert result.row >= result.cols or result.rows <= 1
    for operand in operands:
        _blas.read(operand)
        assert operand.items == result.items


@contextmanager
def in_place_of_the_gpu() -> Iterator[None]:
    """Within it, functions of ``lapgrad._cuda`` take CPU tensors."""
    library = mock.patch.object(_blas, "on", lambda like: Blas())
    kernels = mock.patch.object(_launch, "launch", emulated.launch)
    device = mock.patch.object(torch.cuda, "current_device", lambda: -1)
    graph = mock.patch.object(_stream, "being_captured", lambda: False)
    solver = mock.patch.object(_cholesky, "factorise_upper", factorise_upper)
    with library, kernels, device, graph, solver:
        yield
