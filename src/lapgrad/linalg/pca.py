"""pca: principal components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _exceptions
from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.table import make_shortcut
from lapgrad._torch.layout import check_count, check_matrix, check_tolerance
from lapgrad.linalg._centring import centre
from lapgrad.linalg._whitening import name_not_finite
from lapgrad.ops import _spectral
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import syevd as _syevd
from lapgrad.ops import syrk as _syrk

_NAME = "linalg.pca"
_take_shortcut = make_shortcut("pca")


class PrincipalComponents(NamedTuple):
    """Principal components and the coordinates of the data in them: what ``pca`` returns.

    Attributes:
        components: Orthonormal directions as rows, the largest variance first, (*batch, k, d).
        variance: Explained by each of them, (*batch, k).
        mean: Of the data, (*batch, d).
        scores: Coordinates of the centred data, (*batch, n, k).
    """

    components: Tensor
    variance: Tensor
    mean: Tensor
    scores: Tensor


def pca(
    X: Tensor,
    *,
    k: int | None = None,
    degeneracy: _syevd.Degeneracy = "mask",
    tol: float | None = None,
) -> PrincipalComponents:
    """Principal components: X - mean = scores components + rest, the k directions of largest variance.

    The rest is orthogonal to the components. Signs are determined: in each component the first entry whose
    size is within 1e-6 of the largest is positive.

    Args:
        X: (*batch, n, d), n observations of d variables.
        k: How many components; None: min(n, d).
        degeneracy: How the gradient treats equal variances; as for ``syevd``.
        tol: Variances closer than this, relative to the largest, count as equal; as for ``syevd``.

    Returns:
        The named tuple (components, variance, mean, scores): orthonormal rows (*batch, k, d), the largest
        variance first; the variances (*batch, k), with divisor n - 1; the mean (*batch, d); the coordinates
        of the centred data (*batch, n, k). With d > n a component whose variance is zero is a row of zeros:
        the data do not determine it.

    Raises:
        NonFiniteError: Names the first item with NaN or infinity, or whose variances overflow.
        ConvergenceError: Names the first item whose eigenvalues did not converge.
        DegenerateSpectrumError: With ``degeneracy="raise"``, in the backward; names the first item.
        OptionError: ``k`` is not within 0 and the smaller side of X; ``degeneracy`` or ``tol`` is not as for
            ``syevd``.
        DTypeError, ShapeError, SizeError: ``X`` is not a batch of float32 or float64 matrices with at least
            one row.

    Gradient:
        That of the eigendecomposition (``syevd`` with ``k``) of X^T X if d <= n, else of X X^T, of centred X
        divided by a power of two, so that small and large data lose no digits; finite always, and exact
        where the loss depends on components of equal variance only through their span. Saves X centred, all
        eigenvectors of the smaller side, and the components.

    Memory:
        forward 2.5, backward 3
        In units of the results, and of the gradient, with n = d = k: two buffers for LAPACK, eigenvectors,
        the covariance and the centred X. For small k these are what counts.

    Cost:
        With m the smaller and M the larger side: forward m^2 M + 9 m^3 + 2 n d k, backward about
        2 m^2 M + 6 m^2 k + 8 n d k flops.

    Example:
        >>> import torch, lapgrad
        >>> X = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        >>> lapgrad.linalg.pca(X, k=1).components
        tensor([[0.7071, 0.7071]])
    """
    X = check_matrix(_NAME, "X", X)
    _spectral.check_policy(_NAME, degeneracy)
    check_tolerance(_NAME, "tol", tol)
    n, d = X.shape[-2:]
    if n == 0:
        raise _exceptions.ShapeError(f"{_NAME}: X must have at least one row, got shape {tuple(X.shape)}.")
    if k is None:
        k = min(n, d)
    else:
        check_count(_NAME, "k", k, 0, min(n, d), "the smaller side of X")
    if not is_compiling() and (found := _take_shortcut(X, k)) is not None:
        return PrincipalComponents(*found)
    degrees = max(n - 1, 1)
    mean, centred, unit = centre(X, degrees=degrees)
    try:
        components, moments = _decompose_centred(centred, k, degeneracy, tol)
    except _exceptions.NonFiniteError as error:
        # Where a variance overflows, centred is NaN.
        raise name_not_finite(_NAME, "the covariance of X", error) from error
    variance = moments * (unit.squeeze(-1).square() / degrees)
    scores = _gemm2.multiply(centred, components, transpose_b=True) * unit
    return PrincipalComponents(components, variance, mean, scores)


def _decompose_centred(
    centred: Tensor, k: int, degeneracy: _syevd.Degeneracy, tol: float | None
) -> tuple[Tensor, Tensor]:
    """Components of centred data, and the sums of their squared scores."""
    n, d = centred.shape[-2:]
    wide = d > n
    U, ascending, _, _ = _syevd.operator_top.call(
        _syrk.operator.call(centred, not wide), True, k, degeneracy, tol
    )
    U, moments = U.flip(-2), ascending.flip(-1).clamp_min(0.0)
    if not wide:
        return U, moments
    # X = W^T diag(sqrt(moments)) V: an eigenvector w of X X^T leads to the component v.
    least = _gaps.choose_tolerance(n, centred.dtype, None) * _gaps.find_largest(ascending).squeeze(-1)
    there = moments > least
    scale = torch.where(there, torch.where(there, moments, 1.0).rsqrt(), 0.0)
    components = _gemm2.multiply(U, centred) * scale.unsqueeze(-1)
    return components * _gaps.find_row_signs(components).unsqueeze(-1), moments
