"""The bound of a sparse Gaussian process with its gradient, in two passes over chunks of the data.

The formulas are those of ``matrices``. What reaches the kernel's parameters goes through the kernel's own
autograd, per chunk; or, if a kernel of the device knows the kernel's formula, through that (``by_formula``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp import kernel_function as _kernel_function
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
from lapgrad.fused._sgp.statistics import ARITHMETIC


def evaluate(
    evaluation: Evaluation,
    operator: str,
    kernel: KernelFunction,
    inputs: Inputs,
    needs: Needs,
    jitter: float,
    width: int,
) -> tuple[Tensor, Gradients]:
    """The value, and the gradients that are needed. ``operator`` is the name in messages."""
    leaves = Leaves((inputs.Z, *inputs.parameters), (needs.Z, *needs.parameters))
    kernel = KernelFunction(kernel.matrix, kernel.diagonal, tuple(leaves.tensors[1:]))
    problem = Problem(operator, kernel, leaves, inputs, needs, jitter, width)
    try:
        return _kernel_function.call_with_parameters(
            kernel, leaves.tensors[0], lambda: _evaluate_and_check(problem, evaluation)
        )
    except _errors.LapgradError:
        # On a GPU nobody has looked at it yet, and everything else follows from it.
        check_noise_is_positive(operator, inputs.noise_var)
        raise


def _evaluate_and_check(problem: Problem, evaluation: Evaluation) -> tuple[Tensor, Gradients]:
    """Evaluate with deferred checks on a GPU, and once more if an assumption turns out to be wrong."""
    operator, kernel, leaves, inputs, needs, jitter, width = problem
    X, Z = inputs.X.detach(), leaves.tensors[0]
    formulas = _kernel_function.find_formulas(kernel, Z, X, needs_inputs=needs.X)
    assumption = None
    fast_problem = problem
    if formulas is None:
        prepared, assumption = _kernel_function.prepare_points(kernel, Z, X)
        fast_problem = Problem(operator, prepared, leaves, inputs, needs, jitter, width)
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
    operator, kernel, leaves, inputs, needs, jitter, width = problem
    dtype, X, Y = inputs.Z.dtype, inputs.X.detach(), inputs.Y.detach()
    v = inputs.noise_var.detach().to(ARITHMETIC)
    Z, *parameters = leaves.tensors
    statistics = _statistics.gather(
        operator,
        kernel,
        Z,
        X,
        Y,
        jitter,
        width,
        record=bool(leaves.wanted),
        info=checks.factor_info,
        # The precision of products is checked only if there is a gradient to compute.
        may_invert=checks.are_products_precise and needs.any,
    )
    factors, value = factor_and_value(problem, checks, statistics, v)
    if not needs.any:
        return value.to(dtype), Gradients(None, None, None, None, (None,) * len(parameters))
    with without_waiting():  # all factors are known to be regular now
        gradients = differentiate_matrices(statistics, factors, v, jitter, Y, checks)
    last, workspace = statistics.last, statistics.workspace
    del statistics, factors  # frees one of three U x U matrices
    # Summed in float64: the contributions of the kernel's diagonal and of its matrices nearly cancel.
    gX = torch.zeros_like(X, dtype=ARITHMETIC) if needs.X else None
    gY = torch.empty_like(Y) if needs.Y else None
    if needs.kernel or needs.Y:
        _stream_back(kernel, leaves, gradients.chunks, (X, Y, v), (gX, gY), width, (last, workspace))
    gKuu, gv = gradients.Kuu, gradients.noise_var
    del gradients, last, workspace
    if leaves.wanted:
        with torch.enable_grad():
            Kuu = kernel.matrix(Z, Z, *parameters)
        leaves.add([Kuu], [gKuu])
    gZ, *of_parameters = leaves.convert_sums()
    gX = None if gX is None else gX.to(dtype)
    return value.to(dtype), Gradients(
        gZ, gX, gY, gv.to(dtype) if needs.noise_var else None, tuple(of_parameters)
    )


def _stream_back(
    kernel: KernelFunction,
    leaves: Leaves,
    chunks: ChunkProducts | ChunkSolves,
    data: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor | None, Tensor | None],
    width: int,
    buffers: tuple[Tensor, Tensor],
) -> None:
    """The second pass over the data, from the last chunk to the first.

    ``buffers``: K_c of the last chunk, which the first pass has left, and a workspace of that size.
    """
    (X, Y, v), (gX, gY) = data, gradients
    Z, *parameters = leaves.tensors
    last, workspace = buffers
    _differentiate_variances(kernel, leaves, X, gX, 0.5 * Y.shape[-1] / v)
    for rows in reversed(list(_statistics.split_rows(len(X), width))):
        inputs, targets = X[rows].to(ARITHMETIC), Y[rows].to(ARITHMETIC)
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            known = rows.stop == len(X) and gX is None
            K = last if known else kernel.matrix(Z, inputs, *parameters)
        values = K.detach()
        if gY is not None:
            gY[rows] = chunks.differentiate_targets(values, targets, v)
        if not leaves.wanted and gX is None:
            continue
        gK = chunks.differentiate_matrix(values, targets, workspace[: values.numel()].view(values.shape))
        further = [] if gX is None else [inputs]
        found = leaves.add([K], [gK], further)
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
        last = K = values = gK  # frees the graph of this chunk before the next one is made


def _differentiate_variances(
    kernel: KernelFunction, leaves: Leaves, X: Tensor, gX: Tensor | None, weight: Tensor
) -> None:
    """Adds the gradient of ``weight`` times the sum of the kernel's diagonal over the data."""
    if not leaves.wanted and gX is None:
        return
    for rows in _statistics.split_rows(len(X), _statistics.VARIANCE_ROWS):
        inputs = X[rows].to(ARITHMETIC)
        if gX is not None:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            variances = kernel.diagonal(inputs, *leaves.tensors[1:])
        found = leaves.add([variances], [weight.expand_as(variances)], [] if gX is None else [inputs])
        if gX is not None and found[0] is not None:
            gX[rows] += found[0]
