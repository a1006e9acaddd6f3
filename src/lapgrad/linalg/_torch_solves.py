"""Solves, inverses and determinants under torch's names, with torch's signatures and conventions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad._torch import lu as _torch_lu
from lapgrad._torch import private as _torch_private
from lapgrad._translation import lu as _lu
from lapgrad._translation import solve_triangular as _solve_triangular
from lapgrad._translation._operands import is_served, is_square, records_gradient
from lapgrad.linalg._torch_factorisations import make_named_tuple, write_to_out
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.ops import det as _det
from lapgrad.ops import gesv as _gesv
from lapgrad.ops import inverse as _inverse
from lapgrad.ops import potri as _potri
from lapgrad.ops import slogdet as _slogdet


def solve_triangular(
    A: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Return X with A X = B for a triangular A, or X A = B, as ``torch.linalg.solve_triangular`` does.

    Args:
        A: (*batch, n, n), triangular. The other triangle is not read.
        B: (*batch, n, m), or (*batch, m, n) with ``left=False``. Leading dimensions broadcast.
        upper: A is upper triangular, else lower triangular.
        left: Solve A X = B, else X A = B.
        unitriangular: The diagonal counts as ones: torch computes it.
        out: Receives the result.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast), column-major. It is infinite where A has
        a zero on its diagonal.

    Raises:
        RuntimeError: torch's, for operands that do not fit.

    Gradient:
        That of ``lapgrad.trsm``. Saves A, and X when A needs a gradient.

    Memory:
        forward 1, backward 2

    Cost:
        forward n^2 m, backward 2 n^2 m flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> A = torch.tensor([[2.0, 0.0], [1.0, 2.0]])
        >>> linalg.solve_triangular(A, torch.tensor([[2.0], [5.0]]), upper=False)
        tensor([[1.],
                [2.]])
    """
    if (
        is_served(A, B)
        and is_square(A)
        and not unitriangular
        and A.shape[-1] == B.shape[-2 if left else -1]
        and not (out is not None and records_gradient(A, B))
    ):
        X = _solve_triangular.record_solve_triangular(A, B, upper=upper, left=left)
        if out is None or write_to_out(X, out):
            return X if out is None else out
    return torch.linalg.solve_triangular(A, B, upper=upper, left=left, unitriangular=unitriangular, out=out)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return X = (L L^T)^-1 B, or (R^T R)^-1 B, as ``torch.cholesky_solve`` does.

    Args:
        B: (*batch, n, m).
        L: (*batch, n, n), what ``cholesky`` returns. Leading dimensions broadcast.
        upper: L is an upper factor R.
        out: Receives the result.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast).

    Raises:
        RuntimeError: torch's, for operands that do not fit.

    Gradient:
        That of ``lapgrad.linalg.cho_solve``: zero in the triangle of L that is not read. Saves L, and X when
        L needs a gradient.

    Memory:
        forward 1, backward 2

    Cost:
        forward 2 n^2 m, backward 5 n^2 m flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.cholesky_solve(torch.tensor([[2.0], [2.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        tensor([[0.],
                [1.]])
    """
    if (
        is_served(B, L)
        and is_square(L)
        and L.shape[-1] == B.shape[-2]
        and not (out is not None and records_gradient(B, L))
    ):
        try:
            X = cho_solve(L, B, lower=not upper)
        except (_exceptions.SingularMatrixError, _exceptions.ShapeError):
            return torch.cholesky_solve(B, L, upper, out=out)
        if out is None or write_to_out(X, out):
            return X if out is None else out
    return torch.cholesky_solve(B, L, upper, out=out)


def cholesky_inverse(L: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return (L L^T)^-1, or (R^T R)^-1, the inverse of a matrix from its factor: torch.cholesky_inverse.

    Args:
        L: (*batch, n, n), what ``cholesky`` returns.
        upper: L is an upper factor R.
        out: Receives the result.

    Returns:
        The inverse, (*batch, n, n), symmetric.

    Raises:
        torch.linalg.LinAlgError: A factor has a zero on its diagonal.

    Gradient:
        That of ``lapgrad.potri``: zero in the triangle of L that is not read. Saves L.

    Memory:
        forward 1, backward 1

    Cost:
        forward 2 n^3/3, backward 4 n^3/3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.cholesky_inverse(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  1.0000]])
    """
    if is_served(L) and is_square(L) and not (out is not None and records_gradient(L)):
        try:
            B = _potri.potri(L, lower=not upper)
        except _exceptions.SingularMatrixError:
            return torch.cholesky_inverse(L, upper, out=out)
        if out is None or write_to_out(B, out):
            return B if out is None else out
    return torch.cholesky_inverse(L, upper, out=out)


def inv(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return A^-1, the inverse of a square matrix, as ``torch.linalg.inv`` does.

    Args:
        A: (*batch, n, n).
        out: Receives the result.

    Returns:
        The inverse, (*batch, n, n).

    Raises:
        torch.linalg.LinAlgError: A matrix is singular.

    Gradient:
        That of ``lapgrad.inverse``. Saves the inverse.

    Memory:
        forward 1, backward 2

    Cost:
        forward 2 n^3, backward 4 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.inv(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2500]])
    """
    if not is_served(A) or not is_square(A) or (out is not None and records_gradient(A)):
        return _torch_lu.inv(A) if out is None else _run_with_out("inv", out, A)
    try:
        B = _inverse.inverse(A)
    except (_exceptions.SingularMatrixError, _exceptions.NonFiniteError):
        _refuse_singular("linalg.inv", A)
        B = _torch_lu.inv(A)
    if out is None:
        return B
    return out if write_to_out(B, out) else _run_with_out("inv", out, A)


def solve(A: Tensor, B: Tensor, *, left: bool = True, out: Tensor | None = None) -> Tensor:
    """Return X with A X = B, or X A = B, for a square A, as ``torch.linalg.solve`` does.

    Args:
        A: (*batch, n, n).
        B: (*batch, n, m), or a vector (n,), or vectors (*batch, n) with the leading dimensions of A.
        left: Solve A X = B, else X A = B.
        out: Receives the result.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast).

    Raises:
        torch.linalg.LinAlgError: A matrix is singular.

    Gradient:
        That of ``lapgrad.gesv``. Saves A, its factors, and X.

    Memory:
        forward 2, backward 2

    Cost:
        forward 2/3 n^3 + 2 n^2 m, backward 4 n^2 m flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.solve(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0]))
        tensor([1.0000, 0.5000])
    """
    if out is not None:
        return _run_with_out("solve", out, A, B, left=left)
    if not isinstance(A, Tensor) or not isinstance(B, Tensor) or not is_served(A) or not is_square(A):
        return _by_torch("solve")(A, B, left=left)
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and A.shape[:-1] == B.shape)
    right = B.unsqueeze(-1) if is_vector else B if left else B.mT
    if not is_served(A, right) or (is_vector and not left) or right.shape[-2] != A.shape[-1]:
        return _torch_lu.solve(A, B) if left and _lu.is_unsafe(A) else _by_torch("solve")(A, B, left=left)
    try:
        X = _gesv.gesv(A, right, transpose=not left)
    except (_exceptions.SingularMatrixError, _exceptions.NonFiniteError):
        _refuse_singular("torch.linalg.solve", A)
        X = _torch_lu.solve(A if left else A.mT, right)
    return X.squeeze(-1) if is_vector else X if left else X.mT


def det(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return det A, the determinant of a square matrix: d = det A, as ``torch.linalg.det`` does.

    Args:
        A: (*batch, n, n).
        out: Receives the result.

    Returns:
        The determinant, (*batch).

    Raises:
        RuntimeError: torch's, for matrices that are not square.

    Gradient:
        That of ``lapgrad.det``, exact at singular matrices, too. Saves A and its factors.

    Memory:
        forward 1, backward 1

    Cost:
        forward 2/3 n^3, backward 4/3 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.det(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).round()
        tensor(3.)
    """
    if not is_served(A) or not is_square(A) or (out is not None and records_gradient(A)):
        return _torch_lu.det(A) if out is None else _run_with_out("det", out, A)
    try:
        d = _det.det(A)
    except _exceptions.NonFiniteError:
        d = _torch_lu.det(A)
    if out is None:
        return d
    return out if write_to_out(d, out) else _run_with_out("det", out, A)


def slogdet(A: Tensor, *, out: tuple[Tensor, Tensor] | None = None) -> Any:
    """Return the named tuple (sign, logabsdet) of ``torch.linalg.slogdet``: det A = sign exp(logabsdet).

    Args:
        A: (*batch, n, n).
        out: Receives the results.

    Returns:
        Both (*batch); 0 and minus infinity for a singular matrix.

    Raises:
        RuntimeError: torch's, for matrices that are not square.

    Gradient:
        That of ``lapgrad.slogdet``. Saves A and its factors.

    Memory:
        forward 1, backward 1

    Cost:
        forward 2/3 n^3, backward 4/3 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.slogdet(torch.tensor([[2.0, 0.0], [0.0, -2.0]])).sign
        tensor(-1.)
    """
    if not is_served(A) or not is_square(A) or (out is not None and records_gradient(A)):
        if out is not None:
            return _run_with_out("slogdet", out, A)
        return make_named_tuple("slogdet", _torch_lu.slogdet(A), None)
    values: tuple[Tensor, ...]
    try:
        values = tuple(_slogdet.slogdet(A))
    except _exceptions.NonFiniteError:
        values = tuple(_torch_lu.slogdet(A))
    if out is None or write_to_out(values, out):
        return make_named_tuple("slogdet", values, out)
    return _run_with_out("slogdet", out, A)


def logdet(A: Tensor) -> Tensor:
    """Return log det A as ``torch.logdet`` does: l = log(det A), NaN where the determinant is negative.

    Args:
        A: (*batch, n, n).

    Returns:
        (*batch); minus infinity for a singular matrix.

    Raises:
        RuntimeError: torch's, for matrices that are not square.

    Gradient:
        That of ``lapgrad.slogdet``. Saves A and its factors.

    Memory:
        forward 1, backward 1

    Cost:
        forward 2/3 n^3, backward 4/3 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.logdet(torch.eye(3))
        tensor(0.)
    """
    if not is_served(A) or not is_square(A):
        return _torch_lu.logdet(A)
    sign, logabsdet = slogdet(A)
    return torch.where(sign == -1.0, math.nan, logabsdet)


def _refuse_singular(name: str, A: Tensor) -> None:
    """Raise torch's error, with the number of the item, if a matrix is singular."""
    if _torch_private.skips_dispatcher((A,)):
        info = _lu.compute_lu_factor_ex(A.detach())[2]
        _torch_private.check_status(info, name, A.dim() == 2)


def _by_torch(name: str) -> Any:
    return getattr(torch.linalg, name)


def _run_with_out(name: str, out: Any, *operands: Tensor, **options: Any) -> Any:
    """torch's own function with ``out=``; a batch that it could get wrong is computed safely and copied."""
    if isinstance(operands[0], Tensor) and _lu.is_unsafe(operands[0]) and not records_gradient(*operands):
        functions: dict[str, Any] = {"inv": inv, "solve": solve, "det": det, "slogdet": slogdet}
        values = functions[name](*operands, **options)
        if write_to_out(values, out):
            return out
    return _by_torch(name)(*operands, **options, out=out)
