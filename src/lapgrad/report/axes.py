"""Axes of plots: where a value lies between 0 and 1, and where ticks are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, linear or logarithmic.

    Example:
        >>> axis = Axis(1.0, 100.0, logarithmic=True)
        >>> axis.place(10.0), axis.ticks(most=5)
        (0.5, [1.0, 3.0, 10.0, 30.0, 100.0])
    """

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)

    def ticks(self, most: int = 7) -> list[float]:
        """Round values within the axis, at most so many."""
        if not self.logarithmic:
            return _linear_ticks(self.low, self.high, most)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = _decade_ticks(self.low, self.high, digits)
            if 2 <= len(found) <= most:
                return found
        if len(found) < 2:
            return _linear_ticks(self.low, self.high, most)
        stride = math.ceil(len(found) / most)
        return found[::stride]


def around(values: Iterable[float], *, logarithmic: bool = False, margin: float = 0.06) -> Axis:
    """An axis that holds all values and a margin on both sides.

    Example:
        >>> axis = around([1.0, 3.0], margin=0.5)
        >>> axis.low, axis.high
        (0.0, 4.0)
    """
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
    change: Callable[[float], float] = math.log if logarithmic else float
    back: Callable[[float], float] = math.exp if logarithmic else float
    low, high = (change(min(finite)), change(max(finite))) if finite else (0.0, 1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        step = 0.5 if logarithmic else 0.5 * (abs(high) or 1.0)
        low, high = low - step, high + step
    room = margin * (high - low)
    return Axis(back(low - room), back(high + room), logarithmic)


def thinned(values: Sequence[float], most: int = 6) -> Sequence[float]:
    """At most so many of them, the last among them: more numbers would touch each other.

    Example:
        >>> thinned([1, 2, 3, 4, 5], most=3)
        [1, 3, 5]
    """
    stride = -(-len(values) // most)
    return values[::-1][::stride][::-1]


def _decade_ticks(low: float, high: float, digits: tuple[int, ...]) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    candidates = (float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits)
    return [value for value in candidates if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(
        power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9)
    )
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]
