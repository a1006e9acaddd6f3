"""Close pairs of eigenvalues or singular values, and signs of their vectors, in tensor operations.

Derivatives of any order, forward mode, vmap and torch.compile pass through these functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SAME_SIZE = 1.0 - 1e-6

#: The number of each policy for the compiled core and for the CUDA kernels. "raise" and "quiet" compute what
#: "mask" does; they differ in the check that follows.
POLICY_NUMBERS = {"mask": 0, "raise": 0, "quiet": 0, "lorentz": 1, "clamp": 2, "nan": 3}


def choose_tolerance(n: int, dtype: torch.dtype, tol: float | None) -> float:
    """``tol``, or the gap relative to the largest value up to which computed values may stem from equal ones.

    Computed values carry errors of a few eps times the largest one, which grow slowly with n:
    clusters of equal values come out up to 14 eps wide at n = 8, and 34 at n = 512.
    """
    return 8.0 * (1.0 + n**0.5) * torch.finfo(dtype).eps if tol is None else tol


def compute_gaps(values: Tensor) -> Tensor:
    """values_i - values_j, (*batch, n, n)."""
    return values[..., :, None] - values[..., None, :]


def find_largest(values: Tensor) -> Tensor:
    """The largest absolute value, (*batch, 1, 1), which gaps are compared with; 0 if there are no values."""
    if values.shape[-1] == 0:
        return values.new_zeros((*values.shape[:-1], 1, 1))
    return values.detach().abs().amax(-1)[..., None, None]


def compute_threshold(scale: Tensor, tol: float) -> Tensor:
    """Return the gap up to which two values count as equal; never so small that its reciprocal overflows.

    Where all values are zero there is no scale: then it is taken as 1.
    """
    return (tol * scale.masked_fill(scale == 0, 1.0)).clamp_min(torch.finfo(scale.dtype).tiny)


def find_ties(gap: Tensor, scale: Tensor, tol: float) -> Tensor:
    """bool, True where two values count as equal, also on the diagonal."""
    return gap.detach().abs() <= compute_threshold(scale, tol)


def invert_gaps(
    gap: Tensor, scale: Tensor, degeneracy: str, tol: float, *, descending: bool = False
) -> Tensor:
    """1 / gap with the policy's value for small gaps, 0 on the diagonal; antisymmetric as gap is.

    Args:
        gap: (*batch, n, n), ``compute_gaps`` of the values.
        scale: (*batch, 1, 1), ``find_largest`` of the values.
        degeneracy: One of ``POLICIES``.
        tol: Relative to scale, from ``choose_tolerance``.
        descending: Values descend, so that a gap of 0 above the diagonal counts as positive for "clamp".
    """
    n = gap.shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=gap.device)
    if degeneracy == "nan":
        return (1.0 / gap.masked_fill(diagonal, 1.0)).masked_fill(diagonal, 0.0)
    smallest = compute_threshold(scale, tol)
    if degeneracy == "lorentz":
        # t / (t^2 + e^2) = u / (u^2 + 1) / e' with e' the larger of both, so that no square overflows.
        unit = torch.maximum(scale, smallest)
        t, e = gap / unit, smallest / unit
        return t / (t * t + e * e).masked_fill(diagonal, 1.0) / unit
    close = gap.detach().abs() <= smallest
    if degeneracy == "clamp":
        index = torch.arange(n, device=gap.device)
        order = (index[:, None] - index).to(gap.dtype).sign()
        order = -order if descending else order
        direction = torch.where(gap == 0, order, gap.detach().sign())
        clamped = torch.where(close, direction * smallest, gap)
        return (1.0 / clamped.masked_fill(diagonal, 1.0)).masked_fill(diagonal, 0.0)
    return (1.0 / gap.masked_fill(close, 1.0)).masked_fill(close, 0.0)


def invert_values(values: Tensor, scale: Tensor, degeneracy: str, tol: float) -> Tensor:
    """Return 1 / values, for values >= 0; the policy says what stands for the reciprocals of small ones."""
    if degeneracy == "nan":
        return 1.0 / values
    smallest = compute_threshold(scale, tol)
    if degeneracy == "lorentz":
        unit = torch.maximum(scale, smallest)
        t, e = values / unit, smallest / unit
        return t / (t * t + e * e) / unit
    small = values.detach() <= smallest
    if degeneracy == "clamp":
        return 1.0 / torch.where(small, smallest, values)
    return (1.0 / values.masked_fill(small, 1.0)).masked_fill(small, 0.0)


def bound_row_noise(g: Tensor) -> Tensor:
    """How far an entry of g W^T may be off by rounding, for orthonormal rows of W, (*batch, k).

    8 (1 + sqrt(n)) eps times the largest entry of each row of g. The norm of a row is at most sqrt(n) times
    that entry, and a scalar product with a unit vector, like the product that g came from, is off by about
    one eps times the norm. The rest is margin for losses whose cotangents are themselves small differences.
    """
    if g.shape[-1] == 0:
        return g.new_zeros(g.shape[:-1])
    return choose_tolerance(g.shape[-1], g.dtype, None) * g.detach().abs().amax(-1)


def compute_close_gap(scale: Tensor) -> Tensor:
    """The gap below which entries that are only rounding are discarded: eps^(1/4) of the largest value.

    Dividing by wider gaps costs at most a quarter of the digits.
    """
    return torch.finfo(scale.dtype).eps ** 0.25 * scale


def find_rounding(turn: Tensor, noise: Tensor, gap: Tensor, close: Tensor, step: Tensor | None) -> Tensor:
    """bool, True where ``turn`` is only rounding and its gap small, so that the quotient counts as 0.

    An entry of sk(gU U^T) below ``noise`` is not distinguishable from 0: the loss does not depend on a
    rotation of these two vectors. If the slopes of their values differ, the loss treats the values
    differently, as a function of the matrix does, and then a quotient as large as that difference is
    expected: the entry is kept unless the difference is only rounding as well. A cotangent of zeros has no
    rounding: nothing is discarded.

    Args:
        turn: (*batch, k, n), entries of sk(gU U^T).
        noise: Of the same shape, the sum of ``bound_row_noise`` of both rows.
        gap: Of the same shape, what the entries are divided by.
        close: (*batch, 1, 1), ``compute_close_gap`` of the values.
        step: Differences of the cotangents of the values, or None.
    """
    gap = gap.detach()
    if step is None:
        return (turn.detach().abs() < noise) & (gap.abs() < close)
    # The product is computed first and then overwritten, so that at most one more matrix is alive at a time.
    found = (gap * step.detach()).abs_() < noise
    return found & (turn.detach().abs() < noise) & (gap.abs() < close)


def discard_entries(entries: Tensor, marked: Tensor) -> Tensor:
    """``entries`` with zeros where ``marked``, but with the derivatives of ``entries`` everywhere.

    A loss at a stationary point has cotangents that vanish there, but whose derivatives do not.
    """
    return entries - entries.detach().masked_fill(~marked, 0.0)


def find_row_signs(U: Tensor) -> Tensor:
    """For each row of U the sign that makes its leading entry positive: 1 or -1, (*batch, k).

    The leading entry is the first whose size is within 1e-6 of the largest. If it were the largest itself,
    rounding would choose among entries of equal size, which symmetric problems have: the vectors
    u_i = -u_(n-i) of a regular grid.
    """
    if U.shape[-1] == 0:
        return U.new_ones(U.shape[:-1])
    size = U.detach().abs()
    leads = size >= _SAME_SIZE * size.amax(-1, keepdim=True)
    first = leads.to(torch.uint8).argmax(-1, keepdim=True)
    entry = U.detach().gather(-1, first).squeeze(-1)
    return torch.where(entry < 0, -1.0, 1.0).to(U.dtype)


def fix_signs(U: Tensor) -> None:
    """Multiply each row of U by its ``find_row_signs``, in place."""
    if U.numel():
        U.mul_(find_row_signs(U)[..., None])
