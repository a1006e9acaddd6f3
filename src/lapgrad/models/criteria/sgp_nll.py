"""sgp_nll: the criterion of sparse Gaussian process regression, from a kernel or from kernel matrices."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.compiler import is_compiling

from lapgrad import _errors, fused
from lapgrad._torch.layout import broadcast_batch, check_matrix, check_same_kind, check_square_matrix
from lapgrad.distributed.group import Group
from lapgrad.fused._sgp.bound import check_noise_variance, compute_bound
from lapgrad.fused._sgp.kernel_function import KernelFunction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def sgp_nll(
    kernel: KernelFunction | nn.Module,
    Z: Tensor,
    X: Tensor,
    Y: Tensor,
    noise_var: Tensor | float,
    *,
    jitter: float = 1e-6,
    chunk: int | None = None,
    group: Group | ProcessGroup | None = None,
) -> Tensor:
    """Bound of a sparse GP: s = -sum_j log N(y_j | 0, Q + v I) + k/2v tr(K_ff - Q), Q = K_fu K_uu^-1 K_uf.

    This is ``lapgrad.fused.sgp_nll``; see there for arguments, gradient, memory and cost. For kernel matrices
    that you already have, use ``sgp_nll_from_matrices``. Calls of this function with five tensors, the
    arguments of the other one, still work, with a ``DeprecationWarning``.

    Example:
        >>> import torch
        >>> from lapgrad.models import sgp_nll
        >>> from lapgrad.models.kernels import RBF
        >>> X = torch.linspace(0, 6, 50)[:, None]
        >>> sgp_nll(RBF(), X[::5], X, torch.sin(X), noise_var=0.1).shape
        torch.Size([])
    """
    first: object = kernel
    if isinstance(first, Tensor):
        if not is_compiling():  # a warning cannot be traced
            warnings.warn(
                "sgp_nll: with kernel matrices as arguments, call sgp_nll_from_matrices.",
                DeprecationWarning,
                stacklevel=2,
            )
        return sgp_nll_from_matrices(first, Z, X, Y, noise_var)
    return fused.sgp_nll(kernel, Z, X, Y, noise_var, jitter=jitter, chunk=chunk, group=group)


def sgp_nll_from_matrices(
    Kuu: Tensor, Kuf: Tensor, kff_diag: Tensor, y: Tensor, noise_var: Tensor | float
) -> Tensor:
    """Bound of a sparse GP: s = -log N(y | 0, Q + v I) + (sum(kff_diag) - tr Q) / 2v, Q = Kuf^T Kuu^-1 Kuf.

    The collapsed bound of Titsias (2009) with v = noise_var, as a function of kernel matrices: an upper bound
    of the negative log likelihood of Gaussian process regression. Leading dimensions broadcast. It has
    derivatives of any order.

    For one large data set ``sgp_nll`` computes the same from a kernel, without a matrix of n columns.

    Args:
        Kuu: (*batch, U, U), the kernel matrix of the inducing inputs, with jitter. Symmetric positive
            definite; only the lower triangle is read.
        Kuf: (*batch, U, n), the kernel matrix of inducing inputs and data.
        kff_diag: (*batch, n), the variances of the data under the prior: the diagonal of their kernel matrix.
        y: (*batch, n), or (*batch, n, k) when it has as many dimensions as Kuf or more: k independent
            outputs, whose terms are added up.
        noise_var: A positive number, or (*batch).

    Returns:
        s, (*batch).

    Raises:
        NotPositiveDefiniteError: Kuu is not positive definite.
        NonFiniteError: A NaN or an infinity was met in Kuu or Kuf.
        OptionError: ``noise_var`` is not positive.
        DTypeError, DeviceError, ShapeError, SizeError: The arguments are not float32 or float64 tensors that
            fit.

    Gradient:
        By the gradients of its operators: potrf, trsm, syrk.

    Memory:
        Kuu^-1/2 Kuf, and its gradient: two matrices of the size of Kuf, and six of the size of Kuu.

    Cost:
        2 n U^2 + 2/3 U^3 flops forward, about twice as many backward.

    Example:
        >>> import torch
        >>> from lapgrad.models import sgp_nll_from_matrices
        >>> K = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> # With all points as inducing inputs the bound is the negative log likelihood.
        >>> sgp_nll_from_matrices(K, K, K.diagonal(), torch.tensor([1.0, -1.0]), noise_var=0.5)
        tensor(3.1845)
    """
    who = "sgp_nll_from_matrices"
    Kuu, Kuf = check_square_matrix(who, "Kuu", Kuu), check_matrix(who, "Kuf", Kuf)
    Y = check_matrix(who, "y", y.unsqueeze(-1) if isinstance(y, Tensor) and y.dim() < Kuf.dim() else y)
    if not isinstance(kff_diag, Tensor):
        raise _errors.wrong_dtype(who, "kff_diag", kff_diag)
    check_same_kind(who, Kuu=Kuu, Kuf=Kuf, kff_diag=kff_diag, y=Y)
    n = Kuf.shape[-1]
    fits = Kuu.shape[-1] == Kuf.shape[-2] and kff_diag.dim() and kff_diag.shape[-1] == n == Y.shape[-2]
    if not fits:
        tensors = {"Kuu": Kuu, "Kuf": Kuf, "kff_diag": kff_diag, "y": y}
        wanted = "Kuu must be U x U, Kuf U x n, kff_diag have n entries, and y n entries or rows"
        raise _errors.shapes_do_not_fit(who, tensors, wanted)
    v = check_noise_variance(who, noise_var, Kuf)
    broadcast_batch(who, Kuu=Kuu, Kuf=Kuf, kff_diag=kff_diag[..., None], y=Y, noise_var=v[..., None, None])
    return compute_bound(who, Kuu, Kuf, kff_diag.sum(-1), Y, v)
