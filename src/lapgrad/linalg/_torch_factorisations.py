"""Factorisations under torch's names, with torch's signatures and conventions (``lapgrad._translation``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private
from lapgrad._translation import cholesky as _cholesky
from lapgrad._translation import eigh as _eigh
from lapgrad._translation import qr as _qr
from lapgrad._translation import svd as _svd
from lapgrad._translation._operands import is_served, is_square, records_gradient
from lapgrad._translation._results import fits_target, write_target


def write_to_out(values: Any, out: Any) -> bool:
    """Write ``values`` to ``out`` as torch does; return False, with nothing written, if they do not fit."""
    targets, results = (x if isinstance(x, tuple | list) else (x,) for x in (out, values))
    if len(targets) != len(results) or not all(map(fits_target, targets, results)):
        return False
    if records_gradient(*targets):
        return False
    for target, value in zip(targets, results, strict=True):
        write_target(target, value)
    return True


def make_named_tuple(function: str, values: Any, out: Any) -> Any:
    """Return ``values``, or ``out`` if given, as the named tuple of ``torch.linalg.<function>``."""
    if out is None:
        return getattr(torch.return_types, f"linalg_{function}")(tuple(values))
    return getattr(torch.return_types, f"linalg_{function}_out")(tuple(out))


def cholesky(A: Tensor, *, upper: bool = False, out: Tensor | None = None) -> Tensor:
    """Return the Cholesky factor L of A = L L^T as ``torch.linalg.cholesky`` does, or R of A = R^T R.

    Args:
        A: (*batch, n, n), symmetric positive definite.
        upper: Return R, the upper factor.
        out: Receives the result.

    Returns:
        The factor, (*batch, n, n), column-major.

    Raises:
        torch.linalg.LinAlgError: A matrix is not positive definite.

    Gradient:
        That of ``lapgrad.potrf``. Saves L.

    Memory:
        forward 1, backward 1

    Cost:
        forward n^3/3, backward 2 n^3/3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        tensor([[2., 0.],
                [1., 2.]])
    """
    if not is_served(A) or not is_square(A) or (out is not None and records_gradient(A)):
        return torch.linalg.cholesky(A, upper=upper, out=out)
    L, info = _cholesky.record_cholesky_ex(A, upper=upper)
    _torch_private.check_status(info, "linalg.cholesky", A.dim() == 2)
    if out is None:
        return L
    return out if write_to_out(L, out) else torch.linalg.cholesky(A, upper=upper, out=out)


def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False, out: tuple[Tensor, Tensor] | None = None
) -> Any:
    """Return the named tuple (L, info) of ``torch.linalg.cholesky_ex``.

    Args:
        A: (*batch, n, n).
        upper: Return R of A = R^T R in place of L.
        check_errors: Raise instead of returning a positive ``info``.
        out: Receives the results.

    Returns:
        L (*batch, n, n), column-major, and info (*batch), int32: 0, or the order of the first leading minor
        that is not positive. L is then a partial factor; on CUDA the identity.

    Raises:
        torch.linalg.LinAlgError: With ``check_errors``: a matrix is not positive definite.

    Gradient:
        That of ``lapgrad.potrf_ex``: zero for a matrix that failed. Saves L and info.

    Memory:
        forward 1, backward 1

    Cost:
        forward n^3/3, backward 2 n^3/3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.cholesky_ex(torch.tensor([[1.0, 3.0], [3.0, 1.0]])).info
        tensor(2, dtype=torch.int32)
    """
    if is_served(A) and is_square(A) and not (out is not None and records_gradient(A)):
        values = _cholesky.record_cholesky_ex(A, upper=upper, check_errors=check_errors)
        if out is None or write_to_out(values, out):
            return make_named_tuple("cholesky_ex", values, out)
    return torch.linalg.cholesky_ex(A, upper=upper, check_errors=check_errors, out=out)


def eigh(A: Tensor, UPLO: str = "L", *, out: tuple[Tensor, Tensor] | None = None) -> Any:
    """Return the named tuple (eigenvalues, eigenvectors) of ``torch.linalg.eigh``: A = V diag(l) V^T.

    Args:
        A: (*batch, n, n), symmetric.
        UPLO: "L": the lower triangle is read, "U": the upper one.
        out: Receives the results.

    Returns:
        Eigenvalues (*batch, n), ascending, and eigenvectors as columns (*batch, n, n), column-major. The
        leading entry of each eigenvector is positive.

    Raises:
        torch.linalg.LinAlgError: The iteration did not converge.

    Gradient:
        That of ``lapgrad.syevd``: symmetric, finite at equal eigenvalues, without a warning. Saves both
        results.

    Memory:
        forward 3, backward 2

    Cost:
        forward about 9 n^3, backward 5 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
        tensor([1., 3.])
    """
    if (
        is_served(A)
        and is_square(A)
        and UPLO in ("L", "U", "l", "u")
        and not (out is not None and records_gradient(A))
    ):
        values = _eigh.record_eigh(A, UPLO)
        if out is None or write_to_out(values, out):
            return make_named_tuple("eigh", values, out)
    return torch.linalg.eigh(A, UPLO, out=out)


def eigvalsh(A: Tensor, UPLO: str = "L", *, out: Tensor | None = None) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, ascending: l of A = V diag(l) V^T.

    Args:
        A: (*batch, n, n), symmetric.
        UPLO: "L": the lower triangle is read, "U": the upper one.
        out: Receives the result.

    Returns:
        (*batch, n).

    Raises:
        torch.linalg.LinAlgError: The iteration did not converge.

    Gradient:
        That of ``lapgrad.syevd``. Saves eigenvalues and eigenvectors, which are computed only if a gradient
        is recorded.

    Memory:
        forward 1, backward 1

    Cost:
        forward 4/3 n^3, or 9 n^3 where a gradient is recorded, backward n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.eigvalsh(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        tensor([1., 3.])
    """
    if is_served(A) and is_square(A) and UPLO in ("L", "U", "l", "u"):
        if records_gradient(A) or not _torch_private.skips_dispatcher((A,)):
            if out is None:
                return _eigh.record_eigh(A, UPLO)[0]
        else:
            values = _eigh.compute_eigh(A, UPLO, False)[0]
            if out is None or write_to_out(values, out):
                return values if out is None else out
    return torch.linalg.eigvalsh(A, UPLO, out=out)


def svd(
    A: Tensor,
    full_matrices: bool = True,
    *,
    driver: str | None = None,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Any:
    """Return the named tuple (U, S, Vh) of ``torch.linalg.svd``: A = U diag(S) Vh.

    Args:
        A: (*batch, m, n).
        full_matrices: Complete U and Vh to square matrices. Where that adds vectors, torch computes it.
        driver: cuSOLVER's algorithm: torch computes it.
        out: Receives the results.

    Returns:
        U (*batch, m, k) and Vh (*batch, k, n), k = min(m, n), and S (*batch, k), descending. The leading
        entry of each column of U is positive.

    Raises:
        torch.linalg.LinAlgError: The iteration did not converge.

    Gradient:
        That of ``lapgrad.gesvd``: finite at equal singular values and at zeros, without a warning. Saves the
        results.

    Memory:
        forward 3, backward 2

    Cost:
        forward about 21 n^3, backward 11 n^3 flops for a square matrix.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.svd(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).S
        tensor([4., 3.])
    """
    if (
        is_served(A)
        and _svd.serves_svd(A, full_matrices, driver=driver)
        and not (out is not None and records_gradient(A))
    ):
        values = _svd.record_svd(A, full_matrices)
        if out is None or write_to_out(values, out):
            return make_named_tuple("svd", values, out)
    return torch.linalg.svd(A, full_matrices, driver=driver, out=out)


def svdvals(A: Tensor, *, driver: str | None = None, out: Tensor | None = None) -> Tensor:
    """Return the singular values of a matrix, descending: S of A = U diag(S) Vh.

    Args:
        A: (*batch, m, n).
        driver: cuSOLVER's algorithm: torch computes it.
        out: Receives the result.

    Returns:
        (*batch, min(m, n)).

    Raises:
        torch.linalg.LinAlgError: The iteration did not converge.

    Gradient:
        That of ``lapgrad.gesvd``. Saves U, S and Vh, which are computed only if a gradient is recorded.

    Memory:
        forward 1, backward 1

    Cost:
        forward 8/3 n^3, or 21 n^3 where a gradient is recorded, backward 2 n^3 flops.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> linalg.svdvals(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor([4., 3.])
    """
    if is_served(A) and driver is None:
        if records_gradient(A) or not _torch_private.skips_dispatcher((A,)):
            if out is None:
                return _svd.record_svd(A)[1]
        else:
            values = _svd.compute_svd(A, full_matrices=False, compute_uv=False)[1]
            if out is None or write_to_out(values, out):
                return values if out is None else out
    return torch.linalg.svdvals(A, driver=driver, out=out)


def qr(A: Tensor, mode: str = "reduced", *, out: tuple[Tensor, Tensor] | None = None) -> Any:
    """Return the named tuple (Q, R) of ``torch.linalg.qr``: A = Q R, R upper triangular.

    Args:
        A: (*batch, m, n).
        mode: "reduced", "complete" or "r". torch computes "complete" for m > n, and "r" with a gradient.
        out: Receives the results.

    Returns:
        Q (*batch, m, k) and R (*batch, k, n), k = min(m, n), column-major; with "r" Q is empty. On the CPU
        the signs are LAPACK's, on CUDA the diagonal of R is positive.

    Raises:
        RuntimeError: torch's, for other modes.

    Gradient:
        That of ``lapgrad.gelqf``, not finite where columns are dependent. Saves Q and R.

    Memory:
        forward 1, backward 2

    Cost:
        forward 4 m n^2, backward 4 m n^2 + n^3/3 flops for m >= n.

    Example:
        >>> import torch
        >>> from lapgrad import linalg
        >>> Q, R = linalg.qr(torch.tensor([[3.0, 1.0], [4.0, 2.0]]))
        >>> (Q @ R).round()
        tensor([[3., 1.],
                [4., 2.]])
    """
    plain = is_served(A) and _torch_private.skips_dispatcher((A,)) and not records_gradient(A)
    if is_served(A) and _qr.serves_qr(A, mode) and (plain or (mode != "r" and out is None)):
        values = _qr.compute_qr(A, mode) if plain else _qr.record_qr(A, mode)
        if out is None or write_to_out(values, out):
            return make_named_tuple("qr", values, out)
    return torch.linalg.qr(A, mode, out=out)
