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

#: Rows of a chunk, with those of Y_c^T, and the distance of two rows are multiples of this.
_MULTIPLE = 16


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
        """Return the gradients of <gK, K_c> for the scalars and the features of Z."""
        return _kernel_matrix.differentiate_matrix(self.text, self.scalars, self.Z, self.X[rows], gK)

    def differentiate_columns(self, rows: slice, gK: Tensor) -> Tensor:
        """Return the gradient of <gK, K_c> for the features of these rows of X."""
        return _kernel_matrix.differentiate_matrix(self.text, self.scalars, self.X[rows], self.Z, gK.mT)[1]


def _round_up(count: int) -> int:
    return -(-count // _MULTIPLE) * _MULTIPLE


class _Chunks:
    """Two buffers for a chunk above Y_c^T and some rows of zeros: of K_c, and of B_c or gK_c.

    Products are faster by a fifth if the number of rows, and the distance of two rows, are multiples of
    ``_MULTIPLE``.

    Args:
        Y: (n, k), of any dtype.
        inducing: U.
        width: Rows of data in a chunk.
    """

    def __init__(self, Y: Tensor, inducing: int, width: int) -> None:
        self._Y, self._inducing = Y, inducing
        self.rows = _round_up(inducing + Y.shape[1])
        memory = torch.empty(2, self.rows * _round_up(width), dtype=ARITHMETIC, device=Y.device)
        self._memory = memory.unbind()
        self._columns = [0, 0]

    def take(self, rows: slice, which: int) -> Tensor:
        """[·; Y_c^T; 0] in one of the buffers, for these rows of the data."""
        stacked, last = self.view(rows, which), self._inducing + self._Y.shape[1]
        if self._columns[which] != stacked.shape[1]:  # else the zeros are there
            self._columns[which] = stacked.shape[1]
            if last < self.rows:
                stacked[last:].zero_()
        stacked[self._inducing : last].copy_(self._Y[rows].mT)
        return stacked

    def view(self, rows: slice, which: int) -> Tensor:
        """Return the part of a buffer for these rows of the data, without filling it."""
        m = rows.stop - rows.start
        step = _round_up(m)
        return self._memory[which][: self.rows * step].view(self.rows, step)[:, :m]


def evaluate_by_formula(
    problem: Problem, formulas: PointFormulas, checks: ImmediateChecks | DeferredChecks
) -> tuple[Tensor, Gradients]:
    """Return the value, and the gradients that are needed."""
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
    statistics, chunks = _gather(problem, points, formulas.variances, checks)
    factors, value = factor_and_value(problem, checks, statistics, v)
    if not needs.any:
        return value.to(dtype), Gradients(None, None, None, None, (None,) * len(inputs.parameters))
    with without_waiting():  # all factors are known to be regular now
        gradients = differentiate_matrices(statistics, factors, v, problem, checks)
    del statistics, factors
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
    problem: Problem, points: _Points, variances: Tensor, checks: ImmediateChecks | DeferredChecks
) -> tuple[Statistics, _Chunks]:
    """Return the statistics of ``statistics.gather``, in one pass over the data, and the buffers it used."""
    U, Y = len(points.Z), problem.inputs.Y.detach()
    n, k = Y.shape
    Kuu = _kernel_matrix.fill_matrix(points.text, points.scalars, points.Z, lower_only=True)
    Lu = _statistics.factorise_inducing(problem.operator, Kuu, problem.jitter, checks.factor_info)
    whitening = _statistics.choose_whitening(Lu, checks.are_products_precise and problem.needs.any)
    del Kuu, Lu  # an inverse takes their place
    chunks = _Chunks(Y, U, problem.width)
    total, K = points.Z.new_zeros(chunks.rows, chunks.rows), points.Z.new_empty(U, 0)
    for rows in _statistics.split_rows(n, problem.width):
        stacked, whitened = chunks.take(rows, 0), chunks.take(rows, 1)
        K = stacked[:U]
        points.fill(rows, K)
        with without_waiting():
            whitening.apply(K, whitened[:U])
        lookup("syrk_add", total)(total, whitened)
    # A copy, because torch calls a single column contiguous whatever the distance of its elements.
    b = total[U : U + k, :U].mT.clone(memory_format=torch.contiguous_format)
    squares = total.diagonal()[U : U + k].clone()
    return Statistics(whitening, total[:U, :U], b, squares, variances.detach().sum(), K, K), chunks


def _stream_back(
    problem: Problem,
    points: _Points,
    formulas: PointFormulas,
    rule: ChunkProducts | ChunkSolves,
    chunks: _Chunks,
    v: Tensor,
    gY: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of scalars, features of Z and (None if they are constant) of X, over all chunks.

    Goes from the last chunk, which the first pass has left in its buffer, to the first one.
    """
    Y, U = problem.inputs.Y.detach(), len(points.Z)
    total: tuple[Tensor, Tensor] | None = None
    of_X = torch.empty_like(points.X) if any(f.requires_grad for f in formulas.X.features) else None
    joined = rule.join(chunks.rows)
    for rows in reversed(list(_statistics.split_rows(len(Y), problem.width))):
        is_left = rows.stop == len(Y)
        stacked = chunks.view(rows, 0) if is_left else chunks.take(rows, 0)
        K = stacked[:U]
        if not is_left:
            points.fill(rows, K)
        if gY is not None:
            gY[rows] = rule.differentiate_targets(K, Y[rows].to(ARITHMETIC), v)
        if not problem.needs.kernel:
            continue
        other = chunks.take(rows, 1) if rule.needs_targets and not is_left else chunks.view(rows, 1)
        gK = rule.differentiate_stacked(joined, stacked, other)
        found = points.differentiate_rows(rows, gK)
        total = found if total is None else (total[0] + found[0], total[1] + found[1])
        if of_X is not None:
            of_X[rows] = points.differentiate_columns(rows, gK)
    if total is None:
        total = torch.zeros_like(points.scalars), torch.zeros_like(points.Z)
    return *total, of_X


def _pull_back(
    problem: Problem,
    formulas: PointFormulas,
    of_scalars: Tensor,
    of_Z: Tensor,
    of_X: Tensor | None,
    of_variances: Tensor,
) -> Tensor | None:
    """Add the gradients of parameters and Z to the sums of the leaves; return that of X, if needed."""
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
