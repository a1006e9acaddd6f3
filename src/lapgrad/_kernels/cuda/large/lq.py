"""LQ factorisation of a large wide matrix by Cholesky factorisations of A Aᵀ.

Panels of Householder reflections leave a GPU idle; Cholesky factorisations consist of products. With
A Aᵀ = L1 L1ᵀ the rows of Q1 = L1⁻¹ A are orthonormal up to eps cond(A)², and a second round makes that eps:
Q2 = L2⁻¹ Q1, L = L1 L2 (CholeskyQR2: Yamamoto et al. 2015). Where cond(A) is too large for that, rounds with
A Aᵀ + s I before it bring it down (shifted CholeskyQR: Fukaya et al. 2020). float32 matrices are factorised
in float64, whose products are no slower on the devices this is for. Two rounds are then enough for every
condition that float32 can hold, and one for conditions up to ten thousand: Q1 is returned if Q1 Q1ᵀ is the
identity to float32's precision.

The round after another one shows whether that has worked: Q1 Q1ᵀ must differ from the identity by less than
1/2 in norm, which is read back to the host. If it does not, shifted rounds are tried, and after them the
caller falls back to Householder reflections. The diagonal of L is positive in every case.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.runtime import device as _device

#: Fukaya et al.: the shift, in units of (m n + m (m + 1)) eps |A|². One such round divides the condition by
#: 1e4 or more; after two, a condition of 1e15 is small enough for rounds without a shift.
_SHIFT = 11.0
_SHIFTED_ROUNDS = 2

#: The distance of Q Qᵀ from the identity below which the next round makes Q orthogonal.
_LARGEST_DISTANCE = 0.5


def factorise_by_cholesky(
    A: Tensor, place: Tensor | None, ill_conditioned: bool = False
) -> tuple[Tensor, Tensor] | None:
    """(L, Q) of one wide matrix, in float64; None when its condition is beyond both variants.

    Q is written to ``place`` if that is given and of float64. ``ill_conditioned`` skips the variant without
    shifted rounds.
    """
    in_place = place is not None and place.dtype == torch.float64
    Q = place if in_place and place is not None else A.new_empty(A.shape, dtype=torch.float64)
    if not ill_conditioned:
        L = _run_rounds(Q, A, shifted=0)
        if L is not None:
            return L, Q
    L = _run_rounds(Q, A, shifted=_SHIFTED_ROUNDS)
    return None if L is None else (L, Q)


def _run_rounds(Q: Tensor, A: Tensor, shifted: int) -> Tensor | None:
    """Q := the orthogonal factor of A, after that many shifted rounds and two others. Returns L, or None."""
    m, n = A.shape
    one_may_do = A.dtype == torch.float32 and shifted == 0
    Q.copy_(A)
    status = _RoundStatus(Q)
    L = None
    for number in range(shifted + 2):
        last = number == shifted + 1
        R = _compute_gram(Q)
        if last:
            status.record_distance(R)
            if one_may_do and status.read_distance() <= torch.finfo(torch.float32).eps:
                return L
        if number < shifted:
            # The Frobenius norm of Q Qᵀ, from its upper triangle, is at least |Q|², and less than the trace.
            square = math.sqrt(2.0) * torch.linalg.vector_norm(R)
            diagonal = R.diagonal()
            diagonal += _SHIFT * (m * n + m * (m + 1)) * torch.finfo(Q.dtype).eps * square
        # Inverting a block loses digits of float64: refinement restores them where the result is float64.
        _divide(Q, R, status.get_code_address(number), refine=not last and A.dtype == torch.float64)
        L = R.mT if L is None else _multiply_lower(L, R.mT)
    return L if status.read_distance() < _LARGEST_DISTANCE else None


class _RoundStatus:
    """On the device: LAPACK's code of each round, and the distance of Q Qᵀ from I before the last one."""

    def __init__(self, like: Tensor) -> None:
        self._codes_in_numbers = (_SHIFTED_ROUNDS + 3) // 2
        self._numbers = torch.zeros(self._codes_in_numbers + 1, dtype=torch.float64, device=like.device)

    def get_code_address(self, number: int) -> int:
        """Return the address to which a round writes its code, an int32."""
        return self._numbers.data_ptr() + 4 * number

    def record_distance(self, gram: Tensor) -> None:
        """Record |Q Qᵀ - I| in the Frobenius norm, from the upper triangle of Q Qᵀ with zeros below."""
        diagonal = gram.diagonal()
        diagonal -= 1.0
        torch.linalg.vector_norm(gram, out=self._numbers[-1])
        diagonal += 1.0

    def read_distance(self) -> float:
        """Return the recorded distance, infinite if a factorisation failed. The host waits for the device."""
        read = self._numbers.cpu()
        if read[: self._codes_in_numbers].view(torch.int32).any():
            return math.inf
        distance = math.sqrt(2.0) * float(read[-1])
        return math.inf if math.isnan(distance) else distance


def _compute_gram(Q: Tensor) -> Tensor:
    """Return the upper triangle of Q Qᵀ, zeros below."""
    R = Q.new_zeros(Q.shape[0], Q.shape[0])
    _device.syrk(R, Q, lower=False)
    return R


def _divide(Q: Tensor, R: Tensor, code: int, refine: bool) -> None:
    """R := the factor of its upper triangle, Rᵀ R, and Q := R⁻ᵀ Q. LAPACK's code is written to ``code``.

    ``refine`` is off in the last round: R is near the identity there, and its inverse as good as a solve.
    """
    _cholesky.factorise_upper(R, code)
    size = _thresholds.ORTHOGONALISE_BLOCK if refine else _thresholds.SOLVE_BLOCK
    _device.solve(Q, R.mT, "l", size, refine=refine)


def _multiply_lower(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of two lower triangles: with exact zeros above, it has them too."""
    product = first.new_empty(first.shape)
    _device.gemm(product, first, second)
    return product
