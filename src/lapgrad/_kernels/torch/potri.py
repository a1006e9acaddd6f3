"""potri: inverse from the Cholesky factor, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision
from lapgrad._torch.synchronisation import may_read


@in_full_precision
def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    """B := (L L^T)^-1, or (R^T R)^-1. Returns (item, index) of the first zero pivot; B is then untouched."""
    if may_read(L):
        zero = L.diagonal(dim1=-2, dim2=-1) == 0
        if zero.any():
            position = int(zero.flatten().to(torch.uint8).argmax())
            return divmod(position, L.shape[-1])
    B.copy_(_invert(L, lower))
    return None


@in_full_precision
def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    """B := weight scale ((L L^T)^-1 + ratio X X^T), with one weight per item; without X the inverse alone."""
    inverse = _invert(L, lower)
    if X is not None:
        product = X @ X.mT
        inverse += ratio * (product.tril() + product.tril(-1).mT)
    torch.mul(inverse, (scale * weight)[..., None, None], out=B)


@in_full_precision
def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    """gL := -2 tri(L^-T Z), Z = L^-1 sym(gB) L^-T."""
    factor = L if lower else L.mT
    middle = torch.linalg.solve_triangular(factor, -(gB + gB.mT), upper=False)
    middle = torch.linalg.solve_triangular(factor.mT, middle, upper=True, left=False)
    middle = torch.linalg.solve_triangular(factor.mT, middle, upper=True).tril_()
    gL.copy_(middle if lower else middle.mT)


def _invert(L: Tensor, lower: bool) -> Tensor:
    """Return (L L^T)^-1, symmetric to the last bit."""
    factor = L if lower else L.mT
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    half = torch.linalg.solve_triangular(factor, identity, upper=False)
    product = half.mT @ half
    return product.tril() + product.tril(-1).mT
