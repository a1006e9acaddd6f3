"""congruence: the gradient of an inverse, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over
from lapgrad._kernels.cpu.gemm import gemm
from lapgrad._kernels.native import core


def congruence(C: Tensor, B: Tensor, G: Tensor) -> None:
    """C := -1/2 B (G + G^T) B for a symmetric B. C holds G + G^T in the meantime."""
    size, count, n = B.element_size(), count_items(B), B.shape[-1]
    target = hand_over(C, False)[1]
    G, given = hand_over(G, False)
    core.add_transpose(size, given, target, count, n, 0, n)
    half = torch.empty_like(C)
    gemm(half, C, B, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0)
    _, right = hand_over(half, False)
    B, left = hand_over(B, False)
    core.gemmt(size, left, right, target, count, n, n, -0.5, True)
