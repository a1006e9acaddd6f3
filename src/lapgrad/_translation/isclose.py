"""isclose, which torch composes of a dozen passes over the matrices.

Constraints of torch.distributions compare each covariance matrix with its transpose. That takes torch longer
than to factorise it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.table import has_kernel, lookup


def serves_isclose(
    A: Tensor, B: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether lapgrad computes this: matrices of one shape, ``A`` contiguous, so that the result is, too."""
    return (
        A.shape == B.shape
        and A.dtype is B.dtype
        and A.device == B.device
        and A.is_contiguous()
        and rtol >= 0.0
        and atol >= 0.0
        and not equal_nan
        and has_kernel("isclose", A)
    )


def compute_isclose(
    A: Tensor, B: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Which entries are close, with torch's rounding: bool, contiguous."""
    assert not equal_nan
    close = torch.empty(A.shape, dtype=torch.bool, device=A.device)
    lookup("isclose", A)(close, A, B, rtol, atol)
    return close
