"""Generators of inputs, from a shape, a dtype and a source of random numbers.

Triangles have a diagonal between 1 and 2, and the other entries of a row sum to about 1, so that L⁻¹ is of
order 1 at every size. Symmetric matrices have eigenvalues from 1 to about 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """The shape of a batch of n × m matrices. Operators on square matrices use n × n.

    Example:
        >>> Shape.parse("1000x8x8"), str(Shape.parse("64"))
        (Shape(n=8, m=8, batch=(1000,)), '64')
    """

    n: int
    m: int
    batch: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Return the shape of a text: `64` is one 64 × 64 matrix, `1000x8x8` a batch of 1000."""
        try:
            sizes = tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            raise ValueError(f"{text!r} is not a shape: 64, 64x32 or 1000x8x8 was wanted")
        if len(sizes) == 1:
            return cls(sizes[0], sizes[0])
        return cls(sizes[-2], sizes[-1], sizes[:-2])

    @classmethod
    def parse_list(cls, text: str) -> list[Shape]:
        """Return the shapes of a text that are separated by commas; none for an empty text."""
        return [cls.parse(part) for part in text.split(",") if part.strip()]

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


def _draw_normal(*sizes: int, shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape.batch, *sizes, dtype=dtype, generator=generator, device=generator.device)


def make_symmetric(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    X = _draw_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    A = (X @ X.mT).div_(shape.n)
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (A,)


def make_falling_pivots(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return positive definite matrices whose pivots fall from 2 to 1: rounding does not exchange them."""
    n = shape.n
    L = _draw_normal(n, n, shape=shape, dtype=dtype, generator=generator).clamp_(-3.0, 3.0)
    L = L.div_(6.0 * math.sqrt(n)).tril_(-1)
    steps = torch.arange(n, dtype=dtype, device=L.device)
    L.diagonal(dim1=-2, dim2=-1).copy_((2.0 - steps / n).sqrt())
    return ((L @ L.mT).flip(-2, -1),)


def _make_triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    L = _draw_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator).div_(shape.n).tril_(-1)
    L.diagonal(dim1=-2, dim2=-1).uniform_(1.0, 2.0, generator=generator)
    return L


def make_triangle_and_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    A = _draw_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return _make_triangle(shape, dtype, generator), A


def make_symmetric_and_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    B = _draw_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return (*make_symmetric(shape, dtype, generator), B)


def make_symmetric_and_column(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    y = _draw_normal(shape.n, 1, shape=shape, dtype=dtype, generator=generator)
    return (*make_symmetric(shape, dtype, generator), y)


def make_one_triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_make_triangle(shape, dtype, generator),)


def make_one_regular(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return well-conditioned matrices with determinants of order 1 at every size."""
    X = _draw_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    X.mul_(0.25 / math.sqrt(shape.n)).diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (X.roll(1, -2),)


def make_one_matrix(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_draw_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator),)


def make_one_square(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_draw_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator),)


def make_separated(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return matrices with singular values k, ..., 2, 1: the gradient divides by their differences."""
    k = min(shape.n, shape.m)
    left, right = (
        torch.linalg.qr(_draw_normal(side, k, shape=shape, dtype=torch.float64, generator=generator))[0]
        for side in (shape.n, shape.m)
    )
    return ((left * torch.arange(k, 0, -1, dtype=torch.float64, device=left.device) @ right.mT).to(dtype),)


def make_observations(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return random data of m columns, with n rows or 2 m + 8, whichever is more."""
    rows = max(shape.n, 2 * shape.m + 8)
    return (_draw_normal(rows, shape.m, shape=shape, dtype=dtype, generator=generator),)


def make_observations_of_two(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return *make_observations(shape, dtype, generator), *make_observations(shape, dtype, generator)


def make_two_factors(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    A = _draw_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    return A, _draw_normal(shape.m, shape.n, shape=shape, dtype=dtype, generator=generator)


def make_two_factors_and_sum(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    C = _draw_normal(shape.n, shape.n, shape=shape, dtype=dtype, generator=generator)
    return (*make_two_factors(shape, dtype, generator), C)


def make_diagonal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_draw_normal(shape.n, shape=shape, dtype=dtype, generator=generator),)


def make_packed_triangle(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (_draw_normal(shape.n * (shape.n + 1) // 2, shape=shape, dtype=dtype, generator=generator),)


def make_full_rank(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return well-conditioned n × m matrices."""
    A = _draw_normal(shape.n, shape.m, shape=shape, dtype=dtype, generator=generator)
    A.div_(4.0 * math.sqrt(max(shape.n, shape.m)))
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return (A,)


def make_full_rank_and_column(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    b = _draw_normal(shape.n, 1, shape=shape, dtype=dtype, generator=generator)
    return (*make_full_rank(shape, dtype, generator), b)


def make_spaced_spectrum(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return symmetric matrices with eigenvalues at equal distances between 1 and 2.

    The gradient of eigenvectors is then well conditioned.
    """
    Q = torch.linalg.qr(
        _draw_normal(shape.n, shape.n, shape=shape, dtype=torch.float64, generator=generator)
    ).Q
    spectrum = torch.linspace(1.0, 2.0, shape.n, dtype=torch.float64, device=Q.device)
    A = Q @ (spectrum.unsqueeze(-1) * Q.mT)
    return ((0.5 * (A + A.mT)).to(dtype),)


def make_spaced_rows(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return data whose centred matrix has singular values at equal distances between 1 and 2."""
    k = min(shape.n - 1, shape.m)
    left, right = (
        _draw_normal(size, k, shape=shape, dtype=torch.float64, generator=generator)
        for size in (shape.n, shape.m)
    )
    left, right = torch.linalg.qr(left - left.mean(-2, keepdim=True)).Q, torch.linalg.qr(right).Q
    spectrum = torch.linspace(1.0, 2.0, k, dtype=torch.float64, device=left.device)
    return ((left * spectrum @ right.mT).to(dtype),)


def make_series(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Return `batch` series of n steps, and the matrices of one model with 4 states and 2 observations."""
    states, observations = 4, 2

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64, device=generator.device)

    def covariance(order: int) -> Tensor:
        X = random(order, order)
        return X @ X.mT / order + 0.5 * torch.eye(order, dtype=torch.float64, device=X.device)

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
