"""sgp_bound: the bound of a sparse Gaussian process from U x U matrices, on CUDA, in one launch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import sgp_bound as _fallback

_STEM = "sgp_bound"
_THREADS = 256
_SHARED = _THREADS // 32 * 8


@on_its_device
def sgp_bound(
    out: Tensor, W: Tensor, squares: Tensor, Lm: Tensor, c: Tensor, variances: Tensor, v: Tensor, n: int
) -> None:
    if not _serves(W, c):
        _fallback.sgp_bound(out, W, squares, Lm, c, variances, v, n)
        return
    U, k = c.shape
    _launch.launch(
        _STEM, "compute_bound<{T}>", out, (1,), _THREADS, _SHARED, out.data_ptr(),
        W.data_ptr(), sum(W.stride()), squares.data_ptr(), squares.stride(0), Lm.data_ptr(), sum(Lm.stride()),
        c.data_ptr(), variances.data_ptr(), v.data_ptr(), U, k, float(n),
    )  # fmt: skip


@on_its_device
def sgp_bound_vjp(
    out: Tensor,
    bound: Tensor,
    inverse: Tensor,
    a: Tensor,
    g: Tensor,
    pivots: Tensor,
    are_reciprocal: bool,
    norm: Tensor,
    v: Tensor,
    n: int,
    roundings: float,
) -> None:
    if not _serves(inverse, a, g):
        _fallback.sgp_bound_vjp(out, bound, inverse, a, g, pivots, are_reciprocal, norm, v, n, roundings)
        return
    U, k = a.shape
    _launch.launch(
        _STEM, "differentiate_bound<{T}>", out, (1,), _THREADS, _SHARED, out.data_ptr(), bound.data_ptr(),
        inverse.data_ptr(), sum(inverse.stride()), a.data_ptr(), g.data_ptr(),
        pivots.data_ptr(), pivots.stride(0), int(are_reciprocal), norm.data_ptr(), v.data_ptr(),
        U, k, float(n), roundings,
    )  # fmt: skip


def _serves(*matrices: Tensor) -> bool:
    """Whether there is something to add up, and vectors lie without gaps."""
    return all(matrix.numel() for matrix in matrices) and all(rest.is_contiguous() for rest in matrices[1:])
