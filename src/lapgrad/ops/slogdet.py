"""slogdet: sign and logarithm of a determinant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import inverse as _inverse
from lapgrad.ops._lu import allocate_factors


class LogDeterminant(NamedTuple):
    """Sign and logarithm of a determinant: what ``slogdet`` returns.

    Attributes:
        sign: 1 or -1, (*batch); 0 where the determinant is zero.
        logabsdet: The logarithm of the absolute value of the determinant, (*batch).
    """

    sign: Tensor
    logabsdet: Tensor


def slogdet(A: Tensor) -> LogDeterminant:
    """Sign and logarithm of a determinant: det A = sign exp(logabsdet).

    Where ``det`` is too large or too small for a number, the logarithm is not.

    Args:
        A: (*batch, n, n).

    Returns:
        The named tuple (sign, logabsdet), both (*batch). A matrix with an exact zero pivot has sign 0 and
        logarithm minus infinity; one without rows has sign 1 and logarithm 0.

    Raises:
        NonFiniteError: A NaN or an infinity was met, or the factorisation overflows.
        SingularMatrixError: In the backward, and in forward mode: names the first item that is singular. The
            logarithm has no derivative there. An item whose cotangent is zero has gradient zero instead.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = g A^-T, g the cotangent of the logarithm. The derivative of the sign is zero; as torch's, it
        requires grad where A does. Saves A and, from n = 33 on, its
        LU factors, which have been computed anyway.

    Memory:
        forward 1 n^2, backward 1
        The factors, from n = 33 on; they are kept only if a gradient is recorded.

    Cost:
        forward 2/3 n^3, backward 4/3 n^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.slogdet(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        LogDeterminant(sign=tensor(-1.), logabsdet=tensor(0.))
    """
    sign, logabsdet, _, _ = operator.call(check_square_matrix("slogdet", "A", A))
    return LogDeterminant(sign, logabsdet)


def _factorise(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = _fake(A)
    failure = lookup("slogdet", A)(*results, A)
    if failure is not None:
        raise _errors.elimination_failed("slogdet", A.shape[:-2], failure)
    return results


def _fake(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = A.shape[:-2]
    return A.new_empty(batch), A.new_empty(batch), *allocate_factors(A)


def _compute_vjp(A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> Tensor:
    gA = allocate_like(A)
    failure = lookup("slogdet_vjp", A)(gA, A, LU, pivots, weight)
    if failure is not None:
        raise _errors.elimination_failed(
            "slogdet", A.shape[:-2], failure, " The logarithm of its determinant has no derivative."
        )
    return gA


def _compute_vjp_composite(A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> Tensor:
    """gA = weight A^-T. Singular items with weight 0 have gradient 0, and no derivative."""
    sign = operator.call(A.detach())[0]
    has_none = ((sign == 0) & (weight == 0))[..., None, None]
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    inverse = _inverse.operator.call(torch.where(has_none, identity, A))
    return torch.where(has_none, 0.0, weight[..., None, None] * inverse.mT)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    g_sign: Tensor | None,
    g_logabsdet: Tensor | None,
    *others: None,
) -> tuple[Tensor | None]:
    A, LU, pivots = saved
    return (None if g_logabsdet is None else operator_vjp.call(A, LU, pivots, g_logabsdet),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor | None, ...]:
    """d logabsdet = tr(A^-1 dA)."""
    A, LU, pivots = saved
    transposed_inverse = operator_vjp.call(A, LU, pivots, A.new_ones(A.shape[:-2]))
    slope = (transposed_inverse * dA).sum((-2, -1))
    return torch.zeros_like(slope), slope, None, None


operator_vjp = define_fused(
    "slogdet_vjp",
    "(Tensor A, Tensor LU, Tensor pivots, Tensor weight) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda A, LU, pivots, weight: A.new_empty(A.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("slogdet_vjp"),
)

_A, _SIGN, _LOGABSDET, _LU, _PIVOTS = 0, 1, 2, 3, 4

operator = define(
    "slogdet",
    "(Tensor A) -> (Tensor, Tensor, Tensor, Tensor)",
    kernel=_factorise,
    fake=_fake,
    formulas=Formulas(saves=((_A, _LU, _PIVOTS),), vjp=_vjp, jvp=_jvp, constant_results=(2, 3)),
)
