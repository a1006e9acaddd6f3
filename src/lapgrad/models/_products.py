"""Products of matrices in the full precision of their dtype, with derivatives of any order.

Torch rounds ``A @ B`` of float32 matrices to fewer digits under autocast and after
``torch.set_float32_matmul_precision``. Covariances, and differences of large numbers, need all digits.
Networks that users put into models follow torch's settings.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._torch.precision import rounds_products
from lapgrad.ops.gemm2 import gemm2


def multiply(*factors: Tensor) -> Tensor:
    """Return the product of matrices (*batch, m, k), (*batch, k, n), ..., from left to right.

    It is computed by ``torch.matmul`` unless that would round, because the call takes less time.

    Example:
        >>> from lapgrad.models._products import multiply
        >>> multiply(torch.ones(1, 2), torch.eye(2), torch.ones(2, 1)).item()
        2.0
    """
    return functools.reduce(gemm2 if _is_rounded(factors[0]) else torch.matmul, factors)


def _is_rounded(like: Tensor) -> bool:
    """Return whether ``torch.matmul`` rounds, or might when compiled code runs under other settings."""
    if like.dtype is torch.float64:
        return False
    return is_compiling() or torch.is_autocast_enabled(like.device.type) or rounds_products(like)
