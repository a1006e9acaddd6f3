"""Draws the cases of a sweep: sizes at random on a logarithmic scale, within limits of memory and time.

Case k of a seed is always the same, whatever was measured before it. So a run can be resumed, and a longer
run with the same seed begins with the cases of the shorter one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lapgrad_bench.bench.measure.timing import CPU
from lapgrad_bench.bench.ops import inputs
from lapgrad_bench.bench.ops.cases import OPERATORS, Case, Operator
from lapgrad_bench.bench.ops.inputs import Shape

MOST_ORDER, MOST_ITEMS = 4096, 100_000
"""The largest order and the largest batch that are drawn."""

_MOST_DRAWS = 1000
"""Draws after which the smallest case is taken: limits may be so tight that no other case is within them."""

_SINGLE = 0.25
"""The part of the cases that is one matrix, without a batch."""

Form = Literal["square", "wide", "tall"]
_FORMS: tuple[Form, ...] = ("square", "wide", "tall")

_SQUARE_INPUTS = (
    inputs.make_symmetric,
    inputs.make_symmetric_and_column,
    inputs.make_one_triangle,
    inputs.make_one_regular,
    inputs.make_one_square,
    inputs.make_diagonal,
    inputs.make_packed_triangle,
    inputs.make_spaced_spectrum,
    inputs.make_series,
)
"""Generators of inputs that have one size only; all others have n rows and m columns."""

_OBSERVATIONS = (inputs.make_observations, inputs.make_observations_of_two)
"""Generators of inputs that have at least 2 m + 8 rows."""

_LEAST_SIDE = {"linalg.pca": 5, "linalg.lda": 4}
"""The least n and m of operators for which smaller ones are not defined: components, classes."""

_ITERATIVE = ("syevd", "gesvd", "linalg.eigh_fn", "linalg.pca", "linalg.cca")
"""Operators whose vendor routines reach a quarter of the rate of the others."""

_SECONDS_PER_STEP = {"fused.kalman_nll": 1e-3}
"""Seconds that torch takes per unit of the order, where its users write a loop."""

_SECONDS_PER_ITEM = 4e-6
"""Seconds that a routine takes for an item of a batch besides its flops: torch calls LAPACK for each."""

_BATCHED_ON_GPU = 32
"""Largest order of eigenvalues and singular values for which torch calls a batched routine of cuSOLVER."""

_SECONDS_PER_ORDER_ON_GPU = {
    "syevd": 1e-5,
    "linalg.eigh_fn": 1e-5,
    "linalg.pca": 1e-5,
    "linalg.lda": 1e-5,
    "gesvd": 3e-5,
    "linalg.cca": 3e-5,
}
"""Seconds per item and unit of the order above that, where torch calls cuSOLVER for each item in turn."""

_SECONDS_PER_LQ_ON_GPU, _SECONDS_PER_PIVOT_ON_GPU = 6e-5, 1e-4
"""Seconds that torch takes on a GPU for the QR factorisation of each item, and for each pivot of pstrf."""


@dataclass(frozen=True)
class Limits:
    """What a case may cost.

    Attributes:
        operand_bytes: bytes of operands; results, gradients and workspace take several times as much.
        call_seconds: estimated seconds of one forward and backward pass, for the slower library.
        rate: flop/s that the estimate assumes.
    """

    operand_bytes: float
    call_seconds: float
    rate: float

    @classmethod
    def choose(cls, device: torch.device, threads: int, call_seconds: float) -> Limits:
        """Return the limits for a device: on a GPU all of them are larger."""
        if device.type == "cuda":
            return cls(2.0**31, call_seconds, 2e12)
        return cls(2.0**29, call_seconds, 2e10 * threads)


def draw_cases(
    seed: int,
    limits: Limits,
    *,
    operators: Sequence[str] = tuple(OPERATORS),
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    device: torch.device = CPU,
) -> Iterator[Case]:
    """Yield cases without end: each operator once per round, in a random order.

    Args:
        seed: determines all cases, together with the other arguments.
        limits: cases that cost more are drawn again.
        operators: names, as in `OPERATORS`.
        dtypes: one of them is drawn for each case.
        device: where the cases are computed.
    """
    number = 0
    while True:
        names = list(operators)
        random.Random(f"{seed} round {number}").shuffle(names)
        for name in names:
            source = random.Random(f"{seed} round {number} {name}")
            yield _draw_case(source, OPERATORS[name], limits, dtypes, device)
        number += 1


def _draw_case(
    source: random.Random,
    operator: Operator,
    limits: Limits,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> Case:
    dtype = source.choice(list(dtypes))
    for _ in range(_MOST_DRAWS):
        case = Case(operator, _draw_shape(source, operator), dtype, device)
        if count_operand_bytes(case) <= limits.operand_bytes and (
            estimate_seconds(case, limits) <= limits.call_seconds
        ):
            return case
    least = _LEAST_SIDE.get(operator.name, 1)
    return Case(operator, Shape(least, least), dtype, device)


def _draw_shape(source: random.Random, operator: Operator) -> Shape:
    least = _LEAST_SIDE.get(operator.name, 1)
    n = m = _draw_logarithmic(source, least, MOST_ORDER)
    form = source.choice(_FORMS)
    if form != "square" and operator.inputs not in _SQUARE_INPUTS:
        other = _draw_logarithmic(source, least, MOST_ORDER)
        n, m = (min(n, other), max(n, other)) if form == "wide" else (max(n, other), min(n, other))
    is_single = source.random() < _SINGLE
    items = _draw_logarithmic(source, 1, MOST_ITEMS)
    return Shape(n, m, () if is_single else (items,))


def _draw_logarithmic(source: random.Random, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`; the logarithm of its upper end is uniform."""
    return min(most, math.floor(math.exp(source.uniform(math.log(least), math.log(most + 1)))))


def count_operand_bytes(case: Case) -> float:
    """Return about how many bytes the operands of a case have.

    Example:
        >>> count_operand_bytes(Case(OPERATORS["potrf"], Shape(100, 100), torch.float64))
        160000.0
    """
    n, m = case.shape.n, case.shape.m
    if case.operator.inputs in _OBSERVATIONS:
        n = max(n, 2 * m + 8)
    elements = n * m + min(n, m) ** 2 if case.operator.name == "linalg.pca" else n * (n + m)
    if case.operator.inputs is inputs.make_series:
        elements = 2 * n
    return float(case.shape.items * elements * case.dtype.itemsize)


def estimate_seconds(case: Case, limits: Limits) -> float:
    """Return about how long a forward and backward pass takes, for the slower library."""
    rate = limits.rate * (0.25 if case.operator.name in _ITERATIVE else 1.0)
    by_steps = case.shape.n * _SECONDS_PER_STEP.get(case.operator.name, 0.0)
    if case.device.type == "cuda":
        by_steps += _estimate_extra_seconds_on_gpu(case)
    return case.count_operations("step") / rate + case.shape.items * _SECONDS_PER_ITEM + by_steps


def _estimate_extra_seconds_on_gpu(case: Case) -> float:
    """Return about how long torch takes on a GPU for what it does one after the other."""
    name, order = case.operator.name, min(case.shape.n, case.shape.m)
    if name in ("gelqf", "linalg.lstsq"):
        return case.shape.items * _SECONDS_PER_LQ_ON_GPU
    if name == "pstrf":
        return order * _SECONDS_PER_PIVOT_ON_GPU
    return case.shape.items * order * _SECONDS_PER_ORDER_ON_GPU.get(name, 0.0) * (order > _BATCHED_ON_GPU)
