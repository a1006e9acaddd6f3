"""The type of a row in the table of operators, and the generators of its operands."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from device import DEVICE
from torch import Tensor

import lapgrad

#: Kinds of operands that are symmetric.
SYMMETRIC = ("spd", "spaced", "falling")

Shape = tuple[int, ...]
Flags = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sample:
    """The arguments of one call, and a name for them."""

    args: tuple[Tensor, ...]
    kwargs: Flags
    id: str


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A sample before it has a dtype: the shapes of the operands, the flags, and a name."""

    shapes: tuple[Shape, ...]
    flags: Flags
    id: str


def _square(n: int, m: int, flags: Flags) -> tuple[Shape, ...]:
    return ((n, n),)


@dataclasses.dataclass(frozen=True)
class Orders:
    """How an operator on the compiled core is sampled at any order: algorithms change with it.

    Attributes:
        flags: All choices of each flag.
        shapes: Shapes of the operands for matrices of order n; m is the other side of those not square.
    """

    flags: dict[str, tuple[Any, ...]]
    shapes: Callable[[int, int, Flags], tuple[Shape, ...]] = _square


@dataclasses.dataclass(frozen=True)
class OperatorCase:
    """A row of the table.

    Attributes:
        name: Name of the operator in ``lapgrad``: ``potrf``, ``linalg.lstsq``.
        reference: The same function in differentiable operators of plain torch (without ``overwrite``).
        recipes: Shapes and flags; the first one is small and typical.
        kinds: For each operand what it must be: "spd", "spaced" (symmetric, with separated eigenvalues),
            "falling" (symmetric, with separated pivots),
            "spaced_rows" (its covariance is), "separated" (singular values), "triangular", "full_rank",
            "contracting", "regular" or "general".
        operands: Names of the tensor arguments.
        saved: For each operand that alone needs a gradient, the number of tensors saved.
        orders: Samples of any order; None for an operator that is composed of others.
        overwrites: Position of the operand that ``overwrite=True`` reuses.
        leaves_result: Whether it then holds the (first) result; else what the result was made from.
        condition: By how much an operator on matrices of order n amplifies rounding more than a product does.
            Eigenvectors: by the largest eigenvalue over the smallest gap.
        operator_name: Name of the registered operator that does its work, if it is another one.
        draw: A recipe of random sizes of at most a given order, for the fuzz. Needed only where sizes depend
            on each other; else the fuzz puts random sizes into one of ``recipes``, equal ones for equal ones.
        passes: How many computations follow each other on the same numbers, each with its roundings: sweeps
            of an iteration, steps of a filter.
        needs_distinct_columns: Whether operands that have columns in common have no single solution.
        scale_share: How much of the range of exponents of its dtype the operator promises to take: less than
            a half if it squares its operands, none if operands have to be of similar size.
    """

    name: str
    reference: Callable[..., Any]
    recipes: tuple[Recipe, ...]
    kinds: tuple[str, ...]
    operands: tuple[str, ...]
    saved: tuple[int, ...]
    orders: Orders | None = None
    overwrites: int | None = None
    leaves_result: bool = True
    condition: Callable[[int], float] = lambda n: 1.0
    operator_name: str | None = None
    draw: Callable[[random.Random, int], Recipe] | None = None
    passes: int = 1
    needs_distinct_columns: bool = False
    scale_share: float = 1.0

    @property
    def registered(self) -> str:
        """Name of the operator under ``torch.ops.lapgrad``."""
        return self.operator_name or self.name.rpartition(".")[2]

    @property
    def fn(self) -> Callable[..., Any]:
        return operator.attrgetter(self.name)(lapgrad)

    def samples(
        self, dtype: torch.dtype = torch.float64, device: torch.device = DEVICE, requires_grad: bool = False
    ) -> list[Sample]:
        """All samples; the same numbers on every call."""
        return [self._make(recipe, dtype, device, requires_grad) for recipe in self.recipes]

    def small(
        self, dtype: torch.dtype = torch.float64, device: torch.device = DEVICE, requires_grad: bool = False
    ) -> Sample:
        """Return one typical sample without a batch, for slow tests."""
        return self._make(self.recipes[0], dtype, device, requires_grad)

    def batched(
        self, batch: Shape, dtype: torch.dtype = torch.float64, device: torch.device = DEVICE
    ) -> Sample:
        """Return the small sample with leading dimensions ``batch`` on every operand."""
        first = self.recipes[0]
        recipe = Recipe(
            tuple((*batch, *shape) for shape in first.shapes), first.flags, f"{first.id} batch {batch}"
        )
        return self._make(recipe, dtype, device, False)

    def _make(self, recipe: Recipe, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> Sample:
        generator = torch.Generator().manual_seed(len(recipe.id))
        args = tuple(
            MAKERS[kind](shape, generator).to(device=device, dtype=dtype).requires_grad_(requires_grad)
            for kind, shape in zip(self.kinds, recipe.shapes, strict=True)
        )
        return Sample(args, dict(recipe.flags), recipe.id)

    def differentiable(self, fn: Callable[..., Any], kwargs: Flags) -> Callable[..., Any]:
        """``fn`` as a function of unconstrained operands, with its differentiable results joined.

        A matrix that has to be symmetric is symmetrised first, so that finite differences stay on the
        manifold.
        """

        def on_manifold(*args: Tensor) -> Tensor:
            structured = [
                0.5 * (arg + arg.mT) if kind in SYMMETRIC else arg
                for kind, arg in zip(self.kinds, args, strict=True)
            ]
            return join_results(fn(*structured, **kwargs))

        return on_manifold


def join_results(result: Any) -> Tensor:
    """Return all results of an operator as one tensor, rows side by side, without a status."""
    if isinstance(result, Tensor):
        return result
    if hasattr(result, "logabsdet"):  # numbers, not rows
        return torch.stack(tuple(result), -1)
    parts = [part for part in result if part.is_floating_point()]
    if len(parts) == 1:
        return parts[0]
    batch = max(0, max(part.dim() for part in parts) - 2)
    return torch.cat([part.flatten(batch) for part in parts], -1)


def _general(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _spd(shape: Shape, generator: torch.Generator) -> Tensor:
    """Positive definite, eigenvalues between about 1/2 and 5; exactly symmetric."""
    X = _general(shape, generator)
    n = shape[-1]
    return X @ X.mT / max(n, 1) + 0.5 * torch.eye(n, dtype=torch.float64)


def _falling(shape: Shape, generator: torch.Generator) -> Tensor:
    """Positive definite with separated pivots; exactly symmetric.

    In some order of rows and columns A = L L^T, l_kk^2 = 2 - k/n and l_ik^2 at most 1/4n for i > k. At step k
    row i has l_ii^2 + l_ik^2 + ... left, which is less than l_kk^2 by 3/4n at least.
    """
    n = shape[-1]
    X = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5
    roots = (2 - torch.arange(n, dtype=torch.float64) / max(n, 1)).sqrt()
    L = (X / math.sqrt(max(n, 1))).tril(-1) + torch.diag(roots)
    order = torch.randperm(n, generator=generator)
    A = (L @ L.mT)[..., order, :][..., order]
    return 0.5 * (A + A.mT)


def _triangular(shape: Shape, generator: torch.Generator) -> Tensor:
    """Both triangles are well conditioned, and neither is zero, so that reading the wrong one shows."""
    n = shape[-1]
    return 0.3 * _general(shape, generator) + 1.5 * torch.eye(n, dtype=torch.float64)


def _separated(shape: Shape, generator: torch.Generator) -> Tensor:
    """Singular values one apart: 1, 2, 3, ..."""
    *batch, m, n = shape
    k = min(m, n)
    left = torch.linalg.qr(_general((*batch, m, k), generator))[0]
    right = torch.linalg.qr(_general((*batch, n, k), generator))[0]
    return left * torch.arange(k, 0, -1, dtype=torch.float64) @ right.mT


def _contracting(shape: Shape, generator: torch.Generator) -> Tensor:
    """Eigenvalues of about 1/2 at most: its powers vanish."""
    return 0.5 / math.sqrt(max(shape[-1], 1)) * _general(shape, generator)


def _full_rank(shape: Shape, generator: torch.Generator) -> Tensor:
    """Rows and columns far from dependent, also in every leading block; any shape."""
    identity = torch.eye(*shape[-2:], dtype=torch.float64)
    return 0.3 * _general(shape, generator) + 1.5 * identity


def _regular(shape: Shape, generator: torch.Generator) -> Tensor:
    """Well conditioned at every order, with a determinant of the order of 1; elimination exchanges rows."""
    n = shape[-1]
    X = 0.5 / math.sqrt(max(n, 1)) * _general(shape, generator) + torch.eye(n, dtype=torch.float64)
    return X.roll(1, -2)


def _spaced(shape: Shape, generator: torch.Generator) -> Tensor:
    """Symmetric positive definite with eigenvalues one apart: 1/2, 3/2, 5/2, ...; exactly symmetric."""
    Q = torch.linalg.qr(_general(shape, generator)).Q
    A = Q @ ((torch.arange(shape[-1], dtype=torch.float64) + 0.5)[:, None] * Q.mT)
    return 0.5 * (A + A.mT)


def _spaced_rows(shape: Shape, generator: torch.Generator) -> Tensor:
    """Centred, its singular values are 1, 2, 3, ...: the variances are well apart. Plus a mean."""
    *batch, n, d = shape
    # Subtracting the mean lowers the rank of n rows by one.
    k = min(n - 1, d)
    left = torch.linalg.qr(_general((*batch, n, k), generator))
    ones = torch.ones(n, 1, dtype=torch.float64) / n**0.5
    Q = torch.linalg.qr(left.Q - ones @ (ones.mT @ left.Q)).Q
    right = torch.linalg.qr(_general((*batch, d, k), generator)).Q
    mean = _general((*batch, 1, d), generator)
    return (Q * torch.arange(1, k + 1, dtype=torch.float64)) @ right.mT + mean


Maker = Callable[[Shape, torch.Generator], Tensor]


def _moved(make: Maker) -> Maker:
    """Made on the CPU, where the generator is: the same numbers on every device."""
    return lambda shape, generator: make(shape, generator).to(DEVICE)


_MAKERS: dict[str, Maker] = {
    "general": _general,
    "contracting": _contracting,
    "spd": _spd,
    "spaced": _spaced,
    "falling": _falling,
    "spaced_rows": _spaced_rows,
    "triangular": _triangular,
    "separated": _separated,
    "full_rank": _full_rank,
    "regular": _regular,
}

#: Operands in float64 on the device of the tests, by kind.
MAKERS: dict[str, Maker] = {kind: _moved(make) for kind, make in _MAKERS.items()}


def all_flags(**choices: tuple[Any, ...]) -> Iterator[Flags]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def named(shapes: tuple[Shape, ...], flags: Flags) -> Recipe:
    described = ["x".join(map(str, shape)) or "scalar" for shape in shapes]
    described += [f"{name}={value}" for name, value in flags.items()]
    return Recipe(shapes, flags, " ".join(described))


#: 9 sweeps of Jacobi's or the QR iteration until it converges, with 4 roundings in each rotation: those of
#: the angle are the same for whole columns.
SWEEPS = 36

#: Around these the kernels change: fixed orders, lanes, leaves, blocks.
_BOUNDARIES = (2, 4, 8, 16, 24, 32, 48, 64, 128, 256)
#: Multiplications that a drawn sample may take: 200 items of order 36, or one of order 215.
_WORK = 1e7


def draw_size(rng: random.Random, smallest: int, largest: int) -> int:
    """Return a size, evenly on a log scale; every third one is next to a size where kernels change."""
    largest = max(smallest, largest)
    if rng.random() < 0.33:
        size = rng.choice(_BOUNDARIES) + rng.choice((-1, 0, 1))
        if smallest <= size <= largest:
            return size
    low, high = math.log(max(smallest, 1) - 0.5), math.log(largest + 0.5)
    return min(largest, max(smallest, round(math.exp(rng.uniform(low, high)))))


def largest_batch(order: int) -> int:
    """How many items of that order a drawn sample may have."""
    return max(1, min(300, int(_WORK / max(order, 1) ** 3)))


def draw_batch(rng: random.Random, order: int) -> Shape:
    """Leading dimensions for matrices of that order: none, one or two; now and then an empty one."""
    many = largest_batch(order)
    kind = rng.random()
    if kind < 0.4:
        return ()
    if kind < 0.8:
        return (draw_size(rng, 1, many),)
    if kind < 0.95:
        first = draw_size(rng, 1, many)
        return (first, draw_size(rng, 1, many // first))
    return rng.choice([(0,), (2, 0), (0, 3)])


SQUARE_SHAPES: tuple[Shape, ...] = ((5, 5), (0, 0), (1, 1), (3, 5, 5), (0, 5, 5), (2, 1, 3, 3), (3, 0, 0))

#: Leading dimensions of two operands that meet: equal, empty, broadcast both ways, one shared by a batch.
BATCH_PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((3,), (3,)),
    ((0,), (0,)),
    ((2, 1), (3,)),
    ((), (3,)),
    ((1,), (2, 3)),
    ((1, 1), (3,)),
    ((), (0,)),
    ((3,), ()),
)


def square_recipes(**choices: tuple[Any, ...]) -> tuple[Recipe, ...]:
    flags = list(all_flags(**choices))
    return tuple(named((shape,), flag) for shape in SQUARE_SHAPES for flag in flags)
