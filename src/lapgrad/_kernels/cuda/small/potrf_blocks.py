"""potrf of batches of matrices above order 128: diagonal blocks by ``small/potrf.py``, solves and products.

With the block R11 of the factor known, A = Rᵀ R gives, for the columns J after it,

    R1J = R11⁻ᵀ A1J,  AJJ := AJJ - R1Jᵀ R1J
"""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.small import potrf as _potrf_batch
from lapgrad._kernels.cuda.small import triangular as _triangular


def factorise_upper(A: Tensor, size: int, codes: Tensor) -> None:
    """Overwrite the upper triangles of A (items, n, n) with R, A = Rᵀ R, in blocks of order ``size``.

    ``codes`` (blocks, items) receives the status of each diagonal block, counted from its first row. A block
    that fails becomes the identity.
    """
    n = A.shape[-1]
    for number, start in enumerate(range(0, n, size)):
        stop = min(start + size, n)
        block = A[:, start:stop, start:stop]
        _launch.launch(*_potrf_batch.plan_factorisation(block, block, False, codes[number], None))
        if stop == n:
            return
        beside, rest = A[:, start:stop, stop:], A[:, stop:, stop:]
        _launch.launch(
            *_triangular.plan_application(
                beside, block, beside, lower=False, transpose=True, rightside=False, solve=True, cell=None
            )
        )
        _device.gemm(rest, beside.mT, beside, alpha=-1.0, beta=1.0)
