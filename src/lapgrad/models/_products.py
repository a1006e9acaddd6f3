"""Products of matrices in the precision of their dtype, and their derivatives of any order.

``A @ B`` of float32 matrices is rounded to fewer digits where torch was told that networks may be
(``torch.set_float32_matmul_precision``), and under autocast. A covariance, or a difference of large numbers,
must not be. A network that a user puts into a model is multiplied as torch was told.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._torch.precision import rounds_products
from lapgrad.ops.gemm2 import gemm2


def product(*factors: Tensor) -> Tensor:
    """The product of matrices (*batch, m, k), (*batch, k, n), ..., from left to right.

    ``torch.matmul`` where that rounds nothing, because it takes less time to call.

    Example:
        >>> from lapgrad.models._products import product
        >>> product(torch.ones(1, 2), torch.eye(2), torch.ones(2, 1)).item()
        2.0
    """
    return functools.reduce(gemm2 if _would_be_rounded(factors[0]) else torch.matmul, factors)


def _would_be_rounded(like: Tensor) -> bool:
    """Compiled code may run under other settings than it was traced with."""
    if like.dtype is torch.float64:
        return False
    return is_compiling() or torch.is_autocast_enabled(like.device.type) or rounds_products(like)
