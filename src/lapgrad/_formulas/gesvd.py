"""The derivative of the singular value decomposition: formulas that the kernels of all devices share."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lapgrad._formulas import gaps as _gaps

#: Codes of a failed item.
NOT_FINITE, NOT_CONVERGED = 1, 2

#: Policies under which an entry that is only rounding is not divided by a small gap.
DISCARDING_POLICIES = ("mask", "raise")


class Product(Protocol):
    """A function that multiplies two matrices, or batches of them."""

    def __call__(
        self, A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Tensor:
        """Return ta(A) tb(B)."""


def _multiply(A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return (A.mT if transpose_a else A) @ (B.mT if transpose_b else B)


def compute_vjp(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
    product: Product = _multiply,
    *,
    discards: bool,
) -> Tensor:
    """Return the gradient of A from the decomposition A = U^T diag(S) V and its cotangents.

    G = diag gS + sk(gU U^T) ∘ C - sk(gV V^T) ∘ C^T, with sk(X) = X - X^T and C of
    ``compute_coefficients``. Then gA = U^T G V for a square A, gA = U^T [(G - S^-1 gV V^T) V + S^-1 gV] for a
    wide one, and a tall one is transposed. With ``discards`` entries that are only rounding are not divided
    by small gaps, which takes one more product for a wide A.
    """
    if U.shape[-1] > V.shape[-1]:
        return compute_vjp(V, S, U, gV, gS, gU, degeneracy, tol, product, discards=discards).mT
    if gU is None and gV is None:
        assert gS is not None
        return product(U, gS[..., None] * V, transpose_a=True)
    C = compute_coefficients(S, degeneracy, tol)
    G = torch.zeros_like(C)
    left = None if gU is None else subtract_transpose(product(gU, U, transpose_b=True))
    moved = None if gV is None else product(gV, V, transpose_b=True)
    right = None if moved is None else subtract_transpose(moved)
    if left is not None:
        G = G + left * C
    if right is not None:
        G = G - right * C.mT
    if discards:
        G = _discard_rounding(G, left, right, S, gU, gS, gV, tol)
    if gS is not None:
        G = G + torch.diag_embed(gS)
    if gV is None or moved is None or U.shape[-1] == V.shape[-1]:
        return product(U, product(G, V), transpose_a=True)
    inverse = invert_values(S, degeneracy, tol)
    if discards:
        outside = _discard_rounding_outside(gV - product(moved, V), S, gS, gV)
        inner = product(G, V) + inverse * outside
    else:
        inner = product(G - inverse * moved, V) + inverse * gV
    return product(U, inner, transpose_a=True)


def _discard_rounding(
    G: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    S: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    tol: float,
) -> Tensor:
    """G = left ∘ C - right ∘ C^T, without quotients of rounding by small gaps.

    G_ij = 1/2 [(left + right)_ij / (S_i - S_j) - (left - right)_ij / (S_i + S_j)]. Where one of the two
    numerators is only rounding, G is the other quotient alone: the products with C would not cancel.
    """
    noise = sum(_gaps.bound_row_noise(g) for g in (gU, gV) if g is not None)
    assert isinstance(noise, Tensor)
    pairs = noise[..., :, None] + noise[..., None, :]
    gap, total, scale = _gaps.compute_gaps(S), S[..., :, None] + S[..., None, :], _gaps.find_largest(S)
    close = _gaps.compute_close_gap(scale)
    together = _add(left, right)
    apart = _add(left, None if right is None else -right)
    step = None if gS is None else _gaps.compute_gaps(gS)
    opposite = None if gS is None else gS[..., :, None] + gS[..., None, :]
    unturned = _gaps.find_rounding(together, pairs, gap, close, step)
    unparted = _gaps.find_rounding(apart, pairs, total, close, opposite)
    F = _gaps.invert_gaps(gap, scale, "mask", tol, descending=True)
    null = S.detach()[..., None] <= _gaps.compute_threshold(scale, tol)
    zeros = null & null.mT
    H = (1.0 / total.masked_fill(zeros, 1.0)).masked_fill(zeros, 0.0)
    split = _gaps.discard_entries(together, unturned) * F - _gaps.discard_entries(apart, unparted) * H
    return torch.where(unturned | unparted, 0.5 * split, G)


def _discard_rounding_outside(outside: Tensor, S: Tensor, gS: Tensor | None, gV: Tensor) -> Tensor:
    """``outside``, the part of gV out of the space of V, with zeros for rows where it is only rounding."""
    noise, close = _gaps.bound_row_noise(gV), _gaps.compute_close_gap(_gaps.find_largest(S)).squeeze(-1)
    size = outside.detach().abs().amax(-1)
    return _gaps.discard_entries(outside, _gaps.find_rounding(size, noise, S, close, gS)[..., None])


def _add(first: Tensor | None, second: Tensor | None) -> Tensor:
    if first is None or second is None:
        given = second if first is None else first
        assert given is not None
        return given
    return first + second


def compute_coefficients(S: Tensor, degeneracy: str, tol: float) -> Tensor:
    """C with dU = sk(C ∘ M) U and dV = -sk(C^T ∘ M) V, where M = U dA V^T.

    C_ij = S_j / (S_i^2 - S_j^2) = 1/2 [1 / (S_i - S_j) - 1 / (S_i + S_j)]. Only the first term is
    undefined at a tie: F, the value of the policy, replaces it, and the second stays. With T = 1 - F (S_i
    - S_j), which is 0 where there is no tie, C_ij = [F S_j - T / 2] / (S_i + S_j), free of cancellation and
    overflow. For a pair of zeros both terms are undefined: 0.
    """
    gap, scale = _gaps.compute_gaps(S), _gaps.find_largest(S)
    F = _gaps.invert_gaps(gap, scale, degeneracy, tol, descending=True)
    total = S[..., :, None] + S[..., None, :]
    if degeneracy == "nan":
        diagonal = torch.eye(S.shape[-1], dtype=torch.bool, device=S.device)
        return (F * S[..., None, :] / total).masked_fill(diagonal, 0.0)
    masked = degeneracy in DISCARDING_POLICIES
    T = _gaps.find_ties(gap, scale, tol).to(S.dtype) if masked else 1.0 - F * gap
    null = S.detach()[..., None] <= _gaps.compute_threshold(scale, tol)
    zeros = null & null.mT
    return ((F * S[..., None, :] - 0.5 * T) / total.masked_fill(zeros, 1.0)).masked_fill(zeros, 0.0)


def invert_values(S: Tensor, degeneracy: str, tol: float) -> Tensor:
    """Return 1 / S as a column; where S is zero, what the policy says."""
    return _gaps.invert_values(S[..., None], _gaps.find_largest(S), degeneracy, tol)


def subtract_transpose(X: Tensor) -> Tensor:
    """sk(X) = X - X^T."""
    return X - X.mT
