"""The bound of a sparse Gaussian process with its gradient, where a kernel of the device knows the formula.

The features of all points are computed once, with a graph for autograd. Chunks of K are filled from features,
and the gradients of chunks end at features and scalars, without autograd. At the end one backward pass leads
from there to the parameters of the kernel, to Z and to X.

K_c lies above Y_c^T in memory, and so does B_c: one product then gives several terms of ``matrices``,

    [B_c; Y_c^T] [B_c; Y_c^T]^T = [[W_c, b_c], [b_c^T, Y_c^T Y_c]],   gK_c = [G, g] [K_c; Y_c^T]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused import _kernel_matrix
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.evaluation import DeferredChecks, ImmediateChecks
from lapgrad.fused._sgp.kernel_function import PointFormulas
from lapgrad.fused._sgp.matrices import ChunkProducts, ChunkSolves, differentiate_matrices, factor_and_value
from lapgrad.fused._sgp.problem import Gradients, Problem
from lapgrad.fused._sgp.statistics import ARITHMETIC, Statistics


class _Points(NamedTuple):
    """The formula with the features of all points, detached.

    Attributes:
        text: Names the formula.
        scalars: (p,).
        Z: (U, e), features of the inducing inputs.
        X: (n, e), features of the inputs.
    """

    text: str
    scalars: Tensor
    Z: Tensor
    X: Tensor

    def fill(self, rows: slice, out: Tensor) -> None:
        """out (U, m) := K_c of these rows of X."""
        _kernel_matrix.fill_matrix(self.text, self.scalars, self.Z, self.X[rows], out=out)

    def differentiate_rows(self, rows: slice, gK: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of <gK, K_c> for the scalars and the features of Z."""
        return _kernel_matrix.differentiate_matrix(self.text, self.scalars, self.Z, self.X[rows], gK)

    def differentiate_columns(self, rows: slice, gK: Tensor) -> Tensor:
        """The gradient of <gK, K_c> for the features of these rows of X."""
        return _kernel_matrix.differentiate_matrix(self.text, self.scalars, self.X[rows], self.Z, gK.mT)[1]


class _Chunks:
    """Two buffers for a chunk above Y_c^T: of K_c, and of B_c or gK_c."""

    def __init__(self, like: Tensor, inducing: int, outputs: int, width: int) -> None:
        self._shape, self._inducing = (inducing + outputs, width), inducing
        self._first, self._second = (like.new_empty(self._shape[0] * width) for _ in range(2))

    def take(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[K_c; Y_c^T] and [B_c; Y_c^T] for Y_c (m, k), with Y_c^T filled in."""
        rows, m = self._shape[0], len(targets)
        both = [memory[: rows * m].view(rows, m) for memory in (self._first, self._second)]
        for stack in both:
            stack[self._inducing :] = targets.mT
        return both[0], both[1]


def evaluate_by_formula(
    problem: Problem, formulas: PointFormulas, checks: ImmediateChecks | DeferredChecks
) -> tuple[Tensor, Gradients]:
    """The value, and the gradients that are needed."""
    inputs, needs, leaves = problem.inputs, problem.needs, problem.leaves
    dtype, Y, U = inputs.Z.dtype, inputs.Y.detach(), len(inputs.Z)
    n, k = Y.shape
    v = inputs.noise_var.detach().to(ARITHMETIC)
    points = _Points(
        formulas.Z.text,
        formulas.Z.join_scalars(),
        formulas.Z.join_features(U),
        formulas.X.join_features(n),
    )
    chunks = _Chunks(v, U, k, problem.width)
    statistics = _gather(problem, points, formulas.variances, chunks, checks)
    Lm, a, value = factor_and_value(problem, checks, statistics, v)
    if not needs.any:
        return value.to(dtype), Gradients(None, None, None, None, (None,) * len(inputs.parameters))
    with without_waiting():  # all factors are known to be regular now
        gradients = differentiate_matrices(statistics, Lm, a, v, problem.jitter, Y, checks)
    del statistics, Lm
    gY = torch.empty_like(Y) if needs.Y else None
    gX: Tensor | None = None
    if needs.kernel or needs.Y:
        cotangents = _stream_back(problem, points, formulas, gradients.chunks, chunks, v, gY)
        del chunks
        if needs.kernel:
            scalars, of_Z, of_X = cotangents
            of_inducing = _kernel_matrix.differentiate_matrix(
                points.text, points.scalars, points.Z, None, gradients.Kuu, is_symmetric=True
            )
            gX = _pull_back(
                problem, formulas, scalars + of_inducing[0], of_Z + of_inducing[1], of_X, 0.5 * k / v
            )
    gZ, *of_parameters = leaves.convert_sums()
    gv = gradients.noise_var.to(dtype) if needs.noise_var else None
    return value.to(dtype), Gradients(gZ, None if gX is None else gX.to(dtype), gY, gv, tuple(of_parameters))


def _gather(
    problem: Problem,
    points: _Points,
    variances: Tensor,
    chunks: _Chunks,
    checks: ImmediateChecks | DeferredChecks,
) -> Statistics:
    """The statistics of ``statistics.gather``, in one pass over the data."""
    U, Y = len(points.Z), problem.inputs.Y.detach()
    n, k = Y.shape
    Kuu = _kernel_matrix.fill_matrix(points.text, points.scalars, points.Z, lower_only=True)
    Lu = _statistics.factorise_inducing(problem.operator, Kuu, problem.jitter, checks.factor_info)
    whitening = _statistics.choose_whitening(Lu, checks.are_products_precise and problem.needs.any)
    total, K = Lu.new_zeros(U + k, U + k), Lu.new_empty(U, 0)
    for rows in _statistics.split_rows(n, problem.width):
        stacked, whitened = chunks.take(Y[rows].to(ARITHMETIC))
        K = stacked[:U]
        points.fill(rows, K)
        with without_waiting():
            whitening.apply(K, whitened[:U])
        lookup("syrk_add", total)(total, whitened)
    b, squares = total[U:, :U].mT.contiguous(), total[U:, U:].diagonal().sum()
    W = total[:U, :U].contiguous()
    return Statistics(whitening, W, b, squares, variances.detach().sum(), K, K)


def _stream_back(
    problem: Problem,
    points: _Points,
    formulas: PointFormulas,
    rule: ChunkProducts | ChunkSolves,
    chunks: _Chunks,
    v: Tensor,
    gY: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of scalars, features of Z and (None if they are constant) of X, over all chunks.

    From the last chunk, which the first pass has left in its buffer, to the first one.
    """
    Y, U = problem.inputs.Y.detach(), len(points.Z)
    of_scalars, of_Z = torch.zeros_like(points.scalars), torch.zeros_like(points.Z)
    of_X = torch.empty_like(points.X) if any(f.requires_grad for f in formulas.X.features) else None
    joined = rule.join()
    for rows in reversed(list(_statistics.split_rows(len(Y), problem.width))):
        targets = Y[rows].to(ARITHMETIC)
        stacked, other = chunks.take(targets)
        K = stacked[:U]
        if rows.stop < len(Y):
            points.fill(rows, K)
        if gY is not None:
            gY[rows] = rule.differentiate_targets(K, targets, v)
        if not problem.needs.kernel:
            continue
        gK = rule.differentiate_stacked(joined, stacked, other)
        scalars, features = points.differentiate_rows(rows, gK)
        of_scalars += scalars
        of_Z += features
        if of_X is not None:
            of_X[rows] = points.differentiate_columns(rows, gK)
    return of_scalars, of_Z, of_X


def _pull_back(
    problem: Problem,
    formulas: PointFormulas,
    of_scalars: Tensor,
    of_Z: Tensor,
    of_X: Tensor | None,
    of_variances: Tensor,
) -> Tensor | None:
    """Adds the gradients of parameters and Z to the sums of the leaves; returns that of X, if needed."""
    results: list[Tensor] = [*formulas.Z.tensors, formulas.variances]
    cotangents: list[Tensor] = [
        *formulas.Z.split_gradients(of_scalars, of_Z),
        of_variances.expand_as(formulas.variances),
    ]
    if of_X is not None:
        results += formulas.X.features
        cotangents += _split_features(formulas.X.features, of_X)
    further = [formulas.inputs] if problem.needs.X else []
    found = problem.leaves.add(results, cotangents, further)
    return found[0] if found else None


def _split_features(features: Sequence[Tensor], gradients: Tensor) -> tuple[Tensor, ...]:
    return gradients.split([part.shape[-1] for part in features], -1)
