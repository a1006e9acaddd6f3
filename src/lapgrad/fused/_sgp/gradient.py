"""The bound of a sparse Gaussian process with its gradient, in two passes over chunks of the data.

The formulas are those of ``matrices``. The gradients of the kernel's parameters are computed by autograd, per
chunk; or by a kernel of the device, if there is one for the kernel's formula (``by_formula``).

With a group of processes each of them has some of the chunks. The sums are added up over the processes
between the passes, so that all of them have the same value, M and a. The gradients of the kernel's parameters
from the second pass are added up at the end; the part of K_uu, which every process knows, is added by the
first process only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.distributed.group import Group
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import reduction as _reduction
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.bound import check_noise_is_positive
from lapgrad.fused._sgp.by_formula import evaluate_by_formula
from lapgrad.fused._sgp.evaluation import DeferredChecks, Evaluation, ImmediateChecks
from lapgrad.fused._sgp.kernel_function import KernelFunction, PointFormulas
from lapgrad.fused._sgp.matrices import (
    ChunkProducts,
    ChunkSolves,
    differentiate_matrices,
    factor_and_value,
)
from lapgrad.fused._sgp.problem import Gradients, Inputs, Leaves, Needs, Problem
from lapgrad.fused._sgp.rows import Rows, TensorRows
from lapgrad.fused._sgp.statistics import ARITHMETIC


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
    """Return the value, and the gradients that are needed. ``operator`` is the name in messages.

    The rows are those of ``inputs``, or of ``data``.
    """
    rows = TensorRows(inputs.X.detach(), inputs.Y.detach()) if data is None else data
    leaves = Leaves((inputs.Z, *inputs.parameters), (needs.Z, *needs.parameters))
    own = 1 + len(kernel.parameters)
    kernel = KernelFunction(kernel.matrix, kernel.diagonal, tuple(leaves.tensors[1:own]))
    problem = Problem(operator, kernel, leaves, inputs, needs, jitter, width, group, rows)
    try:
        return _kernel_function.call_with_parameters(
            kernel, leaves.tensors[0], lambda: _evaluate_and_check(problem, evaluation)
        )
    except _exceptions.LapgradError:
        # On a GPU the noise has not been checked yet. If it is not positive, that is the cause of the error.
        check_noise_is_positive(operator, inputs.noise_var)
        raise


def _evaluate_and_check(problem: Problem, evaluation: Evaluation) -> tuple[Tensor, Gradients]:
    """Evaluate with deferred checks on a GPU, and once more if an assumption turns out to be wrong."""
    operator, kernel, leaves, inputs, needs, jitter, *_ = problem
    X, Z = inputs.X.detach(), leaves.tensors[0]
    # All processes of a group have to repeat an evaluation or none, and rows that are read chunk by chunk are
    # not known beforehand: the checks of each chunk are then made at once.
    if problem.group.size > 1 or not isinstance(problem.data, TensorRows):
        return _evaluate_in_chunks(problem, ImmediateChecks(operator, jitter))
    formulas = _kernel_function.find_formulas(kernel, Z, X, needs_inputs=needs.X)
    assumption = None
    fast_problem = problem
    if formulas is None:
        prepared, assumption = _kernel_function.prepare_points(kernel, Z, X)
        fast_problem = Problem(operator, prepared, *problem[2:])
    if not _defers_checks(X):
        return _evaluate_once(fast_problem, formulas, ImmediateChecks(operator, jitter))
    checks = DeferredChecks(operator, jitter, Z, evaluation, assumption)
    with without_waiting():
        result = _evaluate_once(fast_problem, formulas, checks)
    if checks.hand_over() or checks.are_passed():
        return result
    del result
    leaves.reset_sums()
    if formulas is not None:  # the graph of the first ones has been used
        formulas = _kernel_function.find_formulas(kernel, Z, X, needs_inputs=needs.X)
    return _evaluate_once(problem, formulas, ImmediateChecks(operator, jitter, checks.found_imprecise))


def _defers_checks(X: Tensor) -> bool:
    """Whether reading a number from the device of X is so slow that repeating some evaluations costs less."""
    return not X.is_cpu


def _evaluate_once(
    problem: Problem, formulas: PointFormulas | None, checks: ImmediateChecks | DeferredChecks
) -> tuple[Tensor, Gradients]:
    if formulas is not None:
        return evaluate_by_formula(problem, formulas, checks)
    return _evaluate_in_chunks(problem, checks)


def _evaluate_in_chunks(
    problem: Problem, checks: ImmediateChecks | DeferredChecks
) -> tuple[Tensor, Gradients]:
    """Return the value, and the gradients that are needed, by autograd of the kernel per chunk."""
    leaves, data, group, needs = problem.leaves, problem.data, problem.group, problem.needs
    Z = leaves.tensors[0]
    with group.expect_sum(_reduction.count_numbers(len(Z), data.outputs), Z.device) as pending:
        own = _statistics.gather(
            problem.operator,
            problem.kernel,
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
        sums = _reduction.StatisticsSum(problem.operator, pending, own, data.count, group.size == 1)
        del own
    found = 2 + sum(tensor.numel() for tensor in leaves.wanted)
    with group.expect_sum(found, Z.device) as pending:
        value, of_noise, of_data = _pass_back(problem, checks, sums)
        if group.size > 1:
            # All processes know both, up to rounding. They continue with the numbers of the first one.
            results = [
                number.clone() if group.is_first else torch.zeros_like(number) for number in (value, of_noise)
            ]
            pending.start([*results, *leaves.fill_sums()])
            pending.wait()
            value, of_noise = results
    dtype = problem.inputs.Z.dtype
    gX, gY = (None if gradient is None else gradient.to(dtype) for gradient in of_data)
    gZ, *of_parameters = leaves.convert_sums()
    gv = of_noise.to(dtype) if needs.noise_var else None
    return value.to(dtype), Gradients(gZ, gX, gY, gv, tuple(of_parameters))


def _pass_back(
    problem: Problem, checks: ImmediateChecks | DeferredChecks, sums: _reduction.StatisticsSum
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None]]:
    """Return the value and the gradients of noise variance, X and Y; add those of the leaves to their sums.

    The sums of the leaves get the part of the rows of this process.
    """
    kernel, leaves, inputs, needs = problem.kernel, problem.leaves, problem.inputs, problem.needs
    v, Z = inputs.noise_var.detach().to(ARITHMETIC), leaves.tensors[0]
    # Summed in float64: the contributions of the kernel's diagonal and of its matrices nearly cancel.
    gX = torch.zeros_like(inputs.X, dtype=ARITHMETIC) if needs.X else None
    gY = torch.empty_like(inputs.Y) if needs.Y else None
    # This needs no sums, so it is computed while they are on their way.
    _differentiate_variances(problem, gX, 0.5 * problem.data.outputs / v)
    statistics = sums.finish()
    factors, value = factor_and_value(problem, checks, statistics, v)
    if not needs.any:
        return value, torch.zeros_like(value), (None, None)
    with without_waiting():  # all factors are known to be regular now
        gradients = differentiate_matrices(statistics, factors, v, problem, checks)
    last, workspace = statistics.last, statistics.workspace
    del statistics, factors, sums  # frees one of three U x U matrices
    if needs.kernel or needs.Y:
        _stream_back(problem, gradients.chunks, v, (gX, gY), (last, workspace))
    gKuu, gv = gradients.Kuu, gradients.noise_var
    del gradients, last, workspace
    if leaves.wanted and problem.group.is_first:
        with torch.enable_grad():
            Kuu = kernel.matrix(Z, Z, *kernel.parameters)
        leaves.add([Kuu], [gKuu])
    return value, gv, (gX, gY)


def _stream_back(
    problem: Problem,
    chunks: ChunkProducts | ChunkSolves,
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


def _differentiate_variances(problem: Problem, gX: Tensor | None, weight: Tensor) -> None:
    """Add the gradient of ``weight`` times the sum of the kernel's diagonal over the data."""
    kernel, leaves, data = problem.kernel, problem.leaves, problem.data
    if not leaves.wanted and gX is None:
        return
    for rows in _statistics.split_rows(data.count, _statistics.VARIANCE_ROWS):
        inputs = data.read(rows, problem.target_parameters)[0]
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            variances = kernel.diagonal(inputs, *kernel.parameters)
        found = leaves.add([variances], [weight.expand_as(variances)], [] if gX is None else [inputs])
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
