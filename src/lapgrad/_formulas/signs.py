"""The sign of an eigenvector, which the eigenvalue problem leaves open."""

from __future__ import annotations

import torch
from torch import Tensor


def fix_signs(U: Tensor) -> None:
    """Changes the signs of rows of U, so that the first entry within 1e-6 of the largest is positive."""
    if not U.numel():
        return
    size = U.abs()
    decisive = (size >= (1.0 - 1e-6) * size.amax(-1, keepdim=True)).int().argmax(-1, keepdim=True)
    U.mul_(torch.where(U.gather(-1, decisive) < 0, -1.0, 1.0).to(U.dtype))
