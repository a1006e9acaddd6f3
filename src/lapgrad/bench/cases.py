"""One row per operator: what it is timed against, on which inputs, and how much work it is.

Flop counts: one multiply-add is 2. The formulas count what lapgrad's algorithm does; the same count divides
torch's time, so that the rates of both can be compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import lapgrad as lg
from lapgrad.bench.timing import CPU


@dataclass(frozen=True)
class Shape:
    """`batch` matrices of n × m. Operators on square matrices take n × n; n is then what counts.

    Example:
        >>> Shape.parse("1000x8x8"), str(Shape.parse("64"))
        (Shape(n=8, m=8, batch=(1000,)), '64')
    """

    n: int
    m: int
    batch: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`64` is one 64 × 64 matrix, `1000x8x8` a batch of 1000 of 8 × 8."""
        try:
            sizes = tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            raise ValueError(f"{text!r} is no shape: 64, 64x32 or 1000x8x8 was wanted")
        if len(sizes) == 1:
            return cls(sizes[0], sizes[0])
        return cls(sizes[-2], sizes[-1], sizes[:-2])

    def __str__(self) -> str:
        if not self.batch and self.n == self.m:
            return str(self.n)
        return "×".join(map(str, (*self.batch, self.n, self.m)))

    @property
    def items(self) -> int:
        """Number of matrices."""
        return math.prod(self.batch)


Inputs = tuple[Tensor, ...]
Generate = Callable[[Shape, torch.dtype, torch.Generator], Inputs]


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

    def work(self, phase: str) -> float:
        """Flops (or elements moved) of the whole batch."""
        n, m = self.shape.n, self.shape.m
        forward, backward = self.operator.forward(n, m), self.operator.backward(n, m)
        amounts = {"forward": forward, "backward": backward, "step": forward + backward}
        return self.shape.items * amounts[phase]

    def __str__(self) -> str:
        return f"{self.operator.name} {self.shape} {dtype_name(self.dtype)}"


def dtype_name(dtype: torch.dtype) -> str:
    """`float64` for torch.float64."""
    return str(dtype).removeprefix("torch.")


# Inputs. Triangles have a diagonal of 1 to 2 and row sums of about 1 beside it, so that L⁻¹ is of the order
# of 1 at every size; symmetric matrices have eigenvalues of 1 to about 5.


def _normal(*sizes: int, shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape.batch, *sizes, dtype=dtype, generator=generator, device=generator.device)


def _symmetric(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    X = _normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    A = (X @ X.mT).div_(shape.n)
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (A,)


def _triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    L = _normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator).div_(shape.n).tril_(-1)
    L.diagonal(dim1=-2, dim2=-1).uniform_(1.0, 2.0, generator=generator)
    return L


def _triangle_and_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    A = _normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return _triangle(shape, dtype, generator), A


def _symmetric_and_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    B = _normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return (*_symmetric(shape, dtype, generator), B)


def _symmetric_and_column(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    y = _normal(shape.n, 1, shape=shape, dtype=dtype, generator=generator)
    return (*_symmetric(shape, dtype, generator), y)


def _one_triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_triangle(shape, dtype, generator),)


def _one_regular(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Well conditioned, also the worst of a batch, with determinants of the order of 1 at every size."""
    X = _normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    X.mul_(0.25 / math.sqrt(shape.n)).diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (X.roll(1, -2),)


def _one_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator),)


def _one_square(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator),)


def _separated(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Singular values one apart: the gradient divides by their differences."""
    k = min(shape.n, shape.m)
    left, right = (
        torch.linalg.qr(_normal(side, k, shape=shape, dtype=torch.float64, generator=generator))[0]
        for side in (shape.n, shape.m)
    )
    return ((left * torch.arange(k, 0, -1, dtype=torch.float64, device=left.device) @ right.mT).to(dtype),)


def _observations(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """n rows and m columns, or 2 m + 8 rows if these are more."""
    rows = max(shape.n, 2 * shape.m + 8)
    return (_normal(rows, shape.m, shape=shape, dtype=dtype, generator=generator),)


def _observations_of_two(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return *_observations(shape, dtype, generator), *_observations(shape, dtype, generator)


def _two_factors(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    A = _normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return A, _normal(shape.m, shape.n, shape=shape, dtype=dtype, generator=generator)


def _two_factors_and_sum(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    C = _normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    return (*_two_factors(shape, dtype, generator), C)


def _diagonal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_normal(shape.n, shape=shape, dtype=dtype, generator=generator),)


def _packed_triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_normal(shape.n * (shape.n + 1) // 2, shape=shape, dtype=dtype, generator=generator),)


def _full_rank(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    A = _normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    A.div_(2.0 * math.sqrt(max(shape.n, shape.m)))
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (A,)


def _full_rank_and_column(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    b = _normal(shape.n, 1, shape=shape, dtype=dtype, generator=generator)
    return (*_full_rank(shape, dtype, generator), b)


def _spaced_spectrum(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Eigenvalues at equal distances between 1 and 2: eigenvectors are well conditioned."""
    Q = torch.linalg.qr(_normal(shape.n, shape.n, shape=shape, dtype=torch.float64, generator=generator)).Q
    spectrum = torch.linspace(1.0, 2.0, shape.n, dtype=torch.float64, device=Q.device)
    A = Q @ (spectrum.unsqueeze(-1) * Q.mT)
    return ((0.5 * (A + A.mT)).to(dtype),)


def _spaced_rows(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """The same for data: centred, their singular values have equal distances."""
    k = min(shape.n - 1, shape.m)
    left, right = (
        _normal(size, k, shape=shape, dtype=torch.float64, generator=generator) for size in (shape.n, shape.m)
    )
    left, right = torch.linalg.qr(left - left.mean(-2, keepdim=True)).Q, torch.linalg.qr(right).Q
    spectrum = torch.linspace(1.0, 2.0, k, dtype=torch.float64, device=left.device)
    return ((left * spectrum @ right.mT).to(dtype),)


# Peers: how a user of torch writes the same thing.


def _triangular_product(L: Tensor, A: Tensor) -> Tensor:
    # One large triangle is multiplied as it is: masking it would only slow torch down. In batches of small
    # matrices the triangle is cut out, as a parametrisation by an unconstrained matrix does.
    return L @ A if L.ndim == 2 else L.tril() @ A


def _sum_log_diagonal(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


@functools.lru_cache(maxsize=8)
def _lower_indices(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.tril_indices(n, n, device=device)
    return rows, columns


def _pack_triangle(A: Tensor) -> Tensor:
    rows, columns = _lower_indices(A.shape[-1], A.device)
    return A[..., rows, columns]


def _unpack_triangle(v: Tensor) -> Tensor:
    n = (math.isqrt(8 * v.shape[-1] + 1) - 1) // 2
    rows, columns = _lower_indices(n, v.device)
    A = v.new_zeros(*v.shape[:-1], n, n)
    A[..., rows, columns] = v
    return A


def _eigenvectors_in_rows(A: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalues, V = torch.linalg.eigh(A)
    return V.mT, eigenvalues


def _matrix_root(A: Tensor) -> Tensor:
    eigenvalues, V = torch.linalg.eigh(A)
    return (V * eigenvalues.sqrt().unsqueeze(-2)) @ V.mT


def _components(X: Tensor) -> tuple[Tensor, Tensor]:
    centred = X - X.mean(-2, keepdim=True)
    eigenvalues, V = torch.linalg.eigh(centred.mT @ centred / (X.shape[-2] - 1))
    return V[..., -_COMPONENTS:].flip(-1).mT, eigenvalues[..., -_COMPONENTS:].flip(-1)


_COMPONENTS = 3


def _multiply_and_add(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    return torch.addmm(C, A, B) if A.ndim == 2 else C + A @ B


def logdet_by_cholesky(A: Tensor) -> Tensor:
    """The other way to a log determinant in torch; its backward is the slower one."""
    return 2.0 * torch.linalg.cholesky(A).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _normal_nll(A: Tensor, y: Tensor) -> Tensor:
    # As torch.distributions.MultivariateNormal does it; with cholesky_solve it takes longer.
    L = torch.linalg.cholesky(A)
    whitened = torch.linalg.solve_triangular(L, y, upper=False)
    half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = 0.5 * math.log(2.0 * math.pi) * y.shape[-2]
    return 0.5 * whitened.square().sum((-2, -1)) + half_logdet + constant


def _kalman_loop(y: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, m: Tensor, P: Tensor) -> Tensor:
    # The filter of the paper, step by step: K R K^T is what its K R K stands for.
    times, p = y.shape[-2:]
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    s: Tensor = y.new_zeros(y.shape[:-2])
    m, P = m[..., None].expand(*y.shape[:-2], -1, 1), P.expand(*y.shape[:-2], -1, -1)
    for t in range(times):
        if t:
            m, P = A @ m, A @ P @ A.mT + Q
        PB = P @ B.mT
        L = torch.linalg.cholesky(B @ PB + R)
        K = torch.linalg.solve_triangular(
            L, torch.linalg.solve_triangular(L.mT, PB, upper=True, left=False), upper=False, left=False
        )
        v = y[..., t, :, None] - B @ m
        z = torch.linalg.solve_triangular(L, v, upper=False)
        half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        s = s + 0.5 * z.square().sum((-2, -1)) + half_logdet + 0.5 * math.log(2.0 * math.pi) * p
        m, J = m + K @ v, identity - K @ B
        P = J @ P @ J.mT + K @ R @ K.mT
    return s


def _series(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    # `batch` series of n steps, of one model with 4 states and 2 observations.
    states, observations = 4, 2

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    def covariance(order: int) -> Tensor:
        X = random(order, order)
        return X @ X.mT / order + 0.5 * torch.eye(order, dtype=torch.float64)

    operands = (
        random(*shape.batch, shape.n, observations),
        0.95 * torch.linalg.qr(random(states, states)).Q,
        random(observations, states),
        covariance(states),
        covariance(observations),
        random(states),
        covariance(states),
    )
    return tuple(operand.to(dtype) for operand in operands)


def _singular_rows(A: Tensor) -> tuple[Tensor, ...]:
    # The view costs nothing: rows of vectors, as lapgrad returns them.
    columns, S, V = torch.linalg.svd(A, full_matrices=False)
    return columns.mT, S, V


def _lq_by_qr(A: Tensor) -> tuple[Tensor, Tensor]:
    Q, R = torch.linalg.qr(A.mT)
    return Q.mT, R.mT


def _covariance(X: Tensor, Y: Tensor) -> Tensor:
    return (X - X.mean(-2, keepdim=True)).mT @ (Y - Y.mean(-2, keepdim=True)) / (X.shape[-2] - 1)


def _canonical_correlations(X: Tensor, Y: Tensor) -> Tensor:
    Lx, Ly = (torch.linalg.cholesky(_covariance(Z, Z)) for Z in (X, Y))
    half = torch.linalg.solve_triangular(Lx, _covariance(X, Y), upper=False)
    return torch.linalg.svdvals(torch.linalg.solve_triangular(Ly, half.mT, upper=False))


_CLASSES = 4


def _classes(X: Tensor) -> Tensor:
    return torch.arange(X.shape[-2], device=X.device) % _CLASSES


def _discriminant_ratios(X: Tensor) -> Tensor:
    member = torch.nn.functional.one_hot(_classes(X), _CLASSES).to(X.dtype)
    sizes = member.sum(0)
    means = (member / sizes).mT @ X
    within = X - member @ means
    L = torch.linalg.cholesky(within.mT @ within / (X.shape[-2] - _CLASSES))
    between = (means - X.mean(-2, keepdim=True)) * (sizes / (_CLASSES - 1)).sqrt()[:, None]
    whitened = torch.linalg.solve_triangular(L, between.mT, upper=False)
    ratios = torch.linalg.eigvalsh(whitened.mT @ whitened).flip(-1)
    return ratios[..., : min(X.shape[-1], _CLASSES - 1)]


# fmt: off
_ROWS = (
    Operator(
        "potrf", lg.potrf, torch.linalg.cholesky, "torch.linalg.cholesky(A)", _symmetric,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3,
    ),
    Operator(
        "potrf_ex", lambda A: lg.potrf_ex(A)[0], lambda A: torch.linalg.cholesky_ex(A)[0],
        "torch.linalg.cholesky_ex(A)", _symmetric, lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3,
    ),
    Operator(
        "trsm", lg.trsm, functools.partial(torch.linalg.solve_triangular, upper=False),
        "torch.linalg.solve_triangular(L, A, upper=False)", _triangle_and_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m, lower=(0,),
    ),
    Operator(
        "trmm", lg.trmm, _triangular_product, "L @ A (batches: L.tril() @ A)", _triangle_and_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m, lower=(0,),
    ),
    Operator(
        "syrk", lg.syrk, lambda A: A @ A.mT, "A @ A.mT", _one_matrix,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m,
    ),
    Operator(
        "gemmt", lg.gemmt, lambda A, B: (A @ B).tril(), "(A @ B).tril()", _two_factors,
        lambda n, m: n * n * m, lambda n, m: 2 * n * n * m,
    ),
    Operator(
        "gemm2", lg.gemm2, torch.matmul, "A @ B", _two_factors,
        lambda n, m: 2 * n * n * m, lambda n, m: 4 * n * n * m,
    ),
    Operator(
        "gemm", lg.gemm, _multiply_and_add, "torch.addmm(C, A, B) (batches: C + A @ B)", _two_factors_and_sum,
        lambda n, m: 2 * n * n * m + n * n, lambda n, m: 4 * n * n * m,
    ),
    Operator(
        "syevd", lg.syevd, _eigenvectors_in_rows, "torch.linalg.eigh(A)", _spaced_spectrum,
        lambda n, m: 9 * n**3, lambda n, m: 5 * n**3, signs=True,
    ),
    Operator(
        "linalg.eigh_fn", lambda A: lg.linalg.eigh_fn(A, "sqrt"), _matrix_root,
        "(V * l.sqrt()) @ V.mT, l, V = torch.linalg.eigh(A)", _spaced_spectrum,
        lambda n, m: 10 * n**3, lambda n, m: 6 * n**3,
    ),
    Operator(
        "linalg.pca", lambda X: lg.linalg.pca(X, k=_COMPONENTS)[:2], _components,
        "torch.linalg.eigh of the covariance, last columns", _spaced_rows,
        lambda n, m: min(n, m) ** 2 * max(n, m) + 9 * min(n, m) ** 3,
        lambda n, m: 2 * min(n, m) ** 2 * max(n, m), signs=True,
    ),
    Operator(
        "sumlogdiag", lg.sumlogdiag, _sum_log_diagonal, "A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)",
        _one_triangle, lambda n, m: n, lambda n, m: n * n, "element",
    ),
    Operator(
        "extractdiag", lg.extractdiag, lambda A: A.diagonal(dim1=-2, dim2=-1).clone(),
        "A.diagonal(dim1=-2, dim2=-1).clone()", _one_square,
        lambda n, m: 2 * n, lambda n, m: n * n, "element",
    ),
    Operator(
        "makediag", lg.makediag, torch.diag_embed, "torch.diag_embed(d)", _diagonal,
        lambda n, m: n * n, lambda n, m: 2 * n, "element",
    ),
    Operator(
        "extracttrian", lg.extracttrian, _pack_triangle, "A[..., rows, columns] (torch.tril_indices)",
        _one_square,
        lambda n, m: n * (n + 1), lambda n, m: 1.5 * n * n, "element",
    ),
    Operator(
        "maketrian", lg.maketrian, _unpack_triangle, "A[..., rows, columns] = v (torch.tril_indices)",
        _packed_triangle, lambda n, m: 1.5 * n * n, lambda n, m: n * (n + 1), "element",
    ),
    Operator(
        "copyltu", lg.copyltu, lambda A: A.tril() + A.tril(-1).mT, "A.tril() + A.tril(-1).mT", _one_square,
        lambda n, m: 1.5 * n * n, lambda n, m: 1.5 * n * n, "element",
    ),

    # Functions of positive definite matrices.
    Operator(
        "potri", lg.potri, torch.cholesky_inverse, "torch.cholesky_inverse(L)", _one_triangle,
        lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3, lower=(0,),
    ),
    Operator(
        "linalg.cho_solve", lg.linalg.cho_solve, lambda L, B: torch.cholesky_solve(B, L),
        "torch.cholesky_solve(B, L)", _triangle_and_matrix,
        lambda n, m: 2 * n * n * m, lambda n, m: 5 * n * n * m, lower=(0,),
    ),
    Operator(
        "linalg.logdet_psd", lg.linalg.logdet_psd, torch.logdet, "torch.logdet(A)", _symmetric,
        lambda n, m: n**3 / 3, lambda n, m: 2 * n**3 / 3, symmetric=(0,),
    ),
    Operator(
        "linalg.solve_psd", lg.linalg.solve_psd, torch.linalg.solve, "torch.linalg.solve(A, B)",
        _symmetric_and_matrix,
        lambda n, m: n**3 / 3 + 2 * n * n * m, lambda n, m: 4 * n * n * m, symmetric=(0,),
    ),
    Operator(
        "linalg.inverse_psd", lg.linalg.inverse_psd, torch.linalg.inv, "torch.linalg.inv(A)", _symmetric,
        lambda n, m: n**3, lambda n, m: 3 * n**3, symmetric=(0,),
    ),
    Operator(
        "fused.mvn_nll", lg.fused.mvn_nll, _normal_nll,
        "L = cholesky(A); solve_triangular(L, y).square().sum() / 2 + L.diagonal().log().sum() + constant",
        _symmetric_and_column,
        lambda n, m: n**3 / 3 + n * n, lambda n, m: 2 * n**3 / 3 + 2 * n * n, symmetric=(0,),
    ),
    # n steps of a model with 4 states and 2 observations.
    Operator(
        "fused.kalman_nll", lg.fused.kalman_nll, _kalman_loop, "a loop over the steps of the filter", _series,
        lambda n, m: 500 * n, lambda n, m: 1500 * n, symmetric=(3, 4, 6),
    ),

    # The decompositions: flops as of dense textbook algorithms (Golub and Van Loan), iterations counted in.
    Operator(
        "gesvd", lg.gesvd, _singular_rows, "torch.linalg.svd(A, full_matrices=False)", _separated,
        lambda n, m: 21 * n * n * m, lambda n, m: 8 * n * n * m, signs=True,
    ),

    # Orthogonal factorisations.
    Operator(
        "gelqf", lg.gelqf, _lq_by_qr, "torch.linalg.qr(A.mT)", _full_rank,
        lambda n, m: 4 * n * n * m, lambda n, m: 4 * n * n * m + n**3 / 3, signs=True,
    ),
    Operator(
        "linalg.lstsq", lg.linalg.lstsq, lambda A, B: torch.linalg.lstsq(A, B).solution,
        "torch.linalg.lstsq(A, B).solution", _full_rank_and_column,
        lambda n, m: 4 * n * n * m + (2 * m + n) * n, lambda n, m: (8 * m + 2 * n) * n,
    ),

    # Inverses and determinants.
    Operator(
        "inverse", lg.inverse, torch.linalg.inv, "torch.linalg.inv(A)", _one_regular,
        lambda n, m: 2 * n**3, lambda n, m: 4 * n**3,
    ),
    Operator(
        "det", lg.det, torch.linalg.det, "torch.linalg.det(A)", _one_regular,
        lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3,
    ),
    Operator(
        "slogdet", lambda A: lg.slogdet(A)[1], lambda A: torch.linalg.slogdet(A)[1],
        "torch.linalg.slogdet(A)", _one_regular, lambda n, m: 2 * n**3 / 3, lambda n, m: 4 * n**3 / 3,
    ),

    # Multivariate statistics: n observations of m variables.
    Operator(
        "linalg.cca", lambda X, Y: lg.linalg.cca(X, Y)[0], _canonical_correlations,
        "svdvals(solve_triangular(Ly, solve_triangular(Lx, Cxy).mT)), L the Cholesky factors of covariances",
        _observations_of_two, lambda n, m: 4 * n * m * m + 26 * m**3, lambda n, m: 8 * n * m * m + 16 * m**3,
    ),
    Operator(
        "linalg.lda", lambda X: lg.linalg.lda(X, labels=_classes(X))[0], _discriminant_ratios,
        "eigvalsh(L^-1 Sb L^-T), L = cholesky(Sw)",
        _observations, lambda n, m: n * m * m + m**3, lambda n, m: 2 * n * m * m + 2 * m**3,
    ),
)
# fmt: on

L_OF_GELQF = Operator(
    "gelqf mode=l",
    lambda A: lg.gelqf(A, mode="l"),
    lambda A: torch.linalg.qr(A.mT).R.mT,
    "torch.linalg.qr(A.mT).R",
    _full_rank,
    lambda n, m: 2 * n * n * m - 2 * n**3 / 3,
    lambda n, m: 2 * n * n * m + 2 * n**3 / 3,
    signs=True,
)
"""L alone, for the bars. torch.linalg.qr(mode="r") has no gradient: the peer computes Q as well."""

OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}
"""All operators with a benchmark, by name. A test compares the names with the package's operators."""
