"""syr2k: twice the symmetric part of a product, which gradients of symmetric matrices need. Not public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import allocate_matrix
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import gemm2 as _gemm2


def _multiply(A: Tensor, B: Tensor, alpha: float) -> Tensor:
    C = _fake(A, B, alpha)
    lookup("gemmt_sum", A)(C, A, B, B, A, lower=True, symmetric=True, alpha=alpha)
    return C


def _fake(A: Tensor, B: Tensor, alpha: float) -> Tensor:
    n = A.shape[-2]
    return allocate_matrix(A, n, n)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gC: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """C = alpha (A B^T + B A^T): gA = alpha (gC + gC^T) B, gB = alpha (gC + gC^T) A."""
    (A, B), (alpha,) = saved, flags
    both = gC + gC.mT
    gA = _gemm2.multiply(both, B, alpha=alpha) if needs[0] else None
    gB = _gemm2.multiply(both, A, alpha=alpha) if needs[1] else None
    return gA, gB


_A, _B = 0, 1

#: C = alpha (A B^T + B A^T) of two n x k matrices, symmetric to the last bit.
operator: Operator = define(
    "syr2k",
    "(Tensor A, Tensor B, float alpha) -> Tensor",
    kernel=_multiply,
    fake=_fake,
    formulas=Formulas(saves=((_B,), (_A,)), vjp=_vjp, jvp=make_jvp(lambda: operator)),
)
