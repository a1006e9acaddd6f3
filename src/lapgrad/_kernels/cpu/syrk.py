"""syrk: product of a matrix with its transpose, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable, transpose_operand
from lapgrad._kernels.cpu.gemm import gemm
from lapgrad._kernels.native import core


def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    A = make_readable(A)
    left, result = describe_operand(A), describe_operand(B)
    left = transpose_operand(left) if transpose else left
    k = A.shape[-2] if transpose else A.shape[-1]
    core.gemmt(
        A.element_size(), left, transpose_operand(left), result, count_items(B), B.shape[-1], k, 1.0, True
    )


def syrk_vjp(gA: Tensor, A: Tensor, gB: Tensor, transpose: bool) -> None:
    # One product with the symmetric gB + gB' instead of two: it needs a buffer, and saves a third of the
    # time.
    gB = make_readable(gB)
    n = gB.shape[-1]
    symmetric = torch.empty_like(gB, memory_format=torch.contiguous_format)
    core.add_transpose(
        gB.element_size(), describe_operand(gB), describe_operand(symmetric), count_items(gB), n, 0, n
    )
    left, right = (A, symmetric) if transpose else (symmetric, A)
    gemm(gA, left, right, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0)
