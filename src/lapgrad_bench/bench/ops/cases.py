"""One row per operator: the torch function it is compared with, its inputs, its flop counts.

A multiply-add counts as 2 flops. The formulas count the work of lapgrad's algorithm. The same count is used
for torch's rate, so that the rates of both can be compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import lapgrad as lg
from lapgrad._torch import lu as _torch_lu
from lapgrad_bench.bench.measure.timing import CPU
from lapgrad_bench.bench.ops import in_torch, inputs
from lapgrad_bench.bench.ops.inputs import Generate, Shape


@dataclass(frozen=True)
class Operator:
    """An operator and its peer.

    Attributes:
        name: the operator's name in lapgrad.
        ours, peer: functions of the same inputs with the same result.
        peer_text: the peer as a user of torch writes it.
        inputs: makes the inputs; all of them take a gradient.
        forward, backward: work for one matrix of the batch.
        unit: what the work is counted in: flops, or elements moved for operators without arithmetic.
        tolerance: units of n·eps by which two libraries may differ, relative to the largest entry: both
            round.
        lower: positions of lower triangular inputs: only that triangle of their gradient is compared.
        symmetric: positions of symmetric inputs: the symmetric part of their gradient is compared.
        signs: whether rows of the results may differ in sign, as eigenvectors may, and rows of Q on CUDA.
    """

    name: str
    ours: Callable[..., Tensor | tuple[Tensor, ...]]
    peer: Callable[..., Tensor | tuple[Tensor, ...]]
    peer_text: str
    inputs: Generate
    forward: Callable[[int, int], float]
    backward: Callable[[int, int], float]
    unit: Literal["flop", "element"] = "flop"
    tolerance: float = 50.0
    lower: tuple[int, ...] = ()
    symmetric: tuple[int, ...] = ()
    signs: bool = False


@dataclass(frozen=True)
class Case:
    """An operator at one shape and dtype, on one device."""

    operator: Operator
    shape: Shape
    dtype: torch.dtype
    device: torch.device = CPU

    def count_operations(self, phase: str) -> float:
        """Return the flops (or elements moved) of the whole batch."""
        n, m = self.shape.n, self.shape.m
        forward, backward = self.operator.forward(n, m), self.operator.backward(n, m)
        amounts = {"forward": forward, "backward": backward, "step": forward + backward}
        return self.shape.items * amounts[phase]

    def __str__(self) -> str:
        return f"{self.operator.name} {self.shape} {name_dtype(self.dtype)}"


def name_dtype(dtype: torch.dtype) -> str:
    """Return "float64" for torch.float64."""
    return str(dtype).removeprefix("torch.")


# fmt: off
_ROWS = (
    Operator(
        "potrf", lg.potrf, torch.linalg.cholesky, "torch.linalg.cholesky(A)", inputs.make_symmetric,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3,
    ),
    Operator(
        "potrf_ex", lambda A: lg.potrf_ex(A)[0], lambda A: torch.linalg.cholesky_ex(A)[0],
        "torch.linalg.cholesky_ex(A)", inputs.make_symmetric,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3,
    ),
    Operator(
        "trsm", lg.trsm, functools.partial(torch.linalg.solve_triangular, upper=False),
        "torch.linalg.solve_triangular(L, A, upper=False)", inputs.make_triangle_and_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m, lower=(0,),
    ),
    Operator(
        "trmm", lg.trmm, in_torch.multiply_triangular, "L @ A (batches: L.tril() @ A)",
        inputs.make_triangle_and_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m, lower=(0,),
    ),
    Operator(
        "syrk", lg.syrk, lambda A: A @ A.mT, "A @ A.mT", inputs.make_one_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m,
    ),
    Operator(
        "gemmt", lg.gemmt, lambda A, B: (A @ B).tril(), "(A @ B).tril()", inputs.make_two_factors,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m,
    ),
    Operator(
        "gemm2", lg.gemm2, torch.matmul, "A @ B", inputs.make_two_factors,
        lambda n, m: 2 * n * n * m, lambda n, m: 4 * n * n * m,
    ),
    Operator(
        "gemm", lg.gemm, in_torch.multiply_and_add, "torch.addmm(C, A, B) (batches: C + A @ B)",
        inputs.make_two_factors_and_sum,
        lambda n, m: 2 * n * n * m + n * n, lambda n, m: 4 * n * n * m,
    ),
    Operator(
        "syevd", lg.syevd, in_torch.decompose_symmetric, "torch.linalg.eigh(A)", inputs.make_spaced_spectrum,
        lambda n, m: 9 * n**3, lambda n, m: 5 * n**3, signs=True,
    ),
    Operator(
        "linalg.eigh_fn", lambda A: lg.linalg.eigh_fn(A, "sqrt"), in_torch.take_matrix_root,
        "(V * l.sqrt()) @ V.mT, l, V = torch.linalg.eigh(A)", inputs.make_spaced_spectrum,
        lambda n, m: 10 * n**3, lambda n, m: 6 * n**3,
    ),
    Operator(
        "linalg.pca", lambda X: lg.linalg.pca(X, k=in_torch.COMPONENTS)[:2], in_torch.find_components,
        "torch.linalg.eigh of the covariance, last columns", inputs.make_spaced_rows,
        lambda n, m: min(n, m) ** 2 * max(n, m) + 9 * min(n, m) ** 3,
        lambda n, m: 2 * min(n, m) ** 2 * max(n, m), signs=True,
    ),
    Operator(
        "sumlogdiag", lg.sumlogdiag, in_torch.sum_log_diagonal,
        "A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)", inputs.make_one_triangle,
        lambda n, m: n, lambda n, m: n * n, "element",
    ),
    Operator(
        "extractdiag", lg.extractdiag, lambda A: A.diagonal(dim1=-2, dim2=-1).clone(),
        "A.diagonal(dim1=-2, dim2=-1).clone()", inputs.make_one_square,
        lambda n, m: 2 * n, lambda n, m: n * n, "element",
    ),
    Operator(
        "makediag", lg.makediag, torch.diag_embed, "torch.diag_embed(d)", inputs.make_diagonal,
        lambda n, m: n * n, lambda n, m: 2 * n, "element",
    ),
    Operator(
        "extracttrian", lg.extracttrian, in_torch.pack_triangle, "A[..., rows, columns] (torch.tril_indices)",
        inputs.make_one_square,
        lambda n, m: n * (n + 1), lambda n, m: 1.5 * n * n, "element",
    ),
    Operator(
        "maketrian", lg.maketrian, in_torch.unpack_triangle, "A[..., rows, columns] = v (torch.tril_indices)",
        inputs.make_packed_triangle, lambda n, m: 1.5 * n * n, lambda n, m: n * (n + 1), "element",
    ),
    Operator(
        "copyltu", lg.copyltu, lambda A: A.tril() + A.tril(-1).mT, "A.tril() + A.tril(-1).mT",
        inputs.make_one_square,
        lambda n, m: 1.5 * n * n, lambda n, m: 1.5 * n * n, "element",
    ),

    # Functions of positive definite matrices.
    Operator(
        "pstrf", lambda A: lg.pstrf(A)[0], in_torch.factorise_pivoted,
        "one column after the other: argmax of the diagonal, index_select, addmv",
        inputs.make_falling_pivots,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3, symmetric=(0,),
    ),
    Operator(
        "potri", lg.potri, torch.cholesky_inverse, "torch.cholesky_inverse(L)", inputs.make_one_triangle,
        lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3, lower=(0,),
    ),
    Operator(
        "linalg.cho_solve", lg.linalg.cho_solve, lambda L, B: torch.cholesky_solve(B, L),
        "torch.cholesky_solve(B, L)", inputs.make_triangle_and_matrix,
        lambda n, m: 2 * n * n * m, lambda n, m: 5 * n * n * m, lower=(0,),
    ),
    Operator(
        "linalg.logdet_psd", lg.linalg.logdet_psd, _torch_lu.logdet, "torch.logdet(A)", inputs.make_symmetric,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3, symmetric=(0,),
    ),
    Operator(
        "linalg.solve_psd", lg.linalg.solve_psd, _torch_lu.solve, "torch.linalg.solve(A, B)",
        inputs.make_symmetric_and_matrix,
        lambda n, m: n**3 / 3 + 2 * n * n * m, lambda n, m: 4 * n * n * m, symmetric=(0,),
    ),
    Operator(
        "linalg.inverse_psd", lg.linalg.inverse_psd, _torch_lu.inv, "torch.linalg.inv(A)",
        inputs.make_symmetric,
        lambda n, m: n**3, lambda n, m: 3 * n**3, symmetric=(0,),
    ),
    Operator(
        "fused.mvn_nll", lg.fused.mvn_nll, in_torch.compute_normal_nll,
        "L = cholesky(A); solve_triangular(L, y).square().sum() / 2 + L.diagonal().log().sum() + constant",
        inputs.make_symmetric_and_column,
        lambda n, m: n**3 / 3 + n * n, lambda n, m: 2 * n**3 / 3 + 2 * n * n, symmetric=(0,),
    ),
    # n steps of a model with 4 states and 2 observations.
    Operator(
        "fused.kalman_nll", lg.fused.kalman_nll, in_torch.filter_series,
        "a loop over the steps of the filter",
        inputs.make_series,
        lambda n, m: 500 * n, lambda n, m: 1500 * n, symmetric=(3, 4, 6),
    ),

    # Decompositions: flops of the dense textbook algorithms (Golub and Van Loan), iterations included.
    Operator(
        "gesvd", lg.gesvd, in_torch.decompose_singular_values, "torch.linalg.svd(A, full_matrices=False)",
        inputs.make_separated,
        lambda n, m: 21 * n * n * m, lambda n, m: 8 * n * n * m, signs=True,
        tolerance=500.0,  # for torch.linalg.svd on CUDA, whose Jacobi iteration stops early
    ),

    # Orthogonal factorisations.
    Operator(
        "gelqf", lg.gelqf, in_torch.factorise_lq_by_qr, "torch.linalg.qr(A.mT)", inputs.make_full_rank,
        lambda n, m: 4 * n * n * m, lambda n, m: 4 * n * n * m + n**3 / 3, signs=True,
    ),
    Operator(
        "linalg.lstsq", lg.linalg.lstsq, lambda A, B: torch.linalg.lstsq(A, B).solution,
        "torch.linalg.lstsq(A, B).solution", inputs.make_full_rank_and_column,
        lambda n, m: 4 * n * n * m + (2 * m + n) * n, lambda n, m: (8 * m + 2 * n) * n,
    ),

    # Inverses and determinants.
    Operator(
        "inverse", lg.inverse, _torch_lu.inv, "torch.linalg.inv(A)", inputs.make_one_regular,
        lambda n, m: 2 * n**3, lambda n, m: 4 * n**3,
    ),
    Operator(
        "det", lg.det, _torch_lu.det, "torch.linalg.det(A)", inputs.make_one_regular,
        lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3,
    ),
    Operator(
        "slogdet", lambda A: lg.slogdet(A)[1], lambda A: _torch_lu.slogdet(A)[1],
        "torch.linalg.slogdet(A)", inputs.make_one_regular,
        lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3,
    ),
    Operator(
        "gesv", lg.gesv, _torch_lu.solve, "torch.linalg.solve(A, B)",
        lambda *drawn: (*inputs.make_one_regular(*drawn), *inputs.make_one_matrix(*drawn)),
        lambda n, m: 2 * n**3 / 3 + 2 * n * n * m, lambda n, m: 4 * n * n * m,
    ),

    # Multivariate statistics: n observations of m variables.
    Operator(
        "linalg.cca", lambda X, Y: lg.linalg.cca(X, Y)[0], in_torch.find_canonical_correlations,
        "svdvals(solve_triangular(Ly, solve_triangular(Lx, Cxy).mT)), L the Cholesky factors of covariances",
        inputs.make_observations_of_two, lambda n, m: 4 * n * m * m + 26 * m**3, lambda n,
        m: 8 * n * m * m + 16 * m**3,
    ),
    Operator(
        "linalg.lda", lambda X: lg.linalg.lda(X, labels=in_torch.assign_classes(X))[0],
        in_torch.find_discriminant_ratios,
        "eigvalsh(L^-1 Sb L^-T), L = cholesky(Sw)",
        inputs.make_observations, lambda n, m: n * m * m + m**3, lambda n, m: 2 * n * m * m + 2 * m**3,
    ),
)
# fmt: on

L_OF_GELQF = Operator(
    "gelqf mode=l",
    lambda A: lg.gelqf(A, mode="l"),
    lambda A: torch.linalg.qr(A.mT).R.mT,
    "torch.linalg.qr(A.mT).R",
    inputs.make_full_rank,
    lambda n, m: 2 * n * n * m - 2 * n**3 / 3,
    lambda n, m: 2 * n * n * m + 2 * n**3 / 3,
    signs=True,
)
"""The factor L alone, for the bars. torch computes Q as well: torch.linalg.qr(mode="r") has no gradient."""

OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}
"""All operators with a benchmark, by name. A test checks that every operator of the package is here."""
