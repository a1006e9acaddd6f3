"""LQ factorisation of a large wide matrix by Cholesky factorisations of A Aᵀ.

Householder's panels leave a GPU idle. Cholesky's way is all products: with A Aᵀ = L1 L1ᵀ, Q1 = L1⁻¹ A has
orthonormal rows up to eps cond(A)², and the same once more makes that eps: Q2 = L2⁻¹ Q1, L = L1 L2
(CholeskyQR2: Yamamoto et al. 2015). Where cond(A) is too large for that, rounds with A Aᵀ + s I before it
bring it down (shifted CholeskyQR: Fukaya et al. 2020). float32 is done in float64, whose products are no
slower on the devices this is for; there two rounds do for every condition that float32 can hold, and one does
for conditions up to ten thousand: if Q1 Q1ᵀ is the identity to float32's precision, Q1 is what was asked for.

Whether a round went well is seen from the one after it: Q1 Q1ᵀ may differ from the identity by less than 1/2
in norm, which is read back to the host. When it did not go well, the next way is taken, the last one is
Householder's. The diagonal of L is positive, whichever way was gone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _sizes
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.runtime import device as _device

#: Fukaya et al.: the shift, in units of (m n + m (m + 1)) eps |A|². One such round divides the condition by
#: 1e4 or more, two bring 1e15 down to where the others begin.
_SHIFT = 11.0
_SHIFTED_ROUNDS = 2

#: Of Q Qᵀ from the identity, with which the next round is good.
_LARGEST_DISTANCE = 0.5


def by_cholesky(
    A: Tensor, place: Tensor | None, ill_conditioned: bool = False
) -> tuple[Tensor, Tensor] | None:
    """(L, Q) of one wide matrix, in float64; None when its condition is beyond both variants.

    Q takes the place given, if that is of float64. ``ill_conditioned`` goes the second way at once.
    """
    in_place = place is not None and place.dtype == torch.float64
    Q = place if in_place and place is not None else A.new_empty(A.shape, dtype=torch.float64)
    if not ill_conditioned:
        L = _rounds(Q, A, shifted=0)
        if L is not None:
            return L, Q
    L = _rounds(Q, A, shifted=_SHIFTED_ROUNDS)
    return None if L is None else (L, Q)


def _rounds(Q: Tensor, A: Tensor, shifted: int) -> Tensor | None:
    """Q := the orthogonal factor of A, after that many shifted rounds and two others. Returns L, or None."""
    m, n = A.shape
    one_may_do = A.dtype == torch.float32 and shifted == 0
    Q.copy_(A)
    notes = _Notes(Q)
    L = None
    for number in range(shifted + 2):
        last = number == shifted + 1
        R = _gram(Q)
        if last:
            notes.take_distance_from_identity(R)
            if one_may_do and notes.distance() <= torch.finfo(torch.float32).eps:
                return L
        if number < shifted:
            # The Frobenius norm of Q Qᵀ, from its upper triangle, is at least |Q|², and less than the trace.
            square = math.sqrt(2.0) * torch.linalg.vector_norm(R)
            diagonal = R.diagonal()
            diagonal += _SHIFT * (m * n + m * (m + 1)) * torch.finfo(Q.dtype).eps * square
        # What is lost to the condition of an inverted block, of float64, shows in float64 only.
        _divide(Q, R, notes.code(number), refine=not last and A.dtype == torch.float64)
        L = R.mT if L is None else _product(L, R.mT)
    return L if notes.distance() < _LARGEST_DISTANCE else None


class _Notes:
    """What a device writes down about rounds: LAPACK's codes, and how far Q Qᵀ is from the identity."""

    def __init__(self, like: Tensor) -> None:
        self._codes_in_numbers = (_SHIFTED_ROUNDS + 3) // 2
        self._numbers = torch.zeros(self._codes_in_numbers + 1, dtype=torch.float64, device=like.device)

    def code(self, number: int) -> int:
        """Where the code of a round is written, an int32."""
        return self._numbers.data_ptr() + 4 * number

    def take_distance_from_identity(self, gram: Tensor) -> None:
        """In the Frobenius norm, an upper bound: of the upper triangle, with zeros below."""
        diagonal = gram.diagonal()
        diagonal -= 1.0
        torch.linalg.vector_norm(gram, out=self._numbers[-1])
        diagonal += 1.0

    def distance(self) -> float:
        """The host waits for it. Infinite where a factorisation failed."""
        read = self._numbers.cpu()
        if read[: self._codes_in_numbers].view(torch.int32).any():
            return math.inf
        distance = math.sqrt(2.0) * float(read[-1])
        return math.inf if math.isnan(distance) else distance


def _gram(Q: Tensor) -> Tensor:
    """The upper triangle of Q Qᵀ, zeros below."""
    R = Q.new_zeros(Q.shape[0], Q.shape[0])
    _device.syrk(R, Q, lower=False)
    return R


def _divide(Q: Tensor, R: Tensor, code: int, refine: bool) -> None:
    """R := the factor of its upper triangle, Rᵀ R, and Q := R⁻ᵀ Q. At ``code`` LAPACK leaves its own.

    Not refined in the last round: there R is near the identity, and its inverse as good as a substitution.
    """
    _cholesky.factorise_upper(R, code)
    size = _sizes.ORTHOGONALISE_BLOCK if refine else _sizes.SOLVE_BLOCK
    _device.solve(Q, R.mT, "l", size, refine=refine)


def _product(first: Tensor, second: Tensor) -> Tensor:
    """The product of two lower triangles: with exact zeros above, it has them too."""
    product = first.new_empty(first.shape)
    _device.gemm(product, first, second)
    return product
