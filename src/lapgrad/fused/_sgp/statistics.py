"""Sums over the data that the bound of a sparse Gaussian process needs, gathered chunk by chunk.

K_uu is the kernel matrix of the U inducing inputs, K_c that of inducing inputs and the inputs of chunk c:

    K_uu + jitter I = Lu Lu^T,   B_c = Lu^-1 K_c,   W = sum_c B_c B_c^T,   b = sum_c B_c Y_c

All of it is computed in float64, whatever the dtype of the data: K_uu of smooth kernels has eigenvalues down
to the jitter, and in those directions float32 would leave nothing but noise in B_c and in the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp.inverse_factor import Inverse, Substitution, invert_factor
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.rows import ARITHMETIC as ARITHMETIC
from lapgrad.fused._sgp.rows import Rows


class _Sizes(NamedTuple):
    """The sizes at which a kind of device is fast.

    Attributes:
        chunk: How many entries K_c has, unless the caller gives the rows of a chunk: for up to ``_MANY``
            inducing inputs, and for very many. In between, K_c shrinks so that products keep their flops.
        columns: The number of columns of every K_c but the last is a multiple of this.
        inverse: From this order of K_uu on, inverting its factor is faster than solving.
    """

    chunk: tuple[int, int]
    columns: int
    inverse: float


#: 4 MB of K_c stay in the cache while several operations read them.
_ON_CPU = _Sizes(chunk=(1 << 19, 1 << 19), columns=1, inverse=math.inf)
#: A launch on a GPU takes the time of 10^8 flops, so a few large products (256 to 64 MB of K_c) are best, if
#: that much memory is free. An odd number of columns makes them slower by a fifth.
_ON_GPU = _Sizes(chunk=(1 << 25, 1 << 23), columns=64, inverse=128)
#: A chunk has at least this many columns per inducing input. Each chunk reads a U x U matrix, and with fewer
#: columns that would take longer than the products.
_LEAST_COLUMNS = 1 / 3
#: The kernel's diagonal is computed for this many rows at a time.
VARIANCE_ROWS = 1 << 16


def _get_sizes(device: torch.device) -> _Sizes:
    return _ON_CPU if device.type == "cpu" else _ON_GPU


def split_rows(n: int, width: int) -> Iterator[slice]:
    """Rows 0 to n in pieces of ``width`` rows; the last one may be smaller."""
    return (slice(begin, min(begin + width, n)) for begin in range(0, n, width))


#: From this many inducing inputs on chunks are smaller.
_MANY = 512
#: The most buffers of the size of a chunk, and the part of the free memory that they may take.
_BUFFERS, _PART_OF_FREE_MEMORY = 3, 0.25


def _choose_entries(n: int, inducing: int, device: torch.device) -> int:
    """Entries of K_c that are fast on a device, or fewer where there is little memory."""
    most, least = _get_sizes(device).chunk
    fast = max(least, int(most * min(1.0, _MANY / max(inducing, 1))))
    if n * inducing <= fast / 4:  # not worth asking
        return fast
    # While a graph is captured the driver is not asked: the warm-up runs have shown what fits.
    is_known = device.type == "cuda" and torch.cuda.is_initialized()
    if not is_known or torch.cuda.is_current_stream_capturing():
        return fast
    needed = _BUFFERS * fast * ARITHMETIC.itemsize / _PART_OF_FREE_MEMORY
    free, _ = torch.cuda.mem_get_info(device)
    if free < needed:  # what torch keeps for later is free, too, but it takes long to ask how much that is
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(fast, int(fast * free / needed))


def choose_chunk_width(n: int, inducing: int, chunk: int | None, device: torch.device) -> int:
    """Rows of data per chunk: ``chunk``, or if that is None as many as suit the device, in equal chunks."""
    if chunk is not None:
        return max(1, min(chunk, n))
    if not n:
        return 1
    most = max(1, int(_LEAST_COLUMNS * inducing), _choose_entries(n, inducing, device) // max(inducing, 1))
    columns = _get_sizes(device).columns
    return min(n, -(-n // -(-n // most) // columns) * columns)


class OtherRows(NamedTuple):
    """What a process knows about the rows of all processes.

    Attributes:
        total: How many rows all processes have together.
        norm: (), the norm of the last chunks K_c of all processes, side by side as one matrix.
        columns: How many columns that matrix has.
    """

    total: int
    norm: Tensor
    columns: int


class Statistics(NamedTuple):
    """Sums over the data; see the formulas above.

    Attributes:
        whitening: Applies Lu^-1, for the Cholesky factor Lu of K_uu + jitter I.
        W: (U, U); only the lower triangle is set.
        b: (U, k).
        squares: (1,) or (k,), whose sum is that of the squares of Y.
        variances: (), the sum of the kernel's diagonal over the data.
        last: K_c of the last chunk, which the second pass begins with.
        workspace: A buffer for one more matrix of the size of any K_c.
        others: The rows of all processes, if the sums are over several; None: this process has all rows.
    """

    whitening: Substitution | Inverse
    W: Tensor
    b: Tensor
    squares: Tensor
    variances: Tensor
    last: Tensor
    workspace: Tensor
    others: OtherRows | None = None

    def count_rows(self, own: int) -> int:
        """How many rows the sums are of, if this process has ``own``."""
        return own if self.others is None else self.others.total

    def measure_columns(self) -> tuple[Tensor, int]:
        """Return the norm and the number of columns of the last K_c, taken over all processes."""
        if self.others is None:
            return torch.linalg.vector_norm(self.last.detach()), self.last.shape[1]
        return self.others.norm, self.others.columns


def factorise_inducing(operator: str, Kuu: Tensor, jitter: float, info: Tensor | None = None) -> Tensor:
    """Lu with K_uu + jitter mean(diag K_uu) I = Lu Lu^T, in the memory of K_uu.

    With ``info`` nothing is raised: the status is written there, as by ``potrf_ex``, and
    ``explain_factor_failure`` turns it into an error.
    """
    diagonal = Kuu.diagonal()
    diagonal.add_(jitter * diagonal.mean() if len(Kuu) else 0.0)
    failure = lookup("potrf", Kuu)(Kuu, Kuu, True, info)
    if failure is not None and info is None:
        raise explain_factor_failure(operator, jitter, failure[1])
    return Kuu


def explain_factor_failure(operator: str, jitter: float, code: int) -> _exceptions.LapgradError:
    """Return the error for K_uu without a Cholesky factor; ``code`` as of ``potrf``."""
    if code < 0:
        return _exceptions.NonFiniteError(
            f"{operator}: K_uu contains NaN or infinity: pivot {-code} is not finite. Check Z and the "
            f"parameters of the kernel.",
            (),
            -code,
        )
    return _exceptions.NotPositiveDefiniteError(
        f"{operator}: K_uu with a jitter of {jitter:g} times its mean diagonal is not positive definite: its "
        f"leading minor of order {code} is not positive. Use a larger jitter.",
        (),
        code,
    )


def choose_whitening(Lu: Tensor, may_invert: bool) -> Substitution | Inverse:
    """Return the faster of products with the inverse of Lu (which is overwritten) and solves with Lu."""
    if not may_invert or len(Lu) < _get_sizes(Lu.device).inverse:
        return Substitution(Lu)
    with without_waiting():  # a Cholesky factor has no zeros on its diagonal
        return invert_factor(Lu)


def gather(
    operator: str,
    kernel: KernelFunction,
    Z: Tensor,
    data: Rows,
    jitter: float,
    width: int,
    *,
    target_parameters: Sequence[Tensor] = (),
    record: bool = False,
    info: Tensor | None = None,
    may_invert: bool = False,
) -> Statistics:
    """Gather the statistics in one pass over the data, in 2 n U^2 flops.

    n U^2 are for the solves and n U^2 for one triangle of the products. Call it under ``torch.no_grad()``.

    Args:
        operator: The name in messages.
        kernel: With parameters in ``ARITHMETIC``.
        Z: (U, d), in ``ARITHMETIC``.
        data: Inputs (n, d) and targets (n, k).
        jitter: In units of the mean of K_uu's diagonal.
        width: Rows of a chunk.
        target_parameters: What the targets depend on, in ``ARITHMETIC``.
        record: Record the last K_c for autograd.
        info: As in ``factorise_inducing``.
        may_invert: K_uu is far enough from singular to invert its factor where that is faster.
    """
    U, n, k = len(Z), data.count, data.outputs
    matrix, diagonal, parameters = kernel
    Kuu = matrix(Z, Z, *parameters)
    Lu = factorise_inducing(operator, Kuu.clone(memory_format=torch.contiguous_format), jitter, info)
    del Kuu
    W, b = Z.new_zeros(U, U), Z.new_zeros(U, k)
    squares, variances = Z.new_zeros(1), Z.new_zeros(())
    workspace = Z.new_empty(U * width)
    whitening = choose_whitening(Lu, may_invert)
    K = Z.new_empty(U, 0)
    for rows in split_rows(n, width):
        inputs, targets = data.read(rows, target_parameters)
        del K  # frees it before the next one is made
        with torch.set_grad_enabled(record and rows.stop == n):
            K = matrix(Z, inputs, *parameters)
        B = workspace[: K.numel()].view(K.shape)
        with without_waiting():
            whitening.apply(K.detach(), B)
        lookup("syrk_add", W)(W, B)
        b.addmm_(B, targets)
        squares += targets.square().sum()
        variances += diagonal(inputs, *parameters).sum()
    return Statistics(whitening, W, b, squares, variances, K, workspace)
