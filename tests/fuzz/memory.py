"""Memory layouts of operands: any strides, parts of larger blocks, and memory shared by two operands."""

from __future__ import annotations

import dataclasses
import math
import random

import torch
from device import DEVICE
from samples import SYMMETRIC, OperatorCase, Shape
from torch import Tensor

#: How two operands can share memory.
ALIASES = ("same object", "view", "transpose", "shifted rows", "shifted columns", "shifted batch")


@dataclasses.dataclass(frozen=True)
class Place:
    """The elements of a flat block of memory that make up a tensor."""

    block: int
    shape: Shape
    stride: Shape
    offset: int

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor at this place in ``memory``, the flat block."""
        return memory.as_strided(self.shape, self.stride, self.offset)

    @property
    def transposed(self) -> Place:
        (*shape, m, n), (*stride, down, right) = self.shape, self.stride
        return dataclasses.replace(self, shape=(*shape, n, m), stride=(*stride, right, down))


@dataclasses.dataclass
class Arrangement:
    """Places of all operands in blocks of memory; what belongs to no operand is NaN."""

    blocks: list[Tensor]
    places: list[Place]
    description: str
    #: Two operands that share memory, and whether they are one object.
    aliased: tuple[int, int] | None = None
    one_object: bool = False

    def values(self) -> list[Tensor]:
        """Return the operands as contiguous copies in float64."""
        return [place.view(self.blocks[place.block]).cpu().double().contiguous() for place in self.places]


def draw_layout(rng: random.Random, shape: Shape, block: int) -> tuple[Place, int]:
    """Return a place in a new block, and the length of the block.

    Dimensions lie in any order in memory; each may have gaps between its elements, and elements before its
    first and after its last.
    """
    order = list(range(len(shape)))
    kind = rng.choice(["rows", "rows", "columns", "any"])
    if kind == "columns" and len(shape) > 1:
        order[-2:] = [order[-1], order[-2]]
    elif kind == "any":
        rng.shuffle(order)
    dense = rng.random() < 0.4
    stride, offset, extent = [0] * len(shape), 0, 1
    for dim in reversed(order):
        step = 1 if dense else rng.choice([1, 1, 1, 2, 3])
        before, after = (0, 0) if dense else (rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1, 3]))
        stride[dim] = step * extent
        offset += before * extent
        extent *= max(1, before + step * shape[dim] + after)
    return Place(block, shape, tuple(stride), offset), extent


def fill(place: Place, length: int, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a block with ``value`` at ``place`` and NaN elsewhere."""
    memory = torch.full((length,), math.nan, dtype=dtype, device=DEVICE)
    place.view(memory).copy_(value)
    return memory


def arrange(
    case: OperatorCase, values: list[Tensor], rng: random.Random, dtype: torch.dtype, may_share: set[int]
) -> Arrangement:
    """Every operand in a block of its own; those of ``may_share`` may repeat an item (stride 0)."""
    blocks, places, repeated = [], [], []
    for position, value in enumerate(values):
        expanded = [
            dim
            for dim in range(value.dim() - 2)
            if position in may_share and value.shape[dim] > 1 and rng.random() < 0.15
        ]
        for dim in expanded:
            value = value.narrow(dim, 0, 1)
        place, length = draw_layout(rng, tuple(value.shape), len(blocks))
        blocks.append(fill(place, length, value, dtype))
        if expanded:
            repeated.append(case.operands[position])
            stride = tuple(0 if dim in expanded else step for dim, step in enumerate(place.stride))
            place = dataclasses.replace(place, shape=tuple(values[position].shape), stride=stride)
        places.append(place)
    strides = " ".join(f"{name}{place.stride}" for name, place in zip(case.operands, places, strict=True))
    return Arrangement(blocks, places, strides + "".join(f", items of {name} shared" for name in repeated))


def draw_alias(
    case: OperatorCase, values: list[Tensor], rng: random.Random, dtype: torch.dtype
) -> Arrangement | None:
    """Two operands that share memory, the others each in a block of its own. None if no two can."""
    pairs = [
        (source, other, alias)
        for source in range(len(values))
        for other in range(len(values))
        for alias in ALIASES
        if source != other and _can_share(case, values, source, other, alias)
    ]
    if not pairs:
        return None
    source, other, alias = rng.choice(pairs)
    arrangement = arrange(case, values, rng, dtype, set())
    place = arrangement.places[source]
    if alias in ("same object", "view"):
        arrangement.places[other] = place
    elif alias == "transpose":
        arrangement.places[other] = place.transposed
    else:
        _shift(arrangement, values, source, other, alias, rng, dtype)
    arrangement.aliased = (source, other)
    arrangement.one_object = alias == "same object"
    names = case.operands
    arrangement.description += f"; {names[other]} is {names[source]}: {alias}"
    return arrangement


def _can_share(case: OperatorCase, values: list[Tensor], source: int, other: int, alias: str) -> bool:
    """Return whether ``other`` may share the memory, and thus the values, of ``source`` in this way."""
    kinds, one, two = case.kinds, values[source], values[other]
    general = kinds[other] == "general"
    if case.needs_distinct_columns and alias not in ("shifted rows", "shifted batch"):
        return False
    if alias in ("same object", "view"):
        return one.shape == two.shape and (general or kinds[source] == kinds[other])
    if alias == "transpose":
        symmetric = kinds[source] in SYMMETRIC and kinds[source] == kinds[other]
        return one.dim() >= 2 and one.mT.shape == two.shape and (general or symmetric)
    if not general or one.dim() != two.dim() or one.dim() < 2:
        return False
    if alias == "shifted batch":
        return one.dim() > 2 and one.shape == two.shape and one.shape[0] > 1
    return one.shape[:-2] == two.shape[:-2]


def _shift(
    arrangement: Arrangement,
    values: list[Tensor],
    source: int,
    other: int,
    alias: str,
    rng: random.Random,
    dtype: torch.dtype,
) -> None:
    """Place both operands as overlapping blocks of one matrix or batch, the second one shifted."""
    one, two = values[source], values[other]
    dim = {"shifted rows": -2, "shifted columns": -1, "shifted batch": 0}[alias] % one.dim()
    by = rng.randint(1, max(1, one.shape[dim] - 1))
    size = [max(pair) for pair in zip(one.shape, two.shape, strict=True)]
    size[dim] = max(one.shape[dim], by + two.shape[dim])
    whole, length = draw_layout(rng, tuple(size), source)
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    memory = fill(whole, length, torch.randn(size, generator=generator, dtype=torch.float64), dtype)
    place = dataclasses.replace(whole, shape=tuple(one.shape))
    place.view(memory).copy_(one)
    arrangement.blocks[source] = memory
    arrangement.places[source] = place
    offset = whole.offset + by * whole.stride[dim]
    arrangement.places[other] = dataclasses.replace(whole, shape=tuple(two.shape), offset=offset)
