"""The bound of a sparse Gaussian process from sums over the data, and the gradients of its U x U matrices.

With v the noise variance and the sums W, b of ``statistics``, M = I + W / v and a = M^-1 b / v, the value is

    s = 1/2v (|Y|^2 - tr(a^T b)) + k/2 (n log(2 pi v) + log det M + (tr K_ff - tr W) / v)

and its gradients for the sums are gW = 1/2v (k M^-1 + a a^T - k I), gb = -a / v. Through B_c = Lu^-1 K_c they
give

    gK_c  = G K_c + g Y_c^T,   G = Lu^-T (k M^-1 + a a^T - k I) Lu^-1 / v,   g = -Lu^-T a / v
    gY_c  = Y_c / v + K_c^T g
    gK_uu = 1/2 Lu^-T (k M + k M^-1 + a a^T - 2 k I) Lu^-1 = v/2 G + k/2v Lu^-T W Lu^-1

(the gradient of Lu is -Lu^-T times the symmetric matrix in the last line, so that the reverse of the Cholesky
factorisation is a solve). What reaches the kernel's parameters goes through the kernel, per chunk.

With little noise and a nearly singular K_uu, entries of G are as large as 1 / (jitter v). Most of G K_c then
cancels in the gradient of the parameters, and its rounding errors are larger than what remains. In that case
(``_bound_imprecision`` above ``evaluation.IMPRECISE``) each chunk is solved for instead,

    gK_c = Lu^-T (S B_c - a Y_c^T) / v,   B_c = Lu^-1 K_c,   S = k M^-1 + a a^T - k I

for 4 n U^2 flops in place of 2 n U^2. A solve is backward stable: its B_c belongs to a K_c that differs in
the last digits only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp.bound import LOG_2_PI
from lapgrad.fused._sgp.evaluation import DeferredChecks, ImmediateChecks, explain_sums_failure
from lapgrad.fused._sgp.inverse_factor import Inverse, Substitution
from lapgrad.fused._sgp.problem import Problem
from lapgrad.fused._sgp.statistics import Statistics


class MatrixGradients(NamedTuple):
    """The gradients that need U x U matrices only, and the rule for those of a chunk; formulas above.

    Attributes:
        noise_var: (), the gradient of the noise variance.
        Kuu: (U, U), the gradient of K_uu.
        chunks: Computes the gradients of K_c and Y_c.
    """

    noise_var: Tensor
    Kuu: Tensor
    chunks: ChunkProducts | ChunkSolves


class ChunkProducts(NamedTuple):
    """gK_c = G K_c + g Y_c^T."""

    G: Tensor
    g: Tensor

    def join(self) -> Tensor:
        """[G, g]."""
        return torch.cat([self.G, self.g], 1)

    def differentiate_stacked(self, joined: Tensor, stacked: Tensor, out: Tensor) -> Tensor:
        """gK_c from [K_c; Y_c^T], in the memory of ``out``, which has that size; ``joined`` is [G, g]."""
        return torch.mm(joined, stacked, out=out[: len(joined)])

    def differentiate_matrix(self, K: Tensor, Y: Tensor, out: Tensor) -> Tensor:
        """gK_c, in the memory of ``out``."""
        return torch.mm(self.G, K, out=out).addmm_(self.g, Y.mT)

    def differentiate_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, K.mT, self.g)


class ChunkSolves(NamedTuple):
    """gK_c = Lu^-T (S B_c + s Y_c^T), B_c = Lu^-1 K_c; S is divided by v here, and s = -a / v."""

    Lu: Tensor
    S: Tensor
    s: Tensor

    def join(self) -> Tensor:
        """[S, s]."""
        return torch.cat([self.S, self.s], 1)

    def differentiate_stacked(self, joined: Tensor, stacked: Tensor, out: Tensor) -> Tensor:
        """gK_c from [K_c; Y_c^T], in the memory of ``out``, which already has Y_c^T in its last rows.

        B_c takes the place of Y_c^T's upper neighbour; gB_c takes another buffer.
        """
        U = len(joined)
        lookup("trsm", out)(out[:U], self.Lu, stacked[:U], lower=True, transpose=False, rightside=False)
        gB = torch.mm(joined, out)
        lookup("trsm", gB)(gB, self.Lu, gB, lower=True, transpose=True, rightside=False)
        return gB

    def differentiate_matrix(self, K: Tensor, Y: Tensor, out: Tensor) -> Tensor:
        """gK_c, in the memory of ``out``; B_c takes a second buffer of that size."""
        gB = torch.mm(self.S, self._whiten(K), out=out).addmm_(self.s, Y.mT)
        lookup("trsm", gB)(gB, self.Lu, gB, lower=True, transpose=True, rightside=False)
        return gB

    def differentiate_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, self._whiten(K).mT, self.s)

    def _whiten(self, K: Tensor) -> Tensor:
        """B_c = Lu^-1 K_c."""
        B = torch.empty_like(K)
        lookup("trsm", K)(B, self.Lu, K, lower=True, transpose=False, rightside=False)
        return B


def factor_and_value(
    problem: Problem, checks: ImmediateChecks | DeferredChecks, statistics: Statistics, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The Cholesky factor of M, a, and the criterion."""
    W, b, (n, k) = statistics.W, statistics.b, problem.inputs.Y.shape
    Lm = W / v
    Lm.diagonal().add_(1.0)
    failure = lookup("potrf", Lm)(Lm, Lm, True, checks.sums_info)
    if failure is not None and checks.sums_info is None:
        raise explain_sums_failure(problem.operator, failure[1])
    a = torch.empty_like(b)
    with without_waiting():
        lookup("cho_solve", b)(a, Lm, b, True)
    a /= v
    explained, logs = W.diagonal().sum(), Lm.diagonal().log().sum()
    squares = (statistics.squares - (a * b).sum()) / v
    per_output = n * (LOG_2_PI + v.log()) + 2.0 * logs + (statistics.variances - explained) / v
    value = 0.5 * (squares + k * per_output)
    checks.check_value(value)
    return Lm, a, value


def differentiate_matrices(
    statistics: Statistics,
    Lm: Tensor,
    a: Tensor,
    v: Tensor,
    jitter: float,
    Y: Tensor,
    checks: ImmediateChecks | DeferredChecks,
) -> MatrixGradients:
    """The gradients from U x U matrices, in 8/3 U^3 flops. Overwrites Lm with G, and W with gK_uu."""
    whitening, W, b, squares, variances, *_ = statistics
    U, (n, k) = len(W), Y.shape
    unexplained = variances - W.diagonal().sum()
    inverse = Lm
    lookup("potri", Lm)(inverse, Lm, True)
    # tr(I - M^-1) counts the directions that the data determine.
    determined = U - inverse.diagonal().sum()
    by_squares = ((a * b).sum() - squares) / v + a.square().sum()
    gv = 0.5 / v * (by_squares + k * (n - determined - unexplained / v))

    g = whitening.apply_transposed(a).div_(-v)
    inverse.diagonal().sub_(1.0)
    S = inverse.mul_(k).addmm_(a, a.mT)
    lookup("copyltu", W)(W, W, True)
    W.mul_(k / v)
    chunks: ChunkProducts | ChunkSolves
    if checks.needs_solves(_bound_imprecision(whitening, g, v, statistics.last.detach(), k)):
        assert isinstance(whitening, Substitution)  # see are_products_precise
        gKuu = whitening.sandwich(W.add_(S))
        chunks = ChunkSolves(whitening.Lu, S.div_(v), -a / v)
    else:
        gKuu = whitening.sandwich(W).add_(whitening.sandwich(S))
        chunks = ChunkProducts(S.div_(v), g)
    gKuu.mul_(0.5)
    if U:  # the jitter is a multiple of the mean diagonal
        gKuu.diagonal().add_(jitter * gKuu.diagonal().mean())
    return MatrixGradients(gv, gKuu, chunks)


def _bound_imprecision(whitening: Substitution | Inverse, g: Tensor, v: Tensor, K: Tensor, k: int) -> Tensor:
    """A bound of the rounding error of k_i^T G k_i, averaged over the columns k_i of K.

    k_i^T G k_i is what one observation adds to the derivative by the logarithm of the kernel's variance. With
    G = Lu^-T (k M^-1 - k I) Lu^-1 / v + v g g^T the eigenvalues of M^-1 - I lie between -1 and 0, and the
    smallest pivot of Lu stands in for the root of K_uu's smallest eigenvalue. The bound is ten to a hundred
    times the error that is measured.
    """
    if not K.numel():
        return v.new_zeros(())
    size = k / (v * whitening.find_least_pivot().square()) + v * g.square().sum()
    return torch.finfo(K.dtype).eps * torch.linalg.vector_norm(K).square() / K.shape[1] * size
