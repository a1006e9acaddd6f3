"""CPU tensors through the algorithms of ``lapgrad._cuda``: products by torch, own kernels emulated.

What is left of the real thing is what lapgrad adds: the order of the blocks, the flags, the addresses and strides
handed to its kernels. The libraries are stood in for by their definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import emulated
import torch
from torch import Tensor

from lapgrad._cuda import _blas, _cholesky, _launch, _stream


def gemm(C: Tensor, A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    check_readable(A, B)
    check_writable(C)
    old = beta * C if beta != 0.0 else 0.0
    C.copy_(alpha * (A @ B) + old)


def trmm(C: Tensor, L: Tensor, B: Tensor, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
    check_readable(L)
    check_writable(C)
    check_writable(B)
    triangle = L.tril() if lower else L.triu()
    C.copy_(alpha * (B @ triangle if rightside else triangle @ B))


def trsm(B: Tensor, L: Tensor, lower: bool, rightside: bool = False, alpha: float = 1.0) -> None:
    check_readable(L)
    check_writable(B)
    B.copy_(alpha * torch.linalg.solve_triangular(L, B, upper=not lower, left=not rightside))


def syrk(C: Tensor, A: Tensor, lower: bool = True, alpha: float = 1.0, beta: float = 0.0) -> None:
    check_readable(A)
    check_writable(C)
    product = alpha * (A @ A.mT) + (beta * C if beta != 0.0 else 0.0)
    kept = torch.ones_like(C, dtype=torch.bool)
    C.copy_(torch.where(kept.tril() if lower else kept.triu(), product, C))


def factorise_upper(A: Tensor, code: Tensor) -> None:
    """As cuSOLVER leaves it: the named triangle is the factor, the other one untouched."""
    check_writable(A)
    for item in range(A.shape[0]):
        factor, status = torch.linalg.cholesky_ex(A[item], upper=True)
        named = torch.ones_like(factor, dtype=torch.bool).triu()
        A[item] = torch.where(named, factor, A[item])
        code[item] = status


def check_readable(*tensors: Tensor) -> None:
    """cuBLAS asks for unit stride in one of the dimensions."""
    for tensor in tensors:
        _blas._read(tensor)


def check_writable(tensor: Tensor) -> None:
    assert tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    assert tensor.stride(-2) >= tensor.shape[-1] or tensor.shape[-2] == 1


@contextmanager
def in_place_of_the_gpu() -> Iterator[None]:
    """Within it, functions of ``lapgrad._cuda`` take CPU tensors."""
    libraries = mock.patch.multiple(_blas, gemm=gemm, trmm=trmm, trsm=trsm, syrk=syrk)
    kernels = mock.patch.object(_launch, "launch", emulated.launch)
    device = mock.patch.object(torch.cuda, "current_device", lambda: -1)
    graph = mock.patch.object(_stream, "being_captured", lambda: False)
    solver = mock.patch.object(_cholesky, "factorise_upper", factorise_upper)
    with libraries, kernels, device, graph, solver:
        yield
