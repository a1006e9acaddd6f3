"""sgp_nll: the criterion of sparse Gaussian process regression."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _errors
from lapgrad._torch.layout import broadcast_batch, check_matrix, check_same_kind, check_square_matrix
from lapgrad.fused._sgp.bound import check_noise_variance, compute_bound


def sgp_nll(Kuu: Tensor, Kuf: Tensor, kff_diag: Tensor, y: Tensor, noise_var: Tensor | float) -> Tensor:
    """Bound of a sparse GP: s = -log N(y | 0, Q + v I) + (sum(kff_diag) - tr Q) / 2v, Q = Kuf^T Kuu^-1 Kuf.

    The collapsed bound of Titsias (2009) with v = noise_var, as a function of kernel matrices: an upper bound
    of the negative log likelihood of Gaussian process regression. Leading dimensions broadcast. It has
    derivatives of any order.

    For one large data set ``lapgrad.fused.sgp_nll`` computes the same from a kernel, without a matrix of n
    columns.

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
        That of the operators it is made of: potrf, trsm, syrk.

    Memory:
        Kuu^-1/2 Kuf, and its gradient: two matrices of the size of Kuf, and six of the size of Kuu.

    Cost:
        2 n U^2 + 2/3 U^3 flops forward, about twice as many backward.

    Example:
        >>> import torch
        >>> from lapgrad.models import sgp_nll
        >>> K = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> sgp_nll(K, K, K.diagonal(), torch.tensor([1.0, -1.0]), noise_var=0.5)  # all points are inducing
        tensor(3.1845)
    """
    Kuu, Kuf = check_square_matrix("sgp_nll", "Kuu", Kuu), check_matrix("sgp_nll", "Kuf", Kuf)
    Y = check_matrix("sgp_nll", "y", y.unsqueeze(-1) if isinstance(y, Tensor) and y.dim() < Kuf.dim() else y)
    if not isinstance(kff_diag, Tensor):
        raise _errors.wrong_dtype("sgp_nll", "kff_diag", kff_diag)
    check_same_kind("sgp_nll", Kuu=Kuu, Kuf=Kuf, kff_diag=kff_diag, y=Y)
    n = Kuf.shape[-1]
    fits = Kuu.shape[-1] == Kuf.shape[-2] and kff_diag.dim() and kff_diag.shape[-1] == n == Y.shape[-2]
    if not fits:
        tensors = {"Kuu": Kuu, "Kuf": Kuf, "kff_diag": kff_diag, "y": y}
        wanted = "Kuu must be U x U, Kuf U x n, kff_diag have n entries, and y n entries or rows"
        raise _errors.shapes_do_not_fit("sgp_nll", tensors, wanted)
    v = check_noise_variance("sgp_nll", noise_var, Kuf)
    broadcast_batch(
        "sgp_nll", Kuu=Kuu, Kuf=Kuf, kff_diag=kff_diag[..., None], y=Y, noise_var=v[..., None, None]
    )
    return compute_bound("sgp_nll", Kuu, Kuf, kff_diag.sum(-1), Y, v)
