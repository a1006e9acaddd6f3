"""Shapes and flags of a case: a recipe of the samples with other sizes, batches and factors."""

from __future__ import annotations

import inspect
import random

from samples import Flags, OperatorCase, Recipe, Shape
from samples.case import draw_batch, draw_size, largest_batch, named


def draw_recipe(case: OperatorCase, rng: random.Random, largest: int, alike: bool) -> Recipe:
    """Return a recipe with sizes of at most ``largest``; with ``alike`` as many equal shapes as possible."""
    if case.draw is not None:
        return case.draw(rng, largest)
    recipe = rng.choice(case.recipes)
    flags = _draw_factors(case, rng, recipe.flags)
    ranks = _count_dimensions(case)
    sizes = sorted({size for shape, rank in zip(recipe.shapes, ranks, strict=True) for size in shape[-rank:]})
    # A flag such as the number of singular values may be as large as the sizes of the recipe, no larger.
    counts = any(isinstance(value, int) and not isinstance(value, bool) for value in flags.values())
    common = draw_size(rng, max(sizes) if counts else 1, largest)
    new_sizes = {
        size: size if size == 0 else common if alike else draw_size(rng, size if counts else 1, largest)
        for size in sizes
    }
    batches = _draw_batches(
        [shape[:-rank] for shape, rank in zip(recipe.shapes, ranks, strict=True)],
        rng,
        max(new_sizes.values(), default=0),
        alike,
    )
    shapes = tuple(
        (*batch, *(new_sizes[size] for size in shape[-rank:]))
        for shape, rank, batch in zip(recipe.shapes, ranks, batches, strict=True)
    )
    return named(shapes, flags)


def _count_dimensions(case: OperatorCase) -> tuple[int, ...]:
    """Return for each operand the number of dimensions that are not batch dimensions."""
    return tuple(
        min(len(recipe.shapes[position]) for recipe in case.recipes) for position in range(len(case.operands))
    )


def _draw_factors(case: OperatorCase, rng: random.Random, flags: Flags) -> Flags:
    """Other values for alpha and beta."""
    drawn = dict(flags)
    for name in ("alpha", "beta"):
        if name in inspect.signature(case.fn).parameters and rng.random() < 0.7:
            drawn[name] = rng.choice([1.0, 0.0, -1.0, 2.0, rng.uniform(-2, 2)])
    return drawn


def _draw_batches(batches: list[Shape], rng: random.Random, order: int, alike: bool) -> list[Shape]:
    """Draw leading dimensions of other lengths that broadcast as those of the recipe do."""
    if alike or not any(batches):
        batch = draw_batch(rng, order)
        return [batch] * len(batches)
    # The product of the lengths is at most the allowed number of items, whatever lengths are drawn.
    dimensions = max(len(batch) for batch in batches)
    longest = int(largest_batch(order) ** (1 / dimensions))
    lengths = {0: 0, 1: 1}
    for batch in batches:
        for length in batch:
            if length not in lengths:
                lengths[length] = draw_size(rng, 1, longest)
    return [tuple(lengths[length] for length in batch) for batch in batches]
