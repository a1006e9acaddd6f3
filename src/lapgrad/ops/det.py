"""det: the determinant, with derivatives that hold at singular matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch import lu as _torch_lu
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import inverse as _inverse
from lapgrad.ops._lu import allocate_factors


def det(A: Tensor) -> Tensor:
    """Determinant of a square matrix: d = det A.

    Args:
        A: (*batch, n, n).

    Returns:
        d, (*batch). It is 0 where a pivot is exactly zero, and infinite or 0 where it
        overflows or underflows: use ``slogdet`` then. A matrix without rows has determinant 1.

    Raises:
        NonFiniteError: A NaN or an infinity was met, or the factorisation overflows.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = g cof(A), the matrix of cofactors: det(A) A^-T where A is regular. It is computed without loss at
        and near singular matrices as well: of rank n - 1 it is not zero, of lower rank it is. The same holds
        for forward mode and for derivatives of all orders at rank n - 3 or more. At a lower rank those up to
        the third are right (zero); from the fourth on they are not: that of order k is zero only below rank
        n - k, and here it comes out as zero, or with errors divided by singular values that are rounding.
        Saves A and, from n = 33 on, its LU factors, which have been computed anyway.

    Memory:
        forward 1 n^2, backward 1
        The factors, from n = 33 on; they are kept only if a gradient is recorded.

    Cost:
        forward 2/3 n^3, backward 4/3 n^3 flops. Second derivatives take a singular value decomposition.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
        >>> lapgrad.det(A).backward()
        >>> A.grad.round()
        tensor([[ 4., -2.],
                [-2.,  1.]])
    """
    determinant: Tensor = operator.call(check_square_matrix("det", "A", A))[0]
    return determinant


def _factorise(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    results = _fake(A)
    failure = lookup("det", A)(*results, A)
    if failure is not None:
        raise _errors.elimination_failed("det", A.shape[:-2], failure)
    return results


def _fake(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return A.new_empty(A.shape[:-2]), *allocate_factors(A)


def _compute_vjp(A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> Tensor:
    gA = allocate_like(A)
    lookup("det_vjp", A)(gA, A, LU, pivots, weight)
    return gA


def _compute_vjp_composite(A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> Tensor:
    """gA = weight cof(A)."""
    return weight[..., None, None] * operator_cofactors.call(A)


def _compute_cofactors(A: Tensor) -> Tensor:
    _, LU, pivots = _factorise(A)
    return _compute_vjp(A, LU, pivots, A.new_ones(A.shape[:-2]))


def _compute_cofactors_composite(A: Tensor) -> Tensor:
    """Return the transpose of adj A, by a formula that divides by nothing that may be zero.

    In the singular vectors of A, held constant, A = U M V^T with M = diag(s) at the point itself. With M11
    everything but the r = 3 smallest singular values, and the Schur complement S = M22 - M21 M11^-1 M12,

        adj M = det M11 [ det(S) M11^-1 + M11^-1 M12 adj(S) M21 M11^-1    -M11^-1 M12 adj(S) ]
                        [                -adj(S) M21 M11^-1                       adj(S)     ]

    where det S and adj S are polynomials. From adj M = det(M) M^-1 by blocks; nothing is divided by S. Where
    M11 is singular too, the rank is below n - 3 and adj A vanishes with its first two derivatives.
    """
    n = A.shape[-1]
    if n == 0:
        return A.clone()
    U, s, Vh, sign, constant = operator_basis.call(A)
    sign = sign[..., None, None]
    # M is diag(s) plus U^T (A - constant) V. The second term is exactly zero, so that M is exactly diagonal,
    # but it has a derivative.
    M = torch.diag_embed(s) + _multiply(_multiply(U.mT, A - constant), Vh.mT)
    regular = max(n - 3, 0)
    if regular == 0:
        return sign * _multiply(_multiply(U, _compute_adjugate(M)[0].mT), Vh)
    M11, M12 = M[..., :regular, :regular], M[..., :regular, regular:]
    M21, M22 = M[..., regular:, :regular], M[..., regular:, regular:]
    vanishes = (s[..., regular - 1] == 0)[..., None, None]
    M11 = torch.where(vanishes, torch.eye(regular, dtype=A.dtype, device=A.device), M11)
    X = _inverse.operator.call(M11)
    scale = torch.where(vanishes, 0.0, sign * operator.call(M11)[0][..., None, None])
    XM12, M21X = _multiply(X, M12), _multiply(M21, X)
    adjugate, determinant = _compute_adjugate(M22 - _multiply(M21, XM12))
    upper_right = -_multiply(XM12, adjugate)
    upper_left = determinant * X - _multiply(upper_right, M21X)
    lower_left = -_multiply(adjugate, M21X)
    upper = torch.cat((upper_left, upper_right), -1)
    lower = torch.cat((lower_left, adjugate), -1)
    return scale * _multiply(_multiply(U, torch.cat((upper, lower), -2).mT), Vh)


def _compute_singular_basis(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """U, s, V^T, det(U) det(V) and A itself, as constants: ``detach`` does not work under all transforms."""
    U, s, Vh = torch.linalg.svd(A)
    sign = (_torch_lu.det(U) * _torch_lu.det(Vh)).sign()
    return U.contiguous(), s, Vh.contiguous(), sign, A.clone(memory_format=torch.contiguous_format)


def _fake_basis(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    U, s, Vh, constant = (A.new_empty(shape) for shape in (A.shape, A.shape[:-1], A.shape, A.shape))
    return U, s, Vh, A.new_empty(A.shape[:-2]), constant


def _multiply(A: Tensor, B: Tensor) -> Tensor:
    result: Tensor = _gemm2.multiply(A, B)
    return result


def _compute_adjugate(S: Tensor) -> tuple[Tensor, Tensor]:
    """adj S and det S (*batch, 1, 1) of a matrix of order 1, 2 or 3: polynomials in its entries."""
    order = S.shape[-1]
    if order == 1:
        adjugate = torch.ones_like(S)
    elif order == 2:
        (a, b), (c, d) = (row.unbind(-1) for row in S.unbind(-2))
        adjugate = torch.stack((torch.stack((d, -b), -1), torch.stack((-c, a), -1)), -2)
    else:
        # Column i of adj S is the cross product of the two rows of S after row i.
        x, y, z = S.unbind(-2)
        adjugate = torch.stack((_compute_cross(y, z), _compute_cross(z, x), _compute_cross(x, y)), -1)
    determinant = (S[..., :1, :] * adjugate[..., :, :1].mT).sum(-1, keepdim=True)
    return adjugate, determinant


def _compute_cross(x: Tensor, y: Tensor) -> Tensor:
    a, b, c = x.unbind(-1)
    d, e, f = y.unbind(-1)
    return torch.stack((b * f - c * e, c * d - a * f, a * e - b * d), -1)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], g: Tensor | None, *others: None
) -> tuple[Tensor | None]:
    A, LU, pivots = saved
    return (None if g is None else operator_vjp.call(A, LU, pivots, g),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor | None, ...]:
    """dd = sum of cof(A) dA, entry by entry."""
    A, LU, pivots = saved
    cofactors = operator_vjp.call(A, LU, pivots, A.new_ones(A.shape[:-2]))
    return (cofactors * dA).sum((-2, -1)), None, None


_BASIS = (0, 1, 2, 3, 4)

operator_basis = define(
    "det_basis",
    "(Tensor A) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    kernel=_compute_singular_basis,
    fake=_fake_basis,
    formulas=Formulas(
        saves=((),),
        vjp=lambda needs, saved, flags, *cotangents: (None,),
        jvp=lambda saved, flags, dA: tuple(None for _ in _BASIS),
        constant_results=_BASIS,
    ),
)

operator_cofactors = define_fused(
    "det_cofactors",
    "(Tensor A) -> Tensor",
    kernel=_compute_cofactors,
    fake=lambda A: A.new_empty(A.shape),
    composite=_compute_cofactors_composite,
)

operator_vjp = define_fused(
    "det_vjp",
    "(Tensor A, Tensor LU, Tensor pivots, Tensor weight) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda A, LU, pivots, weight: A.new_empty(A.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("det_vjp"),
)

_A, _LU, _PIVOTS = 0, 2, 3

operator = define(
    "det",
    "(Tensor A) -> (Tensor, Tensor, Tensor)",
    kernel=_factorise,
    fake=_fake,
    formulas=Formulas(saves=((_A, _LU, _PIVOTS),), vjp=_vjp, jvp=_jvp, constant_results=(1, 2)),
)
