"""lda: linear discriminant analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _exceptions
from lapgrad._kernels.table import make_shortcut
from lapgrad._torch.layout import check_matrix
from lapgrad.linalg import _whitening
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.gesvd import gesvd
from lapgrad.ops.trsm import trsm

_take_shortcut = make_shortcut("lda")


class LinearDiscriminants(NamedTuple):
    """Linear discriminants and how well they separate the classes: what ``lda`` returns.

    Attributes:
        ratios: (*batch, k), variance between classes over variance within, descending.
        W: (*batch, p, k): X W are the discriminant variables, uncorrelated within classes with variance 1.
    """

    ratios: Tensor
    W: Tensor


def lda(
    X: Tensor,
    *,
    labels: Tensor | Sequence[int],
    classes: int | None = None,
    k: int | None = None,
    regularisation: float = 0.0,
) -> LinearDiscriminants:
    """Fisher's linear discriminants: Sb W = Sw W diag(ratios) with W^T Sw W = 1.

    Sw = sum_i (x_i - m_c(i)) (x_i - m_c(i))^T / (n - c) is the scatter within the c classes, and Sb = sum_j
    n_j (m_j - m) (m_j - m)^T / (c - 1) the one between them. With Sw = L L^T and Sb = H H^T the ratios are
    the squared singular values of L^-1 H: the generalised symmetric eigenproblem, without squaring H. Signs
    are those of ``gesvd``.

    Args:
        X: (*batch, n, p), n observations in rows.
        labels: n integers from 0 to c - 1, a tensor or a sequence: the class of each row, the same for all
            of a batch.
        classes: c; None: one more than the largest label. Needed by torch.compile if labels are a tensor.
        k: How many directions; None: min(p, c - 1).
        regularisation: Added to the diagonal of Sw; needed where that is singular, as for n < p + c.

    Returns:
        The named tuple (ratios, W): (*batch, k) and (*batch, p, k).

    Raises:
        NotPositiveDefiniteError: The scatter within classes is singular; names the item.
        NonFiniteError: X holds a NaN or an infinity.
        OptionError: A label is out of range, a class has no rows, there is one class only, there are too few
            rows, or k or the regularisation is out of range.
        DTypeError, ShapeError, SizeError: ``X`` is not a batch of float32 or float64 matrices, or ``labels``
            are not integers, one per row.

    Gradient:
        That of the operators it is made of, of any order: ``gemm2``, ``syrk``, ``potrf``, ``trsm`` and
        ``gesvd``, with the policy "mask" for equal ratios. Saves what these save: observations less their
        means, the factor, vectors.

    Memory:
        forward 4 n^2, backward 4 n^2
        For X of 2n x n, of which the gradient takes 2 n^2: X minus the means of its classes, and two matrices
        of n x n.

    Cost:
        forward n p (p + 4 c) + p^3/3 + p^2 (c + k) flops and a ``gesvd`` of p x c.

    Example:
        >>> import torch, lapgrad
        >>> X = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 1.0], [9.0, 0.0], [9.0, 2.0], [7.0, 1.0]])
        >>> ratios, W = lapgrad.linalg.lda(X, labels=[0, 0, 0, 1, 1, 1])
        >>> ratios
        tensor([66.1250])
    """
    if classes is None and not is_compiling():
        found = _take_shortcut(X, labels, k, regularisation)
        if found is not None:
            return LinearDiscriminants(*found)
    X = check_matrix("linalg.lda", "X", X)
    n, p = X.shape[-2:]
    labels, classes = _convert_labels(labels, classes, X)
    _whitening.check_options("linalg.lda", k, min(p, classes - 1), "min(p, classes - 1)", regularisation)
    _whitening.check_rows("linalg.lda", "X within classes", n - classes, p, regularisation)
    # One row per class, with a one for each of its members.
    member = (labels == torch.arange(classes, device=X.device)[:, None]).to(X.dtype)
    sizes = member.sum(-1, keepdim=True)
    means = gemm2(member / sizes, X)
    within, unit = _whitening.normalise(X - gemm2(member, means, transpose_a=True), regularisation)
    L = _whitening.factorise_covariance(
        "linalg.lda", "the scatter of X within classes", within, unit, n - classes, regularisation
    )
    # The c weighted means add up to zero: c - 1 combinations of them hold the same Sb, and have full rank.
    contrasts = _project_out(sizes[:, 0].sqrt()) * (sizes[:, 0] / (classes - 1)).sqrt()
    between = gemm2(means * unit.reciprocal(), contrasts, transpose_a=True, transpose_b=True)
    U, S, _ = gesvd(trsm(L, between), rank=k)
    return LinearDiscriminants(S * S, _whitening.unwhiten_directions(L, unit, U))


def _project_out(w: Tensor) -> Tensor:
    """Orthonormal rows orthogonal to w, whose first entry is positive: those of a Householder reflection."""
    identity = torch.eye(len(w), dtype=w.dtype, device=w.device)
    v = w / w.norm() + identity[0]
    return (identity - 2.0 * torch.outer(v, v) / v.square().sum())[1:]


def _convert_labels(labels: Tensor | Sequence[int], classes: int | None, X: Tensor) -> tuple[Tensor, int]:
    """Return the labels on the device of X, and the number of classes; values are checked unless traced."""
    n = X.shape[-2]
    if isinstance(labels, Tensor):
        if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype is torch.bool:
            raise _exceptions.DTypeError(f"linalg.lda: labels must be integers, got {labels.dtype}.")
        shape = tuple(labels.shape)
    else:
        if not all(isinstance(label, int) for label in labels):
            raise _exceptions.DTypeError("linalg.lda: labels must be integers.")
        shape = (len(labels),)
    if shape != (n,):
        raise _exceptions.ShapeError(
            f"linalg.lda: labels must have shape ({n},), one per row of X {tuple(X.shape)}, got {shape}."
        )
    counted = isinstance(labels, Tensor) and is_compiling()
    if classes is None:
        classes = 0 if n == 0 else int(labels.max()) + 1 if isinstance(labels, Tensor) else max(labels) + 1
    if classes < 2:
        raise _exceptions.OptionError(f"linalg.lda: there must be at least 2 classes, got {classes}.")
    if not counted:
        _check_labels(labels, classes)
    if not isinstance(labels, Tensor):
        labels = torch.tensor(labels, device=X.device)
    return labels, classes


def _check_labels(labels: Tensor | Sequence[int], classes: int) -> None:
    values = labels.tolist() if isinstance(labels, Tensor) else labels
    present = set(values)
    outside = [label for label in sorted(present) if not 0 <= label < classes]
    if outside:
        raise _exceptions.OptionError(
            f"linalg.lda: labels must be between 0 and {classes - 1}, got {outside[0]}."
        )
    missing = [label for label in range(classes) if label not in present]
    if missing:
        raise _exceptions.OptionError(f"linalg.lda: class {missing[0]} of {classes} has no rows.")
