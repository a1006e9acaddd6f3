"""The bound of a sparse Gaussian process from sums over the data, and the gradients of its U x U matrices.

With v the noise variance and the sums W, b of ``statistics``, M = I + W / v and a = M^-1 b / v, the value is

    s = 1/2v (|Y|^2 - tr(a^T b)) + k/2 (n log(2 pi v) + log det M + (tr K_ff - tr W) / v)

and its gradients for the sums are gW = 1/2v (k M^-1 + a a^T - k I), gb = -a / v. Through B_c = Lu^-1 K_c they
give

    gK_c  = G K_c + g Y_c^T,   G = Lu^-T (k M^-1 + a a^T - k I) Lu^-1 / v,   g = -Lu^-T a / v
    gY_c  = Y_c / v + K_c^T g
    gK_uu = 1/2 Lu^-T (k M + k M^-1 + a a^T - 2 k I) Lu^-1 = v/2 G + k/2v Lu^-T W Lu^-1

(the gradient of Lu is -Lu^-T times the symmetric matrix in the last line, so that the reverse of the Cholesky
factorisation is a solve). The kernel's parameters get their gradient through the kernel, per chunk.

With little noise and a nearly singular K_uu, entries of G are as large as 1 / (jitter v). Most of G K_c then
cancels in the gradient of the parameters, and its rounding errors are larger than what remains. In that case
(``sgp_bound_vjp`` says more than ``evaluation.IMPRECISE``) each chunk is solved for instead,

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
from lapgrad.fused._sgp.evaluation import DeferredChecks, ImmediateChecks, explain_sums_failure
from lapgrad.fused._sgp.inverse_factor import Substitution
from lapgrad.fused._sgp.problem import Problem
from lapgrad.fused._sgp.statistics import Statistics
from lapgrad.ops.gemm import multiply_into


class Factors(NamedTuple):
    """Intermediate results of the criterion that its gradients use.

    Attributes:
        Lm: (U, U), the Cholesky factor of M.
        a: (U, k).
        bound: (3,), the criterion, |Y|^2 - tr(a^T b), and tr K_ff - tr W.
    """

    Lm: Tensor
    a: Tensor
    bound: Tensor


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

    @property
    def needs_targets(self) -> bool:
        """Whether the second buffer of ``differentiate_stacked`` must have Y_c^T in its last rows."""
        return False

    def join(self, columns: int) -> Tensor:
        """Return [G, g, 0] with that many columns."""
        return _join_columns(self.G, self.g, columns)

    def differentiate_stacked(self, joined: Tensor, stacked: Tensor, out: Tensor) -> Tensor:
        """gK_c from [K_c; Y_c^T; 0], in the memory of ``out``; ``joined`` is [G, g, 0]."""
        return multiply_into(out[: len(joined)], joined, stacked)

    def differentiate_matrix(self, K: Tensor, Y: Tensor, out: Tensor) -> Tensor:
        """gK_c, in the memory of ``out``."""
        return multiply_into(out, self.G, K).addmm_(self.g, Y.mT)

    def differentiate_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, K.mT, self.g)


class ChunkSolves(NamedTuple):
    """gK_c = Lu^-T (S B_c + s Y_c^T), B_c = Lu^-1 K_c; S is divided by v here, and s = -a / v."""

    Lu: Tensor
    S: Tensor
    s: Tensor

    @property
    def needs_targets(self) -> bool:
        """Whether the second buffer of ``differentiate_stacked`` must have Y_c^T in its last rows."""
        return True

    def join(self, columns: int) -> Tensor:
        """Return [S, s, 0] with that many columns."""
        return _join_columns(self.S, self.s, columns)

    def differentiate_stacked(self, joined: Tensor, stacked: Tensor, out: Tensor) -> Tensor:
        """gK_c from [K_c; Y_c^T; 0]. ``out`` has the last rows of that, and takes B_c above; gK_c is new."""
        U = len(joined)
        lookup("trsm", out)(out[:U], self.Lu, stacked[:U], lower=True, transpose=False, rightside=False)
        gB = multiply_into(out.new_empty(U, out.shape[1]), joined, out)
        lookup("trsm", gB)(gB, self.Lu, gB, lower=True, transpose=True, rightside=False)
        return gB

    def differentiate_matrix(self, K: Tensor, Y: Tensor, out: Tensor) -> Tensor:
        """gK_c, in the memory of ``out``; B_c takes a second buffer of that size."""
        gB = multiply_into(out, self.S, self._whiten(K)).addmm_(self.s, Y.mT)
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


def _join_columns(G: Tensor, g: Tensor, columns: int) -> Tensor:
    """[G, g, 0]."""
    zeros = G.new_zeros(len(G), columns - G.shape[1] - g.shape[1])
    return torch.cat([G, g, zeros] if zeros.numel() else [G, g], 1)


def factor_and_value(
    problem: Problem, checks: ImmediateChecks | DeferredChecks, statistics: Statistics, v: Tensor
) -> tuple[Factors, Tensor]:
    """Return the criterion, and what its gradients need."""
    W, b, n = statistics.W, statistics.b, statistics.count_rows(problem.data.count)
    Lm = W / v
    Lm.diagonal().add_(1.0)
    failure = lookup("potrf", Lm)(Lm, Lm, True, checks.sums_info)
    if failure is not None and checks.sums_info is None:
        raise explain_sums_failure(problem.operator, failure[1])
    # With c = Lm^-1 b, tr(a^T b) = |c|^2 / v.
    c, a = torch.empty_like(b), torch.empty_like(b)
    with without_waiting():
        lookup("trsm", b)(c, Lm, b, lower=True, transpose=False, rightside=False)
        lookup("trsm", b)(a, Lm, c, lower=True, transpose=True, rightside=False)
    a /= v
    bound = W.new_empty(3)
    lookup("sgp_bound", W)(bound, W, statistics.squares, Lm, c, statistics.variances, v, n)
    value = bound[0]
    checks.check_value(value)
    return Factors(Lm, a, bound), value


def differentiate_matrices(
    statistics: Statistics,
    factors: Factors,
    v: Tensor,
    problem: Problem,
    checks: ImmediateChecks | DeferredChecks,
) -> MatrixGradients:
    """Return the gradients from U x U matrices, in 8/3 U^3 flops. Overwrite Lm with G, and W with gK_uu.

    ``sgp_bound_vjp`` bounds the rounding error of k_i^T G k_i, averaged over the columns k_i of the last K_c:
    the contribution of one observation to the derivative with respect to the logarithm of the kernel's
    variance. With G = Lu^-T (k M^-1 - k I) Lu^-1 / v + v g g^T the eigenvalues of M^-1 - I lie between -1 and
    0, and the smallest pivot of Lu stands in for the root of K_uu's smallest eigenvalue. The bound is ten to
    a hundred times the error that is measured.
    """
    whitening, W = statistics.whitening, statistics.W
    inverse, a, bound = factors
    U, n, k = len(W), statistics.count_rows(problem.data.count), problem.data.outputs
    lookup("potri", inverse)(inverse, inverse, True)
    g = whitening.apply_transposed(a).div_(-v)
    numbers, (norm, columns) = W.new_empty(2), statistics.measure_columns()
    lookup("sgp_bound_vjp", W)(
        numbers,
        bound,
        inverse,
        a,
        g,
        *whitening.get_pivots(),
        norm,
        v,
        n,
        torch.finfo(norm.dtype).eps / max(1, columns),
    )
    gv, imprecision = numbers.unbind()
    S = (inverse if k == 1 else inverse.mul_(k)).addmm_(a, a.mT)
    lookup("copyltu", W)(W, W, True)
    W.mul_(k / v)
    chunks: ChunkProducts | ChunkSolves
    if checks.needs_solves(imprecision):
        assert isinstance(whitening, Substitution)  # see are_products_precise
        gKuu = whitening.sandwich(W.add_(S))
        chunks = ChunkSolves(whitening.Lu, S.div_(v), -a / v)
    else:
        gKuu = whitening.sandwich(W).add_(whitening.sandwich(S))
        chunks = ChunkProducts(S.div_(v), g)
    gKuu.mul_(0.5)
    if U and problem.jitter:  # the jitter is a multiple of the mean diagonal
        diagonal = gKuu.diagonal()
        diagonal.add_(diagonal.mean(), alpha=problem.jitter)
    return MatrixGradients(gv, gKuu, chunks)
