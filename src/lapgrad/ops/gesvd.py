"""gesvd: the singular value decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._formulas import gaps as _gaps
from lapgrad._formulas.gesvd import (
    DISCARDING_POLICIES,
    NOT_FINITE,
    compute_coefficients,
    compute_vjp,
    invert_values,
)
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_matrix, check_count, check_matrix, check_tolerance
from lapgrad.ops import _spectral
from lapgrad.ops import gemm2 as _gemm2

_take_shortcut = make_shortcut("gesvd")


class SingularValueDecomposition(NamedTuple):
    """Singular value decomposition A = U^T diag(S) V: what ``gesvd`` returns.

    Attributes:
        U: (*batch, k, m), the left singular vectors as orthonormal rows.
        S: (*batch, k), the singular values, descending.
        V: (*batch, k, n), the right singular vectors as orthonormal rows.
    """

    U: Tensor
    S: Tensor
    V: Tensor


@overload
def gesvd(
    A: Tensor,
    *,
    degeneracy: str = ...,
    tol: float | None = ...,
    rank: int | None = ...,
    vectors: Literal[True] = ...,
) -> SingularValueDecomposition: ...


@overload
def gesvd(
    A: Tensor,
    *,
    degeneracy: str = ...,
    tol: float | None = ...,
    rank: int | None = ...,
    vectors: Literal[False],
) -> Tensor: ...


def gesvd(
    A: Tensor,
    *,
    degeneracy: str = "mask",
    tol: float | None = None,
    rank: int | None = None,
    vectors: bool = True,
) -> SingularValueDecomposition | Tensor:
    """Singular value decomposition: A = U^T diag(S) V, with orthonormal rows in U and V, and S descending.

    The sign of each pair of vectors is the one that makes the leading entry of the row of U positive: the
    first entry whose size is within 1e-6 of the largest. Where A is rank deficient, the vectors of zero
    singular values are any that complete the others to orthonormal rows.

    Args:
        A: (*batch, m, n). Wide, square or tall; k = min(m, n).
        degeneracy: How the gradient treats equal singular values and zeros: "mask", "lorentz", "clamp",
            "nan" or "raise"; see Gradient.
        tol: Singular values count as equal, or as zero, up to ``tol`` times the largest one. None: 8 (1 +
            sqrt k) eps. With 0 only those that are equal to the last bit.
        rank: Return the ``rank`` largest singular values and their vectors. The gradient is that of the exact
            truncation: the rest of the spectrum takes part in it.
        vectors: Compute U and V; else S alone is returned, at a fraction of the cost.

    Returns:
        The named tuple (U, S, V): U (*batch, k, m), S (*batch, k), V (*batch, k, n), or with ``rank`` in
        place of k. With ``vectors=False`` the tensor S. On CUDA, singular values of small matrices below
        1e-218 (float32: 1e-22) of the largest one are zeros.

    Raises:
        NonFiniteError: Names the first item that holds a NaN or an infinity.
        ConvergenceError: Names the first item whose iteration did not converge.
        DegenerateSpectrumError: From the backward with ``degeneracy="raise"``, and names the item.
        OptionError: A keyword has a value that is not among the above.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of float32 or float64 matrices.

    Gradient:
        With sk(X) = X - X^T, C_ij = S_j / (S_i^2 - S_j^2) and C_ii = 0: G = diag gS + sk(gU U^T) ∘ C -
        sk(gV V^T) ∘ C^T; gA = U^T G V for m = n, and gA = U^T [(G - S^-1 gV V^T) V + S^-1 gV] for m < n; tall
        matrices by transposition. Saves U, S and V; with ``vectors=False`` too, where they are computed if a
        gradient may be asked for.

        The part of C that is singular at a tie, 1 / (S_i - S_j), follows ``degeneracy``: "mask" puts 0 there,
        "lorentz" t / (t^2 + e^2), "clamp" 1 / max(t, e), "nan" 1/0; zeros of S in S^-1 likewise.

        "mask" is exact when the loss depends on equal singular values through what they have in common: the
        spaces spanned, U^T V restricted to them, a symmetric function of the values. Where singular values
        are close or small, not equal or zero, the gradient of such a loss has the same precision: with "mask"
        and "raise", numerators that are only rounding are not divided by gaps and sums up to eps^(1/4) of the
        largest value. If the cotangents show that the loss does not depend on equal ones in that way, the
        backward warns (``DegenerateSpectrumWarning``), or raises with "raise".

        At a zero of S a loss of S is taken with the slope of its right side (a subgradient of the nuclear
        norm). A loss of U^T diag(S) V has a gradient at a matrix with zeros in S (one if m and n differ, two
        if m = n). But the part of it between vectors of zeros, and out of their space, does not pass through
        U, S and V: it is left out, with the same warning. Only where S is exactly zero does no cotangent show
        it. Take ``rank``, or A itself.

    Memory:
        forward 3, backward 2
        In units of the results, 2 n^2 for n x n, and of the gradient: forward LAPACK's workspace and one
        buffer besides, backward one buffer besides (two if m and n differ).

    Cost:
        forward about 21 n^3, backward 8 n^3 flops for n x n.

    Example:
        >>> import torch, lapgrad
        >>> U, S, V = lapgrad.gesvd(torch.tensor([[0.0, 2.0], [-3.0, 0.0]]))
        >>> S
        tensor([3., 2.])
        >>> torch.allclose(U.mT @ S.diag() @ V, torch.tensor([[0.0, 2.0], [-3.0, 0.0]]))
        True
    """
    if vectors and rank is None and tol is None and degeneracy == "mask" and not is_compiling():
        decomposition = _take_shortcut(A)
        if decomposition is not None:
            return SingularValueDecomposition(*decomposition)
    A = check_matrix("gesvd", "A", A)
    _spectral.check_policy("gesvd", degeneracy)
    check_tolerance("gesvd", "tol", tol)
    if rank is not None:
        check_count("gesvd", "rank", rank, 0, min(A.shape[-2:]), "min(m, n)")
    if not vectors:
        # If a gradient may follow, computing the vectors now costs less than a decomposition in the backward.
        recorded = A.requires_grad and is_grad_enabled()
        S = operator.call(A, degeneracy, tol)[1] if recorded else operator_values.call(A, degeneracy, tol)
        return S if rank is None else S[..., :rank].clone()
    U, S, V = operator.call(A, degeneracy, tol)
    if rank is not None:
        U, S, V = U[..., :rank, :].clone(), S[..., :rank].clone(), V[..., :rank, :].clone()
    return SingularValueDecomposition(U, S, V)


def _decompose(A: Tensor, degeneracy: str, tol: float | None) -> tuple[Tensor, Tensor, Tensor]:
    U, S, V = _fake(A, degeneracy, tol)
    _raise_failure(A, lookup("gesvd", A)(S, U, V, A))
    return U, S, V


def _compute_values(A: Tensor, degeneracy: str, tol: float | None) -> Tensor:
    S = _fake_values(A, degeneracy, tol)
    _raise_failure(A, lookup("gesvd", A)(S, None, None, A))
    return S


def _raise_failure(A: Tensor, failure: tuple[int, int] | None) -> None:
    if failure is not None:
        flat, code = failure
        explain = _errors.not_finite if code == NOT_FINITE else _errors.not_converged
        raise explain("gesvd", "A", A.shape[:-2], flat)


def _fake(A: Tensor, degeneracy: str, tol: float | None) -> tuple[Tensor, Tensor, Tensor]:
    m, n = A.shape[-2:]
    k = min(m, n)
    return allocate_matrix(A, k, m), A.new_empty((*A.shape[:-2], k)), allocate_matrix(A, k, n)


def _fake_values(A: Tensor, degeneracy: str, tol: float | None) -> Tensor:
    return A.new_empty((*A.shape[:-2], min(A.shape[-2:])))


def _fake_vjp(U: Tensor, S: Tensor, V: Tensor, *_: Any) -> Tensor:
    return allocate_matrix(U, U.shape[-1], V.shape[-1])


def _compute_vjp(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float | None,
) -> Tensor:
    gA = _fake_vjp(U, S, V)
    allowed = _gaps.choose_tolerance(S.shape[-1], S.dtype, tol)
    ambiguous = lookup("gesvd_vjp", U)(gA, U, S, V, gU, gS, gV, _spectral.resolve_policy(degeneracy), allowed)
    if ambiguous is not None and degeneracy != _spectral.QUIET:
        _spectral.report("gesvd", degeneracy, ambiguous, "equal or zero singular values")
    return gA


def _compute_vjp_composite(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float | None,
) -> Tensor:
    allowed = _gaps.choose_tolerance(S.shape[-1], S.dtype, tol)
    policy = _spectral.resolve_policy(degeneracy)
    return compute_vjp(
        U, S, V, gU, gS, gV, policy, allowed, _gemm2.multiply, discards=policy in DISCARDING_POLICIES
    )


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
) -> tuple[Tensor]:
    U, S, V = saved
    return (operator_vjp.call(U, S, V, gU, gS, gV, *flags),)


def jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With M = U dA V^T: dS = diag M, dU = sk(C ∘ M) U, dV = -sk(C^T ∘ M) V, if wide + S^-1 (U dA - M V).

    C is the one of the gradient, so that forward and reverse mode are adjoint under every policy.
    """
    (U, S, V), (degeneracy, tol) = saved, flags
    degeneracy = _spectral.resolve_policy(degeneracy)
    if U.shape[-1] > V.shape[-1]:
        dV, dS, dU = jvp((V, S, U), flags, dA.mT)
        return dU, dS, dV
    allowed = _gaps.choose_tolerance(S.shape[-1], S.dtype, tol)
    C = compute_coefficients(S, degeneracy, allowed)
    moved = _gemm2.multiply(U, dA)
    M = _gemm2.multiply(moved, V, transpose_b=True)
    turn_left, turn_right = C * M, C.mT * M
    dS = M.diagonal(dim1=-2, dim2=-1).clone()
    dU = _gemm2.multiply(turn_left - turn_left.mT, U)
    dV = _gemm2.multiply(turn_right.mT - turn_right, V)
    if U.shape[-1] < V.shape[-1]:
        outside = moved - _gemm2.multiply(M, V)
        dV = dV + invert_values(S, degeneracy, allowed) * outside
    return dU, dS, dV


def _vjp_values(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gS: Tensor
) -> tuple[Tensor]:
    """gA = U^T diag(gS) V, with vectors that are computed now."""
    (A,) = saved
    U, _, V = operator.call(A, *flags)
    return (_gemm2.multiply(U, gS[..., None] * V, transpose_a=True),)


def _jvp_values(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    """dS = diag(U dA V^T)."""
    (A,) = saved
    U, _, V = operator.call(A, *flags)
    return (_gemm2.multiply(U, dA) * V).sum(-1)


operator_vjp = define_fused(
    "gesvd_vjp",
    "(Tensor U, Tensor S, Tensor V, Tensor? gU, Tensor? gS, Tensor? gV, str degeneracy, float? tol)"
    " -> Tensor",
    kernel=_compute_vjp,
    fake=_fake_vjp,
    composite=_compute_vjp_composite,
)

_A, _U, _S, _V = 0, 1, 2, 3

operator = define(
    "gesvd",
    "(Tensor A, str degeneracy, float? tol) -> (Tensor, Tensor, Tensor)",
    kernel=_decompose,
    fake=_fake,
    formulas=Formulas(saves=((_U, _S, _V),), vjp=_vjp, jvp=jvp),
    shortcut=lambda A, *_: _take_shortcut(A),
)

operator_values = define(
    "gesvd_values",
    "(Tensor A, str degeneracy, float? tol) -> Tensor",
    kernel=_compute_values,
    fake=_fake_values,
    formulas=Formulas(saves=((_A,),), vjp=_vjp_values, jvp=_jvp_values),
)
