"""syevd: eigenvalues and eigenvectors of a symmetric matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors, _exceptions
from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_count, check_square_matrix, check_tolerance
from lapgrad.ops import _spectral
from lapgrad.ops import gemm2 as _gemm2

Degeneracy = Literal["mask", "lorentz", "clamp", "nan", "raise"]

QUIET = _spectral.QUIET

#: Policies that discard quotients of rounding by small gaps.
_DISCARDS = ("mask", "raise", QUIET)

#: The square root of eps: up to this, relative to the largest entry, a loss treats equal eigenvalues equally.
_UNEVEN = {torch.float64: 2.0**-26, torch.float32: 2.0**-11.5}

_take_shortcut = make_shortcut("syevd")


class Eigendecomposition(NamedTuple):
    """Eigenvectors and eigenvalues, A = U^T diag(eigenvalues) U: what ``syevd`` returns.

    Attributes:
        U: Eigenvectors as rows, (*batch, n, n), or (*batch, k, n).
        eigenvalues: In ascending order, (*batch, n), or (*batch, k).
    """

    U: Tensor
    eigenvalues: Tensor


@overload
def syevd(
    A: Tensor,
    *,
    lower: bool = True,
    degeneracy: Degeneracy = "mask",
    tol: float | None = None,
    k: int | None = None,
    vectors: Literal[True] = True,
) -> Eigendecomposition: ...


@overload
def syevd(
    A: Tensor,
    *,
    lower: bool = True,
    degeneracy: Degeneracy = "mask",
    tol: float | None = None,
    k: int | None = None,
    vectors: Literal[False],
) -> Tensor: ...


def syevd(
    A: Tensor,
    *,
    lower: bool = True,
    degeneracy: Degeneracy = "mask",
    tol: float | None = None,
    k: int | None = None,
    vectors: bool = True,
) -> Eigendecomposition | Tensor:
    """Eigenvalues and eigenvectors of a symmetric matrix: A = U^T diag(l) U, rows of U are eigenvectors.

    Signs are determined: in each eigenvector the first entry whose size is within 1e-6 of the largest is
    positive.

    Args:
        A: (*batch, n, n), symmetric. Only the named triangle is read.
        lower: Read the lower triangle, else the upper one.
        degeneracy: What replaces 1 / gap in the gradient where the gap between two eigenvalues closes.
            "mask": 0 for gaps up to the threshold; also 0 for gaps up to eps^(1/4) of the largest
            |eigenvalue| where the entry of gU U^T - U gU^T that is divided is only rounding. "lorentz":
            gap / (gap^2 + threshold^2). "clamp": gaps are at least the threshold, and rounding errors are
            divided by it. "nan": the bare formula, not finite at equal eigenvalues. "raise": as "mask", with
            a DegenerateSpectrumError in the backward where the loss has no gradient.
        tol: The threshold, relative to the largest |eigenvalue|; 8 (1 + sqrt(n)) eps when None.
        k: Only the k largest eigenvalues and their eigenvectors, in ascending order as well.
        vectors: Return eigenvectors. With False the result is the tensor of eigenvalues alone.

    Returns:
        The named tuple (U, eigenvalues): (*batch, n, n) and (*batch, n), ascending; with ``k`` (*batch, k, n)
        and (*batch, k). With ``vectors=False`` the eigenvalues as a tensor.

    Raises:
        NonFiniteError: Names the first item with NaN or infinity in the triangle that is read.
        ConvergenceError: Names the first item whose iteration did not converge.
        DegenerateSpectrumError: With ``degeneracy="raise"``, in the backward; names the first item.
        OptionError: ``degeneracy`` is none of the above, ``tol`` is negative or ``k`` is not within 0 and n.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = U^T (sym((gU U^T) o F) + diag(gl)) U, symmetric, with F_ij = 1 / (l_i - l_j) as ``degeneracy``
        says, F_ii = 0. Forward mode: dl = diag(M), dU = (M o F) U, M = U sym(dA) U^T. Saves U and the
        eigenvalues. The first derivative is one kernel; higher orders follow the formula.

        With "mask" the gradient is finite at every matrix, and exact whenever the loss depends on a group of
        equal eigenvalues only through their projector and treats the eigenvalues alike (sums, traces,
        projectors). Where they are close, not equal, the gradient of such a loss has the same precision.
        Other losses have no gradient at equal eigenvalues: a DegenerateSpectrumWarning says so, once, and can
        be switched off like every warning. The check is part of the kernel of the first derivative, also in
        compiled code, where an exception comes out of the compiled backward; forward mode and higher
        derivatives do not check. For functions of a matrix use ``linalg.eigh_fn``, which is exact at equal
        eigenvalues.

        With ``k`` the cost is that of products with k rows; all eigenvectors are saved. With
        ``vectors=False`` and a gradient recorded in plain eager mode, eigenvectors are computed in the
        forward and saved; inside of transforms such as torch.func.vmap A is saved, and the backward computes
        them.

    Memory:
        forward 3, backward 2
        LAPACK works in two further buffers; batches of matrices up to order 32, and large ones up to order
        64, need none. The backward has one beside the gradient. ``vectors=False``: one buffer in the forward.

    Cost:
        forward about 9 n^3 (4/3 n^3 with ``vectors=False``), backward 5 n^3 flops (n^3 without gU, 6 n^2 k
        with ``k``).

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> U, eigenvalues = lapgrad.syevd(A)
        >>> eigenvalues
        tensor([1., 3.])
        >>> lapgrad.syevd(A, k=1).U
        tensor([[0.7071, 0.7071]])
    """
    if vectors and k is None and tol is None and degeneracy == "mask" and not is_compiling():
        decomposition = _take_shortcut(A, lower)
        if decomposition is not None:
            return Eigendecomposition(*decomposition)
    A = check_square_matrix("syevd", "A", A)
    _spectral.check_policy("syevd", degeneracy)
    check_tolerance("syevd", "tol", tol)
    if k is not None:
        check_count("syevd", "k", k, 0, A.shape[-1], "n")
        return _find_largest(A, lower, degeneracy, tol, k, vectors)
    if vectors:
        return Eigendecomposition(*operator.call(A, lower, degeneracy, tol))
    if _is_recorded(A):
        return operator.call(A, lower, degeneracy, tol)[1]
    return operator_values.call(A, lower, degeneracy, tol)


def _find_largest(
    A: Tensor, lower: bool, degeneracy: str, tol: float | None, k: int, vectors: bool
) -> Eigendecomposition | Tensor:
    if vectors or _is_recorded(A):
        U, eigenvalues, _, _ = operator_top.call(A, lower, k, degeneracy, tol)
        return Eigendecomposition(U, eigenvalues) if vectors else eigenvalues
    eigenvalues = operator_values.call(A, lower, degeneracy, tol)
    return _copy(eigenvalues[..., A.shape[-1] - k :])


def _copy(part: Tensor) -> Tensor:
    return part.clone(memory_format=torch.contiguous_format)


def _is_recorded(A: Tensor) -> bool:
    return A.requires_grad and torch.is_grad_enabled()


def decompose(name: str, A: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    """U and the eigenvalues of A; ``name`` is the operator's name in messages."""
    U, eigenvalues = allocate_like(A), A.new_empty(A.shape[:-1])
    failure = lookup("syevd", A)(eigenvalues, U, A, lower)
    if failure is not None:
        raise _explain_failure(name, A, failure)
    return U, eigenvalues


def _decompose(A: Tensor, lower: bool, degeneracy: str, tol: float | None) -> tuple[Tensor, Tensor]:
    return decompose("syevd", A, lower)


def _decompose_top(
    A: Tensor, lower: bool, k: int, degeneracy: str, tol: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    U, eigenvalues = _decompose(A, lower, degeneracy, tol)
    rest = A.shape[-1] - k
    return _copy(U[..., rest:, :]), _copy(eigenvalues[..., rest:]), U, eigenvalues


def _compute_values(A: Tensor, lower: bool, degeneracy: str, tol: float | None) -> Tensor:
    eigenvalues = A.new_empty(A.shape[:-1])
    failure = lookup("syevd", A)(eigenvalues, None, A, lower)
    if failure is not None:
        raise _explain_failure("syevd", A, failure)
    return eigenvalues


def _explain_failure(name: str, A: Tensor, failure: tuple[int, int]) -> _exceptions.LapgradError:
    flat, code = failure
    explain = _errors.not_finite if code < 0 else _errors.not_converged
    return explain(name, "A", A.shape[:-2], flat)


def _compute_vjp(
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float | None,
) -> Tensor:
    gA = allocate_like(U)
    relative = _gaps.choose_tolerance(U.shape[-1], U.dtype, tol)
    if not (has_kernel("syevd_vjp", U) and lookup("serves_syevd_vjp", U)(U, gU, slope)):
        turned = None if gU is None else _gemm2.multiply(gU, U, transpose_b=True)
        gA = _compute_vjp_turned(U, eigenvalues, turned, gU, slope, degeneracy, tol)
        marked = _find_uneven(eigenvalues, turned, slope, relative)
    else:
        uneven = lookup("syevd_vjp", U)(gA, U, eigenvalues, gU, slope, degeneracy, relative)
        if uneven is None:
            return gA
        marked = torch.zeros(U.shape[:-2], dtype=torch.bool)
        marked.view(-1)[uneven[0]] = True
    if degeneracy != QUIET:
        _spectral.report("syevd", degeneracy, marked, "equal eigenvalues")
    return gA


def _find_uneven(eigenvalues: Tensor, turned: Tensor | None, slope: Tensor | None, tol: float) -> Tensor:
    """bool (*batch), True where the loss distinguishes vectors or values of one repeated eigenvalue.

    Among equal eigenvalues the skew part of ``turned``, gU U^T, and differences of the slopes must vanish.
    Rows that are not among the last k have cotangent zero.
    """
    n, allowed = eigenvalues.shape[-1], _UNEVEN[eigenvalues.dtype]
    found = torch.zeros(eigenvalues.shape[:-1], dtype=torch.bool, device=eigenvalues.device)
    if n == 0:
        return found
    apart = ~_gaps.find_ties(_gaps.compute_gaps(eigenvalues), _gaps.find_largest(eigenvalues), tol)
    if turned is not None:
        P = turned.new_zeros((*turned.shape[:-2], n, n))
        P[..., n - turned.shape[-2] :, :] = turned
        skew = (P - P.mT).masked_fill(apart, 0.0)
        found |= skew.abs().amax((-2, -1)) > allowed * P.abs().amax((-2, -1))
    if slope is not None:
        full = torch.zeros_like(eigenvalues)
        full[..., n - slope.shape[-1] :] = slope
        steps = _gaps.compute_gaps(full).masked_fill(apart, 0.0)
        found |= steps.abs().amax((-2, -1)) > allowed * full.abs().amax(-1)
    return found


def _invert_gaps(eigenvalues: Tensor, degeneracy: str, tol: float | None) -> Tensor:
    """F_ij = 1 / (l_i - l_j) as the policy says, F_ii = 0."""
    policy = _spectral.resolve_policy(degeneracy)
    relative = _gaps.choose_tolerance(eigenvalues.shape[-1], eigenvalues.dtype, tol)
    return _gaps.invert_gaps(
        _gaps.compute_gaps(eigenvalues), _gaps.find_largest(eigenvalues), policy, relative
    )


def _compute_vjp_composite(
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float | None,
) -> Tensor:
    turned = None if gU is None else _gemm2.multiply(gU, U, transpose_b=True)
    return _compute_vjp_turned(U, eigenvalues, turned, gU, slope, degeneracy, tol)


def _compute_vjp_turned(
    U: Tensor,
    eigenvalues: Tensor,
    turned: Tensor | None,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float | None,
) -> Tensor:
    """gA = sym(U_k^T W), W = (S o F) U + diag(slope) U_k, for cotangents of the last k rows.

    ``turned`` is gU U^T. S is half of its skew part between the k rows, and ``turned`` itself between them
    and the others: skew first, because quotients by small gaps would not cancel.
    """
    rest = U.shape[-1] - _count_rows(gU, slope)
    top = U[..., rest:, :]
    W: Any = 0.0
    if gU is not None and turned is not None:
        between = turned[..., rest:]
        skew = between - between.mT
        if rest:
            skew = torch.cat([2.0 * turned[..., :rest], skew], -1)
        if degeneracy in _DISCARDS:
            skew = _gaps.discard_entries(skew, _find_rounding(skew, eigenvalues, gU, slope))
        # Computed after the search for rounding, whose own matrices are freed by now, to keep the peak low.
        F = _invert_gaps(eigenvalues, degeneracy, tol)[..., rest:, :]
        W = _gemm2.multiply(0.5 * skew * F, U)
    if slope is not None:
        W = W + slope.unsqueeze(-1) * top
    product = _gemm2.multiply(top, W, transpose_a=True)
    return 0.5 * (product + product.mT)


def _find_rounding(skew: Tensor, eigenvalues: Tensor, gU: Tensor, slope: Tensor | None) -> Tensor:
    """bool, True where an entry of ``skew`` (the last k rows) is only rounding, and its gap small."""
    rest = eigenvalues.shape[-1] - gU.shape[-2]

    def extend_to_all(rows: Tensor) -> Tensor:
        """``rows`` of the last k, with zeros before them for the others."""
        return torch.cat([rows.new_zeros((*rows.shape[:-1], rest)), rows], -1) if rest else rows

    noise = _gaps.bound_row_noise(gU)
    pairs = noise.unsqueeze(-1) + extend_to_all(noise).unsqueeze(-2)
    gap = eigenvalues[..., rest:].unsqueeze(-1) - eigenvalues.unsqueeze(-2)
    step = None if slope is None else slope.unsqueeze(-1) - extend_to_all(slope).unsqueeze(-2)
    close = _gaps.compute_close_gap(_gaps.find_largest(eigenvalues))
    return _gaps.find_rounding(skew, pairs, gap, close, step)


def _count_rows(gU: Tensor | None, slope: Tensor | None) -> int:
    if gU is not None:
        return gU.shape[-2]
    assert slope is not None
    return slope.shape[-1]


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gU: Tensor | None,
    slope: Tensor | None,
) -> tuple[Tensor]:
    (U, eigenvalues), (_, degeneracy, tol) = saved, flags
    return (operator_vjp.call(U, eigenvalues, gU, slope, degeneracy, tol),)


def _vjp_top(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gU: Tensor | None,
    slope: Tensor | None,
    gU_all: Tensor | None,
    slope_all: Tensor | None,
) -> tuple[Tensor]:
    """Return gA from the cotangents of the last k eigenvectors, and of all of them.

    Second derivatives have cotangents of all, because the formula of the first derivative reads all.
    """
    (U, eigenvalues), (_, _, degeneracy, tol) = saved, flags
    parts = [
        operator_vjp.call(U, eigenvalues, *pair, degeneracy, tol)
        for pair in ((gU, slope), (gU_all, slope_all))
        if pair[0] is not None or pair[1] is not None
    ]
    return (parts[0] if len(parts) == 1 else parts[0] + parts[1],)


def _vjp_values(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], slope: Tensor
) -> tuple[Tensor]:
    (A,), (lower, degeneracy, tol) = saved, flags
    U, eigenvalues = operator.call(A, lower, degeneracy, tol)
    return (operator_vjp.call(U, eigenvalues, None, slope, degeneracy, tol),)


def compute_jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor]:
    """dl = diag(M), dU = (M o F) U, M = U sym(dA) U^T.

    Symmetrised, the map is the exact adjoint of the vjp, so that forward and reverse mode agree on every
    input.
    """
    (U, eigenvalues), (_, degeneracy, tol) = saved, flags
    M = _gemm2.multiply(U, 0.5 * (dA + dA.mT))
    M = _gemm2.multiply(M, U, transpose_b=True)
    F = _invert_gaps(eigenvalues, degeneracy, tol)
    dU = _gemm2.multiply(M * F, U)
    return dU, M.diagonal(dim1=-2, dim2=-1).clone()


def _jvp_top(
    saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lower, k, degeneracy, tol = flags
    dU, slope = compute_jvp(saved, (lower, degeneracy, tol), dA)
    rest = dA.shape[-1] - k
    return _copy(dU[..., rest:, :]), _copy(slope[..., rest:]), dU, slope


def _jvp_values(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    """dl_i = u_i^T sym(dA) u_i."""
    (A,), (lower, degeneracy, tol) = saved, flags
    U, _ = operator.call(A, lower, degeneracy, tol)
    return (_gemm2.multiply(U, 0.5 * (dA + dA.mT)) * U).sum(-1)


def _fake(A: Tensor, lower: bool, degeneracy: str, tol: float | None) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape[:-1])


def _fake_top(
    A: Tensor, lower: bool, k: int, degeneracy: str, tol: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *batch, n = A.shape[:-1]
    return A.new_empty((*batch, k, n)), A.new_empty((*batch, k)), *_fake(A, lower, degeneracy, tol)


operator_vjp = define_fused(
    "syevd_vjp",
    "(Tensor U, Tensor eigenvalues, Tensor? gU, Tensor? slope, str degeneracy, float? tol) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda U, eigenvalues, gU, slope, degeneracy, tol: U.new_empty(U.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("syevd_vjp"),
)

_A, _U, _EIGENVALUES = 0, 1, 2

operator = define(
    "syevd",
    "(Tensor A, bool lower, str degeneracy, float? tol) -> (Tensor, Tensor)",
    kernel=_decompose,
    fake=_fake,
    formulas=Formulas(saves=((_U, _EIGENVALUES),), vjp=_vjp, jvp=compute_jvp),
    shortcut=lambda A, lower, *_: _take_shortcut(A, lower),
)

_ALL_U, _ALL_EIGENVALUES = 3, 4

operator_top = define(
    "syevd_top",
    "(Tensor A, bool lower, int k, str degeneracy, float? tol) -> (Tensor, Tensor, Tensor, Tensor)",
    kernel=_decompose_top,
    fake=_fake_top,
    formulas=Formulas(saves=((_ALL_U, _ALL_EIGENVALUES),), vjp=_vjp_top, jvp=_jvp_top),
)

operator_values = define(
    "syevd_values",
    "(Tensor A, bool lower, str degeneracy, float? tol) -> Tensor",
    kernel=_compute_values,
    fake=lambda A, lower, degeneracy, tol: A.new_empty(A.shape[:-1]),
    formulas=Formulas(saves=((_A,),), vjp=_vjp_values, jvp=_jvp_values),
)
