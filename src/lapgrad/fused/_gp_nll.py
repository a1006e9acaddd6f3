"""The criterion of an exact Gaussian process and its gradient from the formula of a kernel, in one buffer.

With A = k(F, F) + diag(noise) = L L^T and alpha = A^-1 Y the value is that of ``fused.mvn_nll``, and

    gA = 1/2 (k A^-1 - alpha alpha^T),   gY = alpha,   g noise = diag(gA)

go on to the gradients of features and scalars in one pass over gA. Nothing but the features is needed to
compute k once more, so A, L and gA share one buffer of n^2. The gradient is computed along with the value: on
a GPU everything is launched before the one number is read that says whether A is positive definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused import _kernel_matrix
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.fused._sgp.evaluation import Evaluation

_LOG_2_PI = math.log(2.0 * math.pi)

#: (formula, noise, Y) -> the value, in differentiable operators.
Composite = Callable[[Formula, Tensor, Tensor], Tensor]


class _Problem(NamedTuple):
    """The arguments of the criterion that are no tensors."""

    formula: Formula
    composite: Composite
    evaluation: Evaluation


class _FactorCheck:
    """A deferred check: keeps the status of a factorisation on the device until ``are_passed`` reads it."""

    def __init__(self, info: Tensor) -> None:
        self._info = info

    def are_passed(self) -> bool:
        """Read the status, and return True. Raises if the matrix has no Cholesky factor."""
        code = int(self._info.item())
        if code:
            raise _errors.factorisation_failed("fused.mvn_nll", (), (0, code))
        return True


def compute_gp_nll(
    evaluation: Evaluation, formula: Formula, noise: Tensor, Y: Tensor, composite: Composite
) -> Tensor:
    """-sum_j log N(y_j | 0, K + diag(noise)) of a kernel that ``_kernel_matrix.serves``.

    Args:
        evaluation: Whose ``defer_checks`` may ask for checks not to be read here.
        formula: Gives K (n, n).
        noise: A scalar, or (n,).
        Y: (n, k), n and k at least 1.
        composite: Computes the same in differentiable operators, for derivatives of the gradient.
    """
    problem, tensors = _Problem(formula, composite, evaluation), (noise, Y, *formula.tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        value: Tensor = _Criterion.apply(problem, *tensors)
        return value
    return _evaluate(problem, *tensors, needs_gradient=False)[0]


class _Criterion(torch.autograd.Function):
    """Computes the gradient along with the value: it is no larger than the inputs, and is kept."""

    @staticmethod
    def forward(ctx: Any, problem: _Problem, *tensors: Tensor) -> Tensor:
        value, gradients = _evaluate(problem, *tensors, needs_gradient=True)
        ctx.problem, ctx.gradients = problem, gradients
        ctx.save_for_backward(*tensors)
        return value

    @staticmethod
    def backward(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # create_graph=True: the gradient is to be differentiated again
            return None, *_differentiate_composite(ctx.problem, ctx.saved_tensors, needs, gs)
        return None, *(g * gs if need else None for g, need in zip(ctx.gradients, needs, strict=True))


def _evaluate(
    problem: _Problem, noise: Tensor, Y: Tensor, *tensors: Tensor, needs_gradient: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the value, and the gradients of noise, Y, scalars and features."""
    formula, (n, k) = problem.formula.replace_tensors(tensors), Y.shape
    with torch.no_grad(), without_waiting():
        noise, Y = noise.detach(), Y.detach().contiguous()
        scalars, F = formula.join_scalars(), formula.join_features(n)
        A = _kernel_matrix.fill_matrix(formula.text, scalars, F, noise=noise, lower_only=True)
        info = torch.zeros((), dtype=torch.int32, device=A.device)
        lookup("potrf", A)(A, A, True, info)
        W, value = torch.empty_like(Y), A.new_empty(())
        lookup("trsm", A)(W, A, Y, lower=True, transpose=False, rightside=False)
        lookup("sum_logs_and_squares", A)(value, A, W, 0.5 * n * k * _LOG_2_PI, float(k), 0.5)
        gradients: tuple[Tensor, ...] = ()
        if needs_gradient:
            alpha = torch.empty_like(Y)
            lookup("trsm", A)(alpha, A, W, lower=True, transpose=True, rightside=False)
            lookup("potri_update", A)(A, A, alpha, torch.ones_like(value), True, 0.5 * k, -1.0 / k)
            of_kernel = _kernel_matrix.differentiate_matrix(
                formula.text, scalars, F, None, A, is_symmetric=True
            )
            of_noise = A.diagonal().clone() if noise.dim() else A.diagonal().sum()
            gradients = (of_noise, alpha, *formula.split_gradients(*of_kernel))
    check, deferred = _FactorCheck(info), problem.evaluation.deferred
    if deferred is None:
        check.are_passed()
    else:
        deferred.append(check)
    return value, gradients


def _differentiate_composite(
    problem: _Problem, tensors: tuple[Tensor, ...], needs: tuple[bool, ...], gs: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the composite, recorded for autograd themselves."""
    noise, Y, *rest = tensors
    value = problem.composite(problem.formula.replace_tensors(tuple(rest)), noise, Y)
    wanted = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
    found = iter(torch.autograd.grad(value, wanted, gs, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needs]
