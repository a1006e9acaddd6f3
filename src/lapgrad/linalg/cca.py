"""cca: canonical correlation analysis."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import make_shortcut
from lapgrad._torch.layout import broadcast_batch, check_matrix, check_same_kind
from lapgrad.linalg import _whitening
from lapgrad.linalg._centring import centre
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.gesvd import gesvd
from lapgrad.ops.trsm import trsm

_take_shortcut = make_shortcut("cca")


class CanonicalCorrelations(NamedTuple):
    """Canonical correlations and directions of two data sets: what ``cca`` returns.

    Attributes:
        correlations: (*batch, k), descending.
        A: (*batch, p, k): (X - mean) A are the canonical variates of X, uncorrelated with variance 1.
        B: (*batch, q, k): those of Y.
    """

    correlations: Tensor
    A: Tensor
    B: Tensor


def cca(X: Tensor, Y: Tensor, *, k: int | None = None, regularisation: float = 0.0) -> CanonicalCorrelations:
    """Canonical correlation analysis: correlations = diag(A^T Cxy B) with A^T Cxx A = B^T Cyy B = 1.

    Cxx, Cxy and Cyy are the covariances of the columns of X and Y. The columns of A and B are the pairs of
    directions with the largest correlations, each pair uncorrelated with those before.

    Both sides are whitened by Cholesky factors of their covariances, Cxx = Lx Lx^T and Cyy = Ly Ly^T; the
    correlations are the singular values of Lx^-1 Cxy Ly^-T. Signs are those of ``gesvd``.

    Args:
        X: (*batch, n, p), n observations in rows. Means are subtracted.
        Y: (*batch, n, q), observations of the same n. Leading dimensions broadcast.
        k: How many pairs of directions; None: min(p, q).
        regularisation: Added to the diagonals of both covariances; needed where they are singular, as for n
            <= p.

    Returns:
        The named tuple (correlations, A, B): (*batch, k), (*batch, p, k), (*batch, q, k).

    Raises:
        NotPositiveDefiniteError: A covariance is singular; names X or Y and the item.
        NonFiniteError: X or Y holds a NaN or an infinity.
        OptionError: k or the regularisation is out of range, or there are too few observations without one.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        That of the operators it is made of, of any order: ``syrk``, ``potrf``, ``trsm`` and ``gesvd``, with
        the policy "mask" for equal correlations. Saves what these save: observations, factors and vectors.

    Memory:
        forward 13 n^2, backward 9 n^2
        For X and Y of 2n x n, of which the results take 2 n^2 and the gradients 4: centred X and Y,
        the factors, and the workspace of ``gesvd``.

    Cost:
        forward n (p + q)^2 + p^3/3 + q^3/3 + 2 p q (p + q) flops and a ``gesvd`` of p x q.

    Example:
        >>> import torch, lapgrad
        >>> X = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 3.0], [3.0, 1.0]])
        >>> lapgrad.linalg.cca(X, X[:, :1] - X[:, 1:]).correlations.round(decimals=3)
        tensor([1.])
    """
    X, Y = check_matrix("linalg.cca", "X", X), check_matrix("linalg.cca", "Y", Y)
    check_same_kind("linalg.cca", X=X, Y=Y)
    n, p, q = X.shape[-2], X.shape[-1], Y.shape[-1]
    if Y.shape[-2] != n:
        raise _errors.shapes_do_not_fit("linalg.cca", {"X": X, "Y": Y}, "X and Y must have equally many rows")
    broadcast_batch("linalg.cca", X=X, Y=Y)
    _whitening.check_options("linalg.cca", k, min(p, q), "min(p, q)", regularisation)
    _whitening.check_rows("linalg.cca", "X", n - 1, p, regularisation)
    _whitening.check_rows("linalg.cca", "Y", n - 1, q, regularisation)
    if not is_compiling():
        found = _take_shortcut(X, Y, min(p, q) if k is None else k, regularisation)
        if found is not None:
            return CanonicalCorrelations(*found)
    (_, X, unit_x), (_, Y, unit_y) = (centre(Z, least=math.sqrt(regularisation)) for Z in (X, Y))
    Lx = _whitening.factorise_covariance(
        "linalg.cca", "the covariance of X", X, unit_x, n - 1, regularisation
    )
    Ly = _whitening.factorise_covariance(
        "linalg.cca", "the covariance of Y", Y, unit_y, n - 1, regularisation
    )
    middle = trsm(Lx, gemm2(X, Y, transpose_a=True, alpha=1.0 / (n - 1)))
    middle = trsm(Ly, middle, transpose=True, rightside=True)
    U, S, V = gesvd(middle, rank=k)
    W_x, W_y = _whitening.unwhiten_directions(Lx, unit_x, U), _whitening.unwhiten_directions(Ly, unit_y, V)
    return CanonicalCorrelations(S, W_x, W_y)
