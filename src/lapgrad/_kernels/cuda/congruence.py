"""congruence: the gradient of a symmetric inverse, on CUDA: two products, and their symmetric part."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device


@on_its_device
def congruence(result: Tensor, B: Tensor, G: Tensor) -> None:
    """result := -B sym(G) B for a symmetric B: -1/2 (P + P^T), P = B G B. The result is contiguous."""
    if not result.numel():
        return
    inverse = flatten_batch(B)
    half, product = (torch.empty(inverse.shape, dtype=B.dtype, device=B.device) for _ in range(2))
    torch.bmm(inverse, flatten_batch(G), out=half)  # without `out`, autocast would round it
    torch.baddbmm(product, half, inverse, beta=0.0, alpha=-0.5, out=product)
    torch.add(product, product.mT, out=result.view(product.shape))
