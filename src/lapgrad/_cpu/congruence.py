"""congruence: the gradient of an inverse, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._cpu._native import core
from lapgrad._cpu._operands import hand_over, items


def congruence(C: Tensor, B: Tensor, G: Tensor) -> None:
    G, given = hand_over(G, False)
    symmetric = torch.empty_like(B, memory_format=torch.contiguous_format)
    size, count, n = B.element_size(), items(B), B.shape[-1]
    core.add_transpose(size, *given, *hand_over(symmetric, False)[1], count, n, 0, n)
    half = torch.empty_like(symmetric)
    torch.matmul(symmetric, B, out=half)  # without `out`, autocast would round it
    _, right = hand_over(half, False)
    B, left = hand_over(B, False)
    core.gemmt(size, *left, *right, *hand_over(C, False)[1], count, n, n, -0.5, True)
