"""Figures as text: seconds, bytes, ratios, counts."""

from __future__ import annotations

import math

_MISSING = "–"


def seconds(value: float | None) -> str:
    """Three significant digits, in a unit that fits.

    Example:
        >>> seconds(0.0123456), seconds(4.56e-6), seconds(1.5), seconds(123.4), seconds(5400.0), seconds(None)
        ('12.3 ms', '4.56 µs', '1.50 s', '123 s', '1.50 h', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value == 0:
        return "0 s"
    if abs(value) >= 3600:
        return f"{_digits(value / 3600)} h"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= 0.9995 * size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value / 1e-6)} µs"


def round_seconds(value: float) -> str:
    """At a tick: no digits that say nothing.

    Example:
        >>> round_seconds(0.02), round_seconds(10.0), round_seconds(5e-6)
        ('20 ms', '10 s', '5 µs')
    """
    return _rounded(seconds(value))


def round_memory(value: float) -> str:
    """At a tick.

    Example:
        >>> round_memory(5e8), round_memory(2e9)
        ('500 MB', '2 GB')
    """
    return _rounded(memory(value))


def memory(value: float | None) -> str:
    """Bytes, in powers of 1000.

    Example:
        >>> memory(134217728), memory(2.2e9), memory(900), memory(0), memory(None)
        ('134 MB', '2.20 GB', '0.900 kB', '0 kB', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value == 0:
        return "0 kB"
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(value) >= 0.9995 * size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value / 1e3)} kB"


def ratio(value: float | None) -> str:
    """How many times.

    Example:
        >>> ratio(2.345), ratio(0.914), ratio(14.84), ratio(312.4), ratio(float("nan"))
        ('2.3×', '0.91×', '14.8×', '312×', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value >= 99.95:
        return f"{value:.0f}×"
    # Two digits below 2: there a tenth is the difference between ahead and behind.
    return f"{value:.2f}×" if value < 1.995 else f"{value:.1f}×"


def percent(value: float | None) -> str:
    """A part of one.

    Example:
        >>> percent(0.824), percent(0.0312), percent(None)
        ('82 %', '3.1 %', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    return f"{100 * value:.0f} %" if abs(value) >= 0.0995 else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 4) -> str:
    """Any figure, to so many significant digits.

    Example:
        >>> number(1234567.0), number(0.000031, 2), number(8192.0), number(-2.8, 3), number(None)
        ('1.235e+06', '3.1e−05', '8192', '−2.8', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    return f"{value:.{digits}g}".replace("-", "−")


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "case"), counted(1200, "case"), counted(0, "library", "libraries")
        ('1 case', '1,200 cases', '0 libraries')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def _rounded(text: str) -> str:
    figure, _, unit = text.partition(" ")
    return f"{float(figure.replace(',', '')):g} {unit}"


def _digits(value: float) -> str:
    """Three significant digits without an exponent.

    Example:
        >>> _digits(12.345), _digits(1.2345), _digits(1234.5)
        ('12.3', '1.23', '1,234')
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3f}"
