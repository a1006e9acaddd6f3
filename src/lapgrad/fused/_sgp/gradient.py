"""The bound of a sparse Gaussian process with its gradient, in two passes over chunks of the data.

With v the noise variance and the sums W, b of ``statistics``, M = I + W / v and a = M^-1 b / v, the value is

    s = 1/2v (|Y|^2 - tr(a^T b)) + k/2 (n log(2 pi v) + log det M + (tr K_ff - tr W) / v)

and its gradients for the sums are gW = 1/2v (k M^-1 + a a^T - k I), gb = -a / v. Through B_c = Lu^-1 K_c they
give

    gK_c  = G K_c + g Y_c^T,   G = Lu^-T (k M^-1 + a a^T - k I) Lu^-1 / v,   g = -Lu^-T a / v
    gY_c  = Y_c / v + K_c^T g
    gK_uu = 1/2 Lu^-T (k M + k M^-1 + a a^T - 2 k I) Lu^-1 = v/2 G + k/2v Lu^-T W Lu^-1

(the gradient of Lu is -Lu^-T times the symmetric matrix in the last line, so that the reverse of the Cholesky
factorisation is a solve). What reaches the kernel's parameters goes through the kernel's own autograd, per
chunk.

With little noise and a nearly singular K_uu, entries of G are as large as 1 / (jitter v). Most of G K_c then
cancels in the gradient of the parameters, and its rounding errors are larger than what remains. In that case
(``_bound_imprecision`` above ``evaluation.IMPRECISE``) each chunk is solved for instead,

    gK_c = Lu^-T (S B_c - a Y_c^T) / v,   B_c = Lu^-1 K_c,   S = k M^-1 + a a^T - k I

for 4 n U^2 flops in place of 2 n U^2. A solve is backward stable: its B_c belongs to a K_c that differs in
the last digits only.

With a group of processes each of them has some of the chunks. The sums are added up over the processes
between the passes, so that all of them have the same value, M and a. What the second pass gives the
parameters of the kernel is added up at the end; the part of K_uu, which all of them know, is that of the
first process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.distributed.group import Group
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import reduction as _reduction
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.bound import LOG_2_PI
from lapgrad.fused._sgp.evaluation import (
    DeferredChecks,
    Evaluation,
    ImmediateChecks,
    explain_sums_failure,
)
from lapgrad.fused._sgp.inverse_factor import Inverse, Substitution
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.rows import Rows, TensorRows
from lapgrad.fused._sgp.statistics import ARITHMETIC, Statistics


class Inputs(NamedTuple):
    """The tensors of the criterion. X and Y are None where rows are read from elsewhere.

    The parameters are those of the kernel, and after them those that the targets depend on.
    """

    Z: Tensor
    X: Tensor | None
    Y: Tensor | None
    noise_var: Tensor
    parameters: tuple[Tensor, ...]

    @classmethod
    def from_sequence(cls, values: Sequence[Tensor | None]) -> Inputs:
        """From tensors in the order of the attributes, those of the parameters last."""
        Z, X, Y, noise_var, *parameters = values
        assert Z is not None
        assert noise_var is not None
        return cls(Z, X, Y, noise_var, tuple(value for value in parameters if value is not None))


class Needs(NamedTuple):
    """Which of the tensors need a gradient."""

    Z: bool
    X: bool
    Y: bool
    noise_var: bool
    parameters: tuple[bool, ...]

    @classmethod
    def from_sequence(cls, values: Sequence[bool]) -> Needs:
        """From flags in the order of the attributes, those of the parameters last."""
        Z, X, Y, noise_var, *parameters = values
        return cls(Z, X, Y, noise_var, tuple(parameters))

    @property
    def kernel(self) -> bool:
        """Whether Z, X or a parameter of the kernel needs a gradient."""
        return self.Z or self.X or any(self.parameters)

    @property
    def any(self) -> bool:
        """Whether any tensor needs a gradient."""
        return self.kernel or self.Y or self.noise_var


class Gradients(NamedTuple):
    """Gradients of ``Inputs``, in their dtype; None where none is needed."""

    Z: Tensor | None
    X: Tensor | None
    Y: Tensor | None
    noise_var: Tensor | None
    parameters: tuple[Tensor | None, ...]


class _MatrixGradients(NamedTuple):
    """The gradients that need U x U matrices only, and the rule for those of a chunk; formulas above.

    Attributes:
        noise_var: (), the gradient of the noise variance.
        Kuu: (U, U), the gradient of K_uu.
        chunks: Computes the gradients of K_c and Y_c.
    """

    noise_var: Tensor
    Kuu: Tensor
    chunks: _ChunkProducts | _ChunkSolves


class _ChunkProducts(NamedTuple):
    """gK_c = G K_c + g Y_c^T."""

    G: Tensor
    g: Tensor

    def differentiate_matrix(self, K: Tensor, Y: Tensor, out: Tensor) -> Tensor:
        """gK_c, in the memory of ``out``."""
        return torch.mm(self.G, K, out=out).addmm_(self.g, Y.mT)

    def differentiate_targets(self, K: Tensor, Y: Tensor, v: Tensor) -> Tensor:
        """gY_c."""
        return torch.addmm(Y / v, K.mT, self.g)


class _ChunkSolves(NamedTuple):
    """gK_c = Lu^-T (S B_c + s Y_c^T), B_c = Lu^-1 K_c; S is divided by v here, and s = -a / v."""

    Lu: Tensor
    S: Tensor
    s: Tensor

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


class _Leaves:
    """Z and the parameters of the kernel in float64, and the sums of their gradients over the chunks."""

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
        """Adds the vjp of ``results`` to the sums; returns the gradients of the ``further`` tensors."""
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

    def reset_sums(self) -> None:
        """Sets the sums to zero."""
        for total in self.sums:
            total.zero_()

    def convert_sums(self) -> list[Tensor | None]:
        """The sums in the dtypes of the original tensors; None for those that need no gradient."""
        found = iter(self.sums)
        return [
            next(found).to(tensor.dtype) if need else None
            for tensor, need in zip(self.originals, self.needs, strict=True)
        ]


def evaluate(
    evaluation: Evaluation,
    operator: str,
    kernel: KernelFunction,
    inputs: Inputs,
    needs: Needs,
    jitter: float,
    width: int,
    group: Group,
    data: Rows | None = None,
) -> tuple[Tensor, Gradients]:
    """The value, and the gradients that are needed. ``operator`` is the name in messages.

    The rows are those of ``inputs``, or of ``data``.
    """
    if data is None:
        assert inputs.X is not None
        assert inputs.Y is not None
        data = TensorRows(inputs.X.detach(), inputs.Y.detach())
    leaves = _Leaves((inputs.Z, *inputs.parameters), (needs.Z, *needs.parameters))
    own = 1 + len(kernel.parameters)
    kernel = KernelFunction(kernel.matrix, kernel.diagonal, tuple(leaves.tensors[1:own]))
    problem = _Problem(operator, kernel, leaves, inputs, needs, jitter, width, group, data)
    return _kernel_function.call_with_parameters(
        kernel, leaves.tensors[0], lambda: _evaluate_and_check(problem, evaluation)
    )


def _evaluate_and_check(problem: _Problem, evaluation: Evaluation) -> tuple[Tensor, Gradients]:
    """Evaluate with deferred checks on a GPU, and once more if an assumption turns out to be wrong."""
    operator, jitter, data, Z = problem.operator, problem.jitter, problem.data, problem.leaves.tensors[0]
    # All processes of a group have to repeat an evaluation or none, and rows that are read chunk by chunk are
    # not known beforehand: the checks of each chunk are then made at once.
    if problem.group.size > 1 or not isinstance(data, TensorRows):
        return _evaluate_once(problem, ImmediateChecks(operator, jitter))
    prepared, assumption = _kernel_function.prepare_points(problem.kernel, Z, data.X)
    fast_problem = _Problem(operator, prepared, *problem[2:])
    if not _defers_checks(data.X):
        return _evaluate_once(fast_problem, ImmediateChecks(operator, jitter))
    checks = DeferredChecks(operator, jitter, Z, evaluation, assumption)
    with without_waiting():
        result = _evaluate_once(fast_problem, checks)
    if checks.hand_over() or checks.are_passed():
        return result
    del result
    problem.leaves.reset_sums()
    return _evaluate_once(problem, ImmediateChecks(operator, jitter, checks.found_imprecise))


def _defers_checks(X: Tensor) -> bool:
    """Whether reading a number from the device of X is so slow that repeating some evaluations costs less."""
    return not X.is_cpu


class _Problem(NamedTuple):
    """The arguments of one evaluation."""

    operator: str
    kernel: KernelFunction
    leaves: _Leaves
    inputs: Inputs
    needs: Needs
    jitter: float
    width: int
    group: Group
    data: Rows

    @property
    def target_parameters(self) -> list[Tensor]:
        """The tensors that the targets depend on, in float64."""
        return self.leaves.tensors[1 + len(self.kernel.parameters) :]


def _evaluate_once(problem: _Problem, checks: ImmediateChecks | DeferredChecks) -> tuple[Tensor, Gradients]:
    kernel, leaves, data, group = problem.kernel, problem.leaves, problem.data, problem.group
    Z, needs = leaves.tensors[0], problem.needs
    with group.expect_sum(_reduction.count_numbers(len(Z), data.outputs), Z.device) as pending:
        own = _statistics.gather(
            problem.operator,
            kernel,
            Z,
            data,
            problem.jitter,
            problem.width,
            target_parameters=problem.target_parameters,
            record=bool(leaves.wanted),
            info=checks.factor_info,
            # The precision of products is checked only if there is a gradient to compute.
            may_invert=checks.are_products_precise and needs.any,
        )
        sums = _reduction.StatisticsSum(problem.operator, pending, own, group.size == 1)
        del own
    found = 2 + sum(total.numel() for total in leaves.sums)
    with group.expect_sum(found, Z.device) as pending:
        value, of_noise, of_data = _pass_back(problem, checks, sums)
        if group.size > 1:
            # All processes know both, up to rounding. They go on with the numbers of the first one.
            results = [number if group.is_first else torch.zeros_like(number) for number in (value, of_noise)]
            pending.start([*results, *leaves.sums])
            pending.wait()
            value, of_noise = results
    dtype = problem.inputs.Z.dtype
    gX, gY = (None if gradient is None else gradient.to(dtype) for gradient in of_data)
    gZ, *of_parameters = leaves.convert_sums()
    gv = of_noise.to(dtype) if needs.noise_var else None
    return value.to(dtype), Gradients(gZ, gX, gY, gv, tuple(of_parameters))


def _pass_back(
    problem: _Problem, checks: ImmediateChecks | DeferredChecks, sums: _reduction.StatisticsSum
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None]]:
    """The value, the gradient of the noise variance and those of X and Y; those of leaves go to their sums.

    Of the leaves' gradients that is the part of the rows of this process.
    """
    kernel, leaves, inputs, needs = problem.kernel, problem.leaves, problem.inputs, problem.needs
    v, outputs = inputs.noise_var.detach().to(ARITHMETIC), problem.data.outputs
    Z = leaves.tensors[0]
    # Summed in float64: the contributions of the kernel's diagonal and of its matrices nearly cancel.
    gX = torch.zeros_like(inputs.X, dtype=ARITHMETIC) if needs.X and inputs.X is not None else None
    gY = torch.empty_like(inputs.Y) if needs.Y and inputs.Y is not None else None
    # This needs no sums, so it is computed while they are on their way.
    _differentiate_variances(kernel, leaves, problem.data, problem.target_parameters, gX, 0.5 * outputs / v)
    statistics = sums.finish()
    Lm, a, value = _factor_and_value(problem, checks, statistics, v)
    if not needs.any:
        return value, torch.zeros_like(value), (None, None)
    with without_waiting():  # all factors are known to be regular now
        gradients = _differentiate_matrices(statistics, Lm, a, v, problem.jitter, outputs, checks)
    last, workspace = statistics.last, statistics.workspace
    del statistics, Lm, sums  # frees one of three U x U matrices
    if needs.kernel or needs.Y:
        _stream_back(problem, gradients.chunks, v, (gX, gY), (last, workspace))
    gKuu, gv = gradients.Kuu, gradients.noise_var
    del gradients, last, workspace
    if leaves.wanted and problem.group.is_first:
        with torch.enable_grad():
            Kuu = kernel.matrix(Z, Z, *kernel.parameters)
        leaves.add([Kuu], [gKuu])
    return value, gv, (gX, gY)


def _factor_and_value(
    problem: _Problem, checks: ImmediateChecks | DeferredChecks, statistics: Statistics, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The Cholesky factor of M, a, and the criterion."""
    W, b, n, k = statistics.W, statistics.b, statistics.total, problem.data.outputs
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


def _differentiate_matrices(
    statistics: Statistics,
    Lm: Tensor,
    a: Tensor,
    v: Tensor,
    jitter: float,
    k: int,
    checks: ImmediateChecks | DeferredChecks,
) -> _MatrixGradients:
    """The gradients from U x U matrices, in 8/3 U^3 flops. Overwrites Lm with G, and W with gK_uu."""
    whitening, W, b, squares, variances, n, *_ = statistics
    U = len(W)
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
    chunks: _ChunkProducts | _ChunkSolves
    if checks.needs_solves(_bound_imprecision(whitening, g, v, statistics.size, k)):
        assert isinstance(whitening, Substitution)  # see are_products_precise
        gKuu = whitening.sandwich(W.add_(S))
        chunks = _ChunkSolves(whitening.Lu, S.div_(v), -a / v)
    else:
        gKuu = whitening.sandwich(W).add_(whitening.sandwich(S))
        chunks = _ChunkProducts(S.div_(v), g)
    gKuu.mul_(0.5)
    if U:  # the jitter is a multiple of the mean diagonal
        gKuu.diagonal().add_(jitter * gKuu.diagonal().mean())
    return _MatrixGradients(gv, gKuu, chunks)


def _bound_imprecision(
    whitening: Substitution | Inverse, g: Tensor, v: Tensor, size: Tensor, k: int
) -> Tensor:
    """A bound of the rounding error of k_i^T G k_i, averaged over columns k_i of kernel matrices.

    k_i^T G k_i is what one observation adds to the derivative by the logarithm of the kernel's variance. With
    G = Lu^-T (k M^-1 - k I) Lu^-1 / v + v g g^T the eigenvalues of M^-1 - I lie between -1 and 0, and the
    smallest pivot of Lu stands in for the root of K_uu's smallest eigenvalue. The bound is ten to a hundred
    times the error that is measured. ``size``: the sum of the squares of the columns, and their number.
    """
    if not len(g):
        return v.new_zeros(())
    weight = k / (v * whitening.find_least_pivot().square()) + v * g.square().sum()
    return torch.finfo(size.dtype).eps * size[0] / size[1].clamp_min(1.0) * weight


def _stream_back(
    problem: _Problem,
    chunks: _ChunkProducts | _ChunkSolves,
    v: Tensor,
    gradients: tuple[Tensor | None, Tensor | None],
    buffers: tuple[Tensor, Tensor],
) -> None:
    """The second pass over the data, from the last chunk to the first.

    ``buffers``: K_c of the last chunk, which the first pass has left, and a workspace of that size.
    """
    kernel, leaves, data, (gX, gY) = problem.kernel, problem.leaves, problem.data, gradients
    Z, parameters = leaves.tensors[0], kernel.parameters
    last, workspace = buffers
    for rows in reversed(list(_statistics.split_rows(data.count, problem.width))):
        with torch.enable_grad():
            inputs, targets = data.read(rows, problem.target_parameters)
            if gX is not None:
                inputs = inputs.detach().requires_grad_()
            known = rows.stop == data.count and gX is None
            K = last if known else kernel.matrix(Z, inputs, *parameters)
        values, Y = K.detach(), targets.detach()
        gT = chunks.differentiate_targets(values, Y, v) if gY is not None or targets.requires_grad else Y
        if gY is not None:
            gY[rows] = gT
        if not leaves.wanted and gX is None:
            continue
        gK = chunks.differentiate_matrix(values, Y, workspace[: values.numel()].view(values.shape))
        further = [] if gX is None else [inputs]
        found = leaves.add([K, targets], [gK, gT], further)
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
        last = K = values = gK  # frees the graph of this chunk before the next one is made


def _differentiate_variances(
    kernel: KernelFunction,
    leaves: _Leaves,
    data: Rows,
    target_parameters: Sequence[Tensor],
    gX: Tensor | None,
    weight: Tensor,
) -> None:
    """Adds the gradient of ``weight`` times the sum of the kernel's diagonal over the data."""
    if not leaves.wanted and gX is None:
        return
    for rows in _statistics.split_rows(data.count, _statistics.VARIANCE_ROWS):
        inputs = data.read(rows, target_parameters)[0]
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            variances = kernel.diagonal(inputs, *kernel.parameters)
        found = leaves.add([variances], [weight.expand_as(variances)], [] if gX is None else [inputs])
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
