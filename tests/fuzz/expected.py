"""Expected results of a call and their sensitivity, by the reference in float64 at and near the operands."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence

import torch
from samples import Flags, OperatorCase
from samples.signs import watch_margins
from torch import Tensor

from fuzz.values import perturb

#: Relative size of the perturbations by which sensitivity is measured, 2^26 times the rounding of float64.
_STEP = 2.0**-26
#: Random directions miss the sensitive one by this factor with a probability of its inverse, each by itself.
_MISSED_BY = 30.0
#: The probability that all directions miss that of any row or column.
_RISK = 3e-5


@dataclasses.dataclass
class Part:
    """A result or a gradient.

    Attributes:
        name: "result 0", "gradient of A".
        value: In float64; integers as they are.
        sensitivity: By how much entries move, root mean square, for a relative change of the operands of 1.
        own_error: Errors of the reference itself, a plain formula, in units of eps.
        by_rows: Whether rows and columns of different size are judged by themselves.
    """

    name: str
    value: Tensor
    sensitivity: Tensor
    own_error: Tensor
    by_rows: bool

    def size(self) -> Tensor:
        """Return the unit of errors for each entry, from its value and its sensitivity.

        Not of the entry alone, whose sensitivity may vanish in the few directions tried. For results, the
        largest of its row or that of its column, whichever is smaller. For gradients the largest of the
        matrix: they are sums of products in which what is large may cancel in other rows and columns. So it
        is for results of iterations, whose vectors are as exact as their length allows, not entry by entry.
        """
        return self._largest_around(self.value.abs() + self.sensitivity)

    def reference_error(self) -> Tensor:
        """Return the same as ``size``, but for the errors that the reference itself makes."""
        return self._largest_around(self.own_error)

    def _largest_around(self, size: Tensor) -> Tensor:
        if not size.dim() or not size.numel():
            return size
        along_row = size.amax(-1, keepdim=True).expand_as(size)
        if size.dim() == 1:
            return along_row
        if not self.by_rows:
            return along_row.amax(-2, keepdim=True).expand_as(size)
        return torch.minimum(along_row, size.amax(-2, keepdim=True))


@dataclasses.dataclass
class Expected:
    """Results of the reference, and gradients of <cotangents, results>, one per operand that needs it.

    Attributes:
        results: All of them.
        gradients: In the order of the operands that need one.
        cotangents: One for each result; None for those without derivative.
        margin: By how much, relatively, the closest choice of a sign was decided; 1 if there was none.
    """

    results: list[Part]
    gradients: list[Part]
    cotangents: list[Tensor | None]
    margin: float

    def parts(self) -> list[Part]:
        return [*self.results, *self.gradients]


class Reference:
    """The reference of an operator with flags, differentiated for some operands."""

    def __init__(self, case: OperatorCase, flags: Flags, needs: Sequence[int]) -> None:
        self._case, self._flags, self._needs = case, flags, needs

    def evaluate(
        self, args: Sequence[Tensor], cotangents: list[Tensor | None] | None, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Results, gradients and cotangents, which are drawn if none are given."""
        leaves = [arg.detach().requires_grad_(i in self._needs) for i, arg in enumerate(args)]
        output = self._case.reference(*leaves, **self._flags)
        results = [output] if isinstance(output, Tensor) else list(output)
        if cotangents is None:
            cotangents = [
                # Numbers that float32 represents exactly.
                torch.randn(part.shape, generator=generator).double() if part.requires_grad else None
                for part in results
            ]
        pairs = [(part, w) for part, w in zip(results, cotangents, strict=True) if w is not None]
        gradients: Sequence[Tensor] = ()
        if self._needs and pairs:
            gradients = torch.autograd.grad(
                [part for part, _ in pairs],
                [leaves[i] for i in self._needs],
                [w for _, w in pairs],
                materialize_grads=True,
            )
        return [part.detach() for part in results], list(gradients), cotangents

    def expect(
        self, args: Sequence[Tensor], rng: random.Random, cotangents: list[Tensor | None] | None = None
    ) -> Expected:
        """Values, sensitivities and the errors of the reference at ``args``, float64 on the CPU."""
        generator = torch.Generator().manual_seed(rng.getrandbits(60))
        with watch_margins() as margins:
            results, gradients, cotangents = self.evaluate(args, cotangents, generator)
        values = [*results, *gradients]
        moved = [torch.zeros_like(value) for value in values]
        directions = _count_directions(values)
        for _ in range(directions):
            near = [
                perturb(kind, arg, _STEP, generator) for kind, arg in zip(self._case.kinds, args, strict=True)
            ]
            weights = [None if w is None else perturb("general", w, _STEP, generator) for w in cotangents]
            there = self.evaluate(near, weights, generator)
            for total, value, other in zip(moved, values, [*there[0], *there[1]], strict=True):
                if value.is_floating_point():
                    total += ((other - value) / _STEP).square()
        names = [f"result {i}" for i in range(len(results))]
        names += [f"gradient of {self._case.operands[i]}" for i in self._needs[: len(gradients)]]
        rounded = self._measure_own_errors(args, cotangents, values)
        parts = [
            Part(
                name,
                value,
                (total / directions).sqrt() if value.is_floating_point() else total,
                own,
                i < len(results) and self._case.passes == 1,
            )
            for i, (name, value, total, own) in enumerate(zip(names, values, moved, rounded, strict=True))
        ]
        return Expected(parts[: len(results)], parts[len(results) :], cotangents, min(margins, default=1.0))

    def _measure_own_errors(
        self, args: Sequence[Tensor], cotangents: list[Tensor | None], values: list[Tensor]
    ) -> list[Tensor]:
        """Return the rounding errors of the reference in units of eps: float32 results less float64 results.

        Both start from operands that float32 represents. Where float32 overflows, errors count as infinite.
        """
        generator = torch.Generator()
        near = [arg.float() for arg in args]
        weights = [None if w is None else w.float() for w in cotangents]
        try:
            short = self.evaluate(near, weights, generator)
        except torch.linalg.LinAlgError:
            return [
                torch.full_like(value, math.inf) if value.is_floating_point() else value for value in values
            ]
        exact = self.evaluate(
            [arg.double() for arg in near], [None if w is None else w.double() for w in weights], generator
        )
        return [
            ((one.double() - other) / torch.finfo(torch.float32).eps).abs().nan_to_num(math.inf)
            if one.is_floating_point()
            else torch.zeros_like(one)
            for one, other in zip([*short[0], *short[1]], [*exact[0], *exact[1]], strict=True)
        ]

    def degrees(
        self, args: Sequence[Tensor], groups: list[list[int]], at: Expected
    ) -> list[list[float]] | None:
        """For each part its degree of homogeneity in each group of operands; None if one has none.

        Found by a comparison of the reference at the operands and at 16 times a group of them.
        """
        generator = torch.Generator()
        rows = []
        for group in groups:
            scaled = [16.0 * arg if i in group else arg for i, arg in enumerate(args)]
            results, gradients, _ = self.evaluate(scaled, at.cotangents, generator)
            rows.append(
                [
                    _find_degree(part.value, value)
                    for part, value in zip(at.parts(), [*results, *gradients], strict=True)
                ]
            )
        if any(degree is None for row in rows for degree in row):
            return None
        return [[row[i] or 0.0 for row in rows] for i in range(len(at.parts()))]


def _count_directions(values: Sequence[Tensor]) -> int:
    """Return how many random directions show the sensitivity of every row and every column."""
    lines = 1
    for value in values:
        *_, rows, columns = (1, 1, *value.shape)
        lines += value.numel() // max(1, rows) + value.numel() // max(1, columns)
    # 30^-directions for each of the lines.
    return math.ceil(math.log(lines / _RISK) / math.log(_MISSED_BY))


def _find_degree(value: Tensor, at_16: Tensor) -> float | None:
    """p with f(16 x) = 16^p f(x), a multiple of 1/2; None if there is none."""
    if not value.is_floating_point():
        return 0.0 if torch.equal(value, at_16) else None
    before, after = (float(x.abs().max()) if x.numel() else 0.0 for x in (value, at_16))
    if before == 0.0 or after == 0.0:
        return 0.0 if before == after else None
    if not math.isfinite(before) or not math.isfinite(after):
        return None
    power = math.log2(after) - math.log2(before)
    if abs(power) > 1000:  # 16^p would be out of range
        return None
    degree = round(power / 2) / 2
    same = (at_16 - 16.0**degree * value).abs().max() <= 1e-6 * after
    return degree if bool(same) else None


def scale(expected: Expected, degrees: list[list[float]], exponents: list[int]) -> Expected:
    """Return the expected results for operands times 2^exponents, one exponent per group."""

    def scaled() -> Iterator[Part]:
        for part, row in zip(expected.parts(), degrees, strict=True):
            exponent = find_part_exponent(row, exponents)
            if not part.value.is_floating_point() or exponent == 0:
                yield part
                continue
            # In two steps: a power of two may be out of range where its product with the value is not.
            half = exponent // 2
            value, moved, own = (
                x * 2.0**half * 2.0 ** (exponent - half)
                for x in (part.value, part.sensitivity, part.own_error)
            )
            yield dataclasses.replace(part, value=value, sensitivity=moved, own_error=own)

    parts = list(scaled())
    count = len(expected.results)
    return dataclasses.replace(expected, results=parts[:count], gradients=parts[count:])


def find_part_exponent(degrees: list[float], exponents: list[int]) -> int:
    """Return e if a part changes by 2^e: it has a degree in each operand, which changes by 2^exponent."""
    return round(sum(degree * exponent for degree, exponent in zip(degrees, exponents, strict=True)))


def are_sizes_in_range(values: Sequence[Tensor], shifts: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether the largest entry of each value times 2^shift is well inside the normal range of ``dtype``."""
    info = torch.finfo(dtype)
    low, high = math.log2(info.tiny) + 4, math.log2(info.max) - 8
    for value, shift in zip(values, shifts, strict=True):
        largest = float(value.abs().max()) if value.numel() and value.is_floating_point() else 0.0
        if largest and not low <= math.log2(largest) + shift <= high:
            return False
    return True
