"""What the gradients of eigenvalues and of singular values of small matrices share."""

from __future__ import annotations

import torch
from torch import Tensor

#: Policies for small gaps, as ``kernels/spectral_products.cuh`` counts them. "raise" is a check more.
POLICIES = {"mask": 0, "raise": 0, "quiet": 0, "lorentz": 1, "clamp": 2, "nan": 3}

#: (largest side, rows and columns of the grid of threads for one gradient, threads of a block). A thread has
#: 4 x 4, 4 x 2 or 2 x 2 entries of each product.
_KINDS = ((8, 4, 4, 64), (16, 4, 8, 64), (32, 8, 8, 64), (64, 16, 16, 256))


def gradient_kind(side: int) -> tuple[str, int, int]:
    """The parameters of a template, the gradients that a block has, and its threads."""
    largest, down, across, threads = next(kind for kind in _KINDS if side <= kind[0])
    return f"{largest}, {down}, {across}", threads // (down * across), threads


def contiguous(result: Tensor) -> Tensor:
    """``result`` itself if a kernel can write into it, else memory to be copied from."""
    if result.is_contiguous():
        return result
    return torch.empty_like(result, memory_format=torch.contiguous_format)
