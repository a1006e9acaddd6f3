"""The bound of a sparse Gaussian process with its gradient, in two passes over chunks of the data.

With v the noise variance and the sums W, b of ``_inducing``, M = I + W / v and a = M^-1 b / v, the value is

    s = 1/2v (|Y|^2 - tr(a^T b)) + k/2 (n log(2 pi v) + log det M + (tr K_ff - tr W) / v)

and its gradients for the sums are gW = 1/2v (k M^-1 + a a^T - k I), gb = -a / v. Through B_c = Lu^-1 K_c they
give

    gK_c  = G K_c + g Y_c^T,   G = Lu^-T (k M^-1 + a a^T - k I) Lu^-1 / v,   g = -Lu^-T a / v
    gY_c  = Y_c / v + K_c^T g
    gK_uu = 1/2 Lu^-T (k M + k M^-1 + a a^T - 2 k I) Lu^-1 = v/2 G + k/2v Lu^-T W Lu^-1

(the gradient of Lu is -Lu^-T times the symmetric matrix in the last line, so that the reverse of the Cholesky
factorisation is a solve). What reaches the kernel's parameters goes through the kernel's own autograd, per
chunk.

With little noise and a K_uu that is nearly singular, entries of G are as large as 1 / (jitter v), and
rounding errors of G K_c larger than what is left of it in the gradient of the parameters. If so
(``_imprecision``, ``_sparse_questions.IMPRECISE``), each chunk is solved for instead,

    gK_c = Lu^-T (S B_c - a Y_c^T) / v,   B_c = Lu^-1 K_c,   S = k M^-1 + a a^T - k I

for 4 n U^2 flops in place of 2 n U^2: errors of B_c are those of a K_c changed in its last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import statistics as _inducing
from lapgrad.fused._sgp.bound import LOG_2_PI
from lapgrad.fused._sgp.deferred_checks import Guesses, Looks, sums_not_factorised
from lapgrad.fused._sgp.inverse_factor import Inverse, Substitution
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.statistics import ARITHMETIC, Statistics


class Inputs(NamedTuple):
    """The tensors of the criterion."""

    Z: Tensor
    X: Tensor
    Y: Tensor
    noise_var: Tensor
    parameters: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Sequence[Tensor]) -> Inputs:
        Z, X, Y, noise_var, *parameters = values
        return cls(Z, X, Y, noise_var, tuple(parameters))


class Needs(NamedTuple):
    """Which of the tensors need a gradient."""

    Z: bool
    X: bool
    Y: bool
    noise_var: bool
    parameters: tuple[bool, ...]

    @classmethod
    def of(cls, values: Sequence[bool]) -> Needs:
        Z, X, Y, noise_var, *parameters = values
        return cls(Z, X, Y, noise_var, tuple(parameters))

    @property
    def kernel(self) -> bool:
        """Whether something that the kernel matrices depend on does."""
        return self.Z or self.X or any(self.parameters)

    @property
    def any(self) -> bool:
        return self.kernel or self.Y or self.noise_var


class Gradients(NamedTuple):
    """Gradients of ``Inputs``, in their dtype; None where none was asked for."""

    Z: Tensor | None
    X: Tensor | None
    Y: Tensor | None
    noise_var: Tensor | None
    parameters: tuple[Tensor | None, ...]


class _Core(NamedTuple):
    """What the U x U matrices give; see the formulas above.

    Attributes:
        noise_var: (), the derivative by the noise variance.
        Kuu: (U, U), the gradient of K_uu.
        chunks: The gradient of K_c and Y_c.
    """

    noise_var: Tensor
    Kuu: Tensor
    chunks: _Product | _Solved


class _Product(NamedTuple):
    """gK_c = G K_c + g Y_c^T."""

    G: Tensor
    g: Tensor

    def of_matrix(self, K: Tensor, Y: Tensor, room: Tensor) -> Tensor:
        """gK_c, in the memory of ``room``."""
        return torch.mm(self.G, K, out=room).addmm_(self.g, Y.mT)

    def of_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, K.mT, self.g)


class _Solved(NamedTuple):
    """gK_c = Lu^-T (S B_c + s Y_c^T), B_c = Lu^-1 K_c, with S as above over v, and s = -a / v."""

    Lu: Tensor
    S: Tensor
    s: Tensor

    def of_matrix(self, K: Tensor, Y: Tensor, room: Tensor) -> Tensor:
        """gK_c, in the memory of ``room``; B_c takes as much again."""
        gB = torch.mm(self.S, self._solved(K), out=room).addmm_(self.s, Y.mT)
        lookup("trsm", gB)(gB, self.Lu, gB, True, True, False)
        return gB

    def of_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, self._solved(K).mT, self.s)

    def _solved(self, K: Tensor) -> Tensor:
        B = torch.empty_like(K)
        lookup("trsm", K)(B, self.Lu, K, True, False, False)
        return B


class _Leaves:
    """What the kernel matrices depend on beside the data, in float64, and the sums of its gradients."""

    def __init__(self, tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.originals, self.needs = tensors, needs
        self.tensors = [tensor.detach().to(ARITHMETIC) for tensor in tensors]
        # A tensor that is converted is a copy, else a view: the caller's own is never marked.
        for tensor, need in zip(self.tensors, needs, strict=True):
            tensor.requires_grad_(need)
        self.wanted = [tensor for tensor, need in zip(self.tensors, needs, strict=True) if need]
        self.sums = [torch.zeros_like(tensor) for tensor in self.wanted]

    def add(
        self, results: Sequence[Tensor], cotangents: Sequence[Tensor], further: Sequence[Tensor] = ()
    ) -> list[Tensor | None]:
        """Adds the gradients of a part of the criterion, and returns those of the ``further`` tensors."""
        pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        sources = [*self.wanted, *further]
        if not pairs or not sources:
            return [None] * len(further)
        outputs, weights = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, sources, weights, allow_unused=True)
        for total, gradient in zip(self.sums, found, strict=False):
            if gradient is not None:
                total += gradient
        return list(found[len(self.sums) :])

    def forget(self) -> None:
        """Starts the sums anew."""
        for total in self.sums:
            total.zero_()

    def gradients(self) -> list[Tensor | None]:
        """One per tensor that needs one, in its dtype."""
        found = iter(self.sums)
        return [
            next(found).to(tensor.dtype) if need else None
            for tensor, need in zip(self.originals, self.needs, strict=True)
        ]


def evaluate(
    operator: str, kernel: KernelFunction, inputs: Inputs, needs: Needs, jitter: float, width: int
) -> tuple[Tensor, Gradients]:
    """The value and the gradients that are needed. ``operator`` is the name in messages."""
    leaves = _Leaves((inputs.Z, *inputs.parameters), (needs.Z, *needs.parameters))
    kernel = KernelFunction(kernel.matrix, kernel.diagonal, tuple(leaves.tensors[1:]))
    problem = _Problem(operator, kernel, leaves, inputs, needs, jitter, width)
    return _kernel_function.with_parameters(kernel, leaves.tensors[0], lambda: _guessed_or_looked(problem))


def _guessed_or_looked(problem: _Problem) -> tuple[Tensor, Gradients]:
    operator, kernel, leaves, inputs, _, jitter, _ = problem
    X, Z = inputs.X.detach(), leaves.tensors[0]
    near, holds = _kernel_function.for_points(kernel, Z, X)
    if not _guesses(X):
        with near:
            return _evaluated(problem, Looks(operator, jitter))
    guesses = Guesses(operator, jitter, Z, holds)
    with near, without_waiting():
        result = _evaluated(problem, guesses)
    if guesses.leave_open() or guesses.were_right():
        return result
    del result
    leaves.forget()
    return _evaluated(problem, Looks(operator, jitter))


def _guesses(X: Tensor) -> bool:
    """Whether a look at X is so slow that guessing, and being wrong sometimes, is faster."""
    return not X.is_cpu


class _Problem(NamedTuple):
    """What is to be evaluated."""

    operator: str
    kernel: KernelFunction
    leaves: _Leaves
    inputs: Inputs
    needs: Needs
    jitter: float
    width: int


def _evaluated(problem: _Problem, questions: Looks | Guesses) -> tuple[Tensor, Gradients]:
    operator, kernel, leaves, inputs, needs, jitter, width = problem
    dtype, X, Y = inputs.Z.dtype, inputs.X.detach(), inputs.Y.detach()
    v = inputs.noise_var.detach().to(ARITHMETIC)
    Z, *parameters = leaves.tensors
    statistics = _inducing.gather(
        operator,
        kernel,
        Z,
        X,
        Y,
        jitter,
        width,
        record=bool(leaves.wanted),
        info=questions.info_of_factor,
        # Without a gradient it is not asked whether products are precise.
        regular=questions.products_are_precise and needs.any,
    )
    Lm, a, value = _factor_and_value(problem, questions, statistics, v)
    if not needs.any:
        return value.to(dtype), Gradients(None, None, None, None, (None,) * len(parameters))
    with without_waiting():  # all factors are known to be regular now
        core = _core(statistics, Lm, a, v, jitter, Y, questions)
    last, room = statistics.last, statistics.room
    del statistics, Lm  # of three U x U matrices one is not needed any more
    # Forces of the variances and of the matrices on a point nearly cancel: their sum is that of float64.
    gX = torch.zeros_like(X, dtype=ARITHMETIC) if needs.X else None
    gY = torch.empty_like(Y) if needs.Y else None
    if needs.kernel or needs.Y:
        _stream_back(kernel, leaves, core, (X, Y, v), (gX, gY), width, (last, room))
    gKuu, gv = core.Kuu, core.noise_var
    del core, last, room
    if leaves.wanted:
        with torch.enable_grad():
            Kuu = kernel.matrix(Z, Z, *parameters)
        leaves.add([Kuu], [gKuu])
    gZ, *of_parameters = leaves.gradients()
    gX = None if gX is None else gX.to(dtype)
    return value.to(dtype), Gradients(
        gZ, gX, gY, gv.to(dtype) if needs.noise_var else None, tuple(of_parameters)
    )


def _factor_and_value(
    problem: _Problem, questions: Looks | Guesses, statistics: Statistics, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The Cholesky factor of M, a, and the criterion."""
    W, b, (n, k) = statistics.W, statistics.b, problem.inputs.Y.shape
    Lm = W / v
    Lm.diagonal().add_(1.0)
    failure = lookup("potrf", Lm)(Lm, Lm, True, questions.info_of_sums)
    if failure is not None and questions.info_of_sums is None:
        raise sums_not_factorised(problem.operator, failure[1])
    a = torch.empty_like(b)
    with without_waiting():
        lookup("cho_solve", b)(a, Lm, b, True)
    a /= v
    explained, logs = W.diagonal().sum(), Lm.diagonal().log().sum()
    squares = (statistics.squares - (a * b).sum()) / v
    per_output = n * (LOG_2_PI + v.log()) + 2.0 * logs + (statistics.variances - explained) / v
    value = 0.5 * (squares + k * per_output)
    questions.check(value)
    return Lm, a, value


def _core(
    statistics: Statistics,
    Lm: Tensor,
    a: Tensor,
    v: Tensor,
    jitter: float,
    Y: Tensor,
    questions: Looks | Guesses,
) -> _Core:
    """Takes the memory of Lm for G, and that of W for gK_uu. 8/3 U^3 flops."""
    whitening, W, b, squares, variances, *_ = statistics
    U, (n, k) = len(W), Y.shape
    unexplained = variances - W.diagonal().sum()
    inverse = Lm
    lookup("potri", Lm)(inverse, Lm, True)
    # tr(I - M^-1): the directions that the data say something about.
    determined = U - inverse.diagonal().sum()
    by_squares = ((a * b).sum() - squares) / v + a.square().sum()
    gv = 0.5 / v * (by_squares + k * (n - determined - unexplained / v))

    g = whitening.transposed(a).div_(-v)
    inverse.diagonal().sub_(1.0)
    S = inverse.mul_(k).addmm_(a, a.mT)
    lookup("copyltu", W)(W, W, True)
    W.mul_(k / v)
    chunks: _Product | _Solved
    if questions.solves(_imprecision(whitening, g, v, statistics.last.detach(), k)):
        assert isinstance(whitening, Substitution)  # as far as is known beforehand: see products_are_precise
        gKuu = whitening.sandwich(W.add_(S))
        chunks = _Solved(whitening.Lu, S.div_(v), -a / v)
    else:
        gKuu = whitening.sandwich(W).add_(whitening.sandwich(S))
        chunks = _Product(S.div_(v), g)
    gKuu.mul_(0.5)
    if U:  # the jitter is a multiple of the mean diagonal
        gKuu.diagonal().add_(jitter * gKuu.diagonal().mean())
    return _Core(gv, gKuu, chunks)


def _imprecision(whitening: Substitution | Inverse, g: Tensor, v: Tensor, K: Tensor, k: int) -> Tensor:
    """A bound of the rounding errors of k_i^T G k_i, for columns k_i of K: of the derivative of one datum's
    part of the criterion by the logarithm of the kernel's variance.

    G = Lu^-T (k M^-1 - k I) Lu^-1 / v + v g g^T, where M^-1 - I has eigenvalues between -1 and 0, and the
    least pivot stands for the least eigenvalue of K_uu. It is ten to a hundred times what is measured.
    """
    if not K.numel():
        return v.new_zeros(())
    size = k / (v * whitening.least_pivot().square()) + v * g.square().sum()
    return torch.finfo(K.dtype).eps * K.square().sum() / K.shape[1] * size


def _stream_back(
    kernel: KernelFunction,
    leaves: _Leaves,
    core: _Core,
    data: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor | None, Tensor | None],
    width: int,
    at_hand: tuple[Tensor, Tensor],
) -> None:
    """The second pass, from the last chunk, whose K_c is at hand, to the first."""
    (X, Y, v), (gX, gY) = data, gradients
    Z, *parameters = leaves.tensors
    last, room = at_hand
    _variances_back(kernel, leaves, X, gX, 0.5 * Y.shape[-1] / v)
    for rows in reversed(list(_inducing.chunks(len(X), width))):
        inputs, targets = X[rows].to(ARITHMETIC), Y[rows].to(ARITHMETIC)
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            known = rows.stop == len(X) and gX is None
            K = last if known else kernel.matrix(Z, inputs, *parameters)
        values = K.detach()
        if gY is not None:
            gY[rows] = core.chunks.of_targets(values, targets, v)
        if not leaves.wanted and gX is None:
            continue
        gK = core.chunks.of_matrix(values, targets, room[: values.numel()].view(values.shape))
        further = [] if gX is None else [inputs]
        found = leaves.add([K], [gK], further)
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
        last = K = values = gK  # the graph of this chunk goes before that of the next one comes


def _variances_back(
    kernel: KernelFunction, leaves: _Leaves, X: Tensor, gX: Tensor | None, weight: Tensor
) -> None:
    """The gradient of ``weight`` times the sum of the kernel's diagonal over the data."""
    if not leaves.wanted and gX is None:
        return
    for rows in _inducing.chunks(len(X), _inducing.VARIANCES):
        inputs = X[rows].to(ARITHMETIC)
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            variances = kernel.diagonal(inputs, *leaves.tensors[1:])
        found = leaves.add([variances], [weight.expand_as(variances)], [] if gX is None else [inputs])
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
