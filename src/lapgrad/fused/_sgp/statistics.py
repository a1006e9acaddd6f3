"""What a sparse Gaussian process asks of its data, gathered chunk by chunk in matrices of U x U.

K_uu is the kernel matrix of the U inducing inputs, K_c that of inducing inputs and the inputs of chunk c:

    K_uu + jitter I = Lu Lu^T,   B_c = Lu^-1 K_c,   W = sum_c B_c B_c^T,   b = sum_c B_c Y_c

All of it in float64, whatever the dtype of the data: K_uu of smooth kernels has eigenvalues down to the
jitter, and float32 leaves of B_c, and of the gradients that come back through Lu, nothing but noise there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp.inverse_factor import Inverse, Substitution, inverted
from lapgrad.fused._sgp.kernel_function import KernelFunction

#: Of all that is U x U or U x chunk.
ARITHMETIC = torch.float64


class _Sizes(NamedTuple):
    """Where a device is fast.

    Attributes:
        chunk: Entries of K_c, if `chunk` is not given.
        columns: Of K_c, a multiple of this, but for the last.
        inverse: Order of K_uu from which on the inverse of its factor pays.
    """

    chunk: int
    columns: int
    inverse: float


#: 4 MB of K_c stay in the cache between the passes over them.
_ON_CPU = _Sizes(chunk=1 << 19, columns=1, inverse=math.inf)
#: A GPU has memory for 64 MB, and wants few, large products: a launch takes the time of 10^8 flops. An odd
#: number of columns makes them slower by a fifth.
_ON_GPU = _Sizes(chunk=1 << 23, columns=64, inverse=1024)
#: Columns per inducing input, at least: BLAS reads U x U for every chunk, which wants to be worth it.
_LEAST_COLUMNS = 1 / 3
#: Rows of data whose variances are computed at a time.
VARIANCES = 1 << 16


def _sizes(device: torch.device) -> _Sizes:
    return _ON_CPU if device.type == "cpu" else _ON_GPU


def chunks(n: int, width: int) -> Iterator[slice]:
    """The data in pieces of ``width`` rows."""
    return (slice(begin, min(begin + width, n)) for begin in range(0, n, width))


def chunk_width(n: int, inducing: int, chunk: int | None, device: torch.device) -> int:
    """Rows of data per chunk; if nothing was asked for, chunks of about one size."""
    if chunk is not None:
        return max(1, min(chunk, n))
    most = max(1, int(_LEAST_COLUMNS * inducing), _sizes(device).chunk // max(inducing, 1))
    if not n:
        return 1
    columns = _sizes(device).columns
    return min(n, -(-n // -(-n // most) // columns) * columns)


class Statistics(NamedTuple):
    """Sums over the data; see the formulas above.

    Attributes:
        whitening: Lu^-1, of the Cholesky factor of K_uu + jitter.
        W: (U, U), of which the lower triangle counts; the other one holds anything.
        b: (U, k).
        squares: (), the sum of the squares of Y.
        variances: (), the sum of the kernel's diagonal over the data.
        last: K_c of the last chunk, which need not be computed again.
        room: Memory for another matrix of the size of any K_c.
    """

    whitening: Substitution | Inverse
    W: Tensor
    b: Tensor
    squares: Tensor
    variances: Tensor
    last: Tensor
    room: Tensor


def factor(operator: str, Kuu: Tensor, jitter: float, info: Tensor | None = None) -> Tensor:
    """Lu with K_uu + jitter mean(diag K_uu) I = Lu Lu^T, in the memory of K_uu.

    With ``info`` nothing is raised: the status is left there (``potrf_ex``), for ``not_factorised``.
    """
    diagonal = Kuu.diagonal()
    diagonal.add_(jitter * diagonal.mean() if len(Kuu) else 0.0)
    failure = lookup("potrf", Kuu)(Kuu, Kuu, True, info)
    if failure is not None and info is None:
        raise not_factorised(operator, jitter, failure[1])
    return Kuu


def not_factorised(operator: str, jitter: float, code: int) -> _errors.LapgradError:
    if code < 0:
        return _errors.NonFiniteError(
            f"{operator}: K_uu contains NaN or infinity: pivot {-code} is not finite. Check Z and the "
            f"parameters of the kernel.",
            (),
            -code,
        )
    return _errors.NotPositiveDefiniteError(
        f"{operator}: K_uu with a jitter of {jitter:g} times its mean diagonal is not positive definite: its "
        f"leading minor of order {code} is not positive. Use a larger jitter.",
        (),
        code,
    )


def gather(
    operator: str,
    kernel: KernelFunction,
    Z: Tensor,
    X: Tensor,
    Y: Tensor,
    jitter: float,
    width: int,
    *,
    record: bool = False,
    info: Tensor | None = None,
    regular: bool = False,
) -> Statistics:
    """One pass over the data. Z and the parameters are in ``ARITHMETIC`` already, X and Y need not be.

    2 n U^2 flops: n U^2 for the solves, n U^2 for one triangle of the products. Call it without gradients;
    with ``record`` the last K_c alone has a graph. ``info`` as in ``factor``. ``regular``: K_uu is far
    enough from a singular matrix for an inverse.
    """
    U, n, k = len(Z), len(X), Y.shape[-1]
    matrix, diagonal, parameters = kernel
    Kuu = matrix(Z, Z, *parameters)
    Lu = factor(operator, Kuu.clone(memory_format=torch.contiguous_format), jitter, info)
    del Kuu
    W, b = Z.new_zeros(U, U), Z.new_zeros(U, k)
    squares = Z.new_zeros(())
    room = Z.new_empty(U * width)
    with without_waiting():  # a Cholesky factor has no zeros on its diagonal
        inverts = regular and _sizes(Z.device).inverse <= U
        whitening = inverted(Lu) if inverts else Substitution(Lu)
    K = Z.new_empty(U, 0)
    for rows in chunks(n, width):
        inputs, targets = X[rows].to(ARITHMETIC), Y[rows].to(ARITHMETIC)
        del K  # before there is another one
        with torch.set_grad_enabled(record and rows.stop == n):
            K = matrix(Z, inputs, *parameters)
        B = room[: K.numel()].view(K.shape)
        with without_waiting():
            whitening.of(K.detach(), B)
        lookup("syrk_add", W)(W, B)
        b.addmm_(B, targets)
        squares += targets.square().sum()
    variances = Z.new_zeros(())
    for rows in chunks(n, VARIANCES):
        variances += diagonal(X[rows].to(ARITHMETIC), *parameters).sum()
    return Statistics(whitening, W, b, squares, variances, K, room)
