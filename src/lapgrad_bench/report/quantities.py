"""Formats of numbers as text: seconds, bytes, ratios, counts. Templates use them as filters."""

from __future__ import annotations

import math

_MISSING = "–"


def format_seconds(value: float | None) -> str:
    """Return a time to three significant digits, in a unit that fits.

    Example:
        >>> [format_seconds(value) for value in (0.0123456, 4.56e-6, 1.5, 123.4, 5400.0, None)]
        ['12.3 ms', '4.56 µs', '1.50 s', '123 s', '1.50 h', '–']
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value == 0:
        return "0 s"
    if abs(value) >= 3600:
        return f"{_format_digits(value / 3600)} h"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= 0.9995 * size:
            return f"{_format_digits(value / size)} {unit}"
    return f"{_format_digits(value / 1e-6)} µs"


def format_tick_seconds(value: float) -> str:
    """Return a time for a tick of an axis: without zeros at its end.

    Example:
        >>> format_tick_seconds(0.02), format_tick_seconds(10.0), format_tick_seconds(5e-6)
        ('20 ms', '10 s', '5 µs')
    """
    return _drop_zeros(format_seconds(value))


def format_tick_memory(value: float) -> str:
    """Return a number of bytes for a tick of an axis: without zeros at its end.

    Example:
        >>> format_tick_memory(5e8), format_tick_memory(2e9)
        ('500 MB', '2 GB')
    """
    return _drop_zeros(format_memory(value))


def format_memory(value: float | None) -> str:
    """Return a number of bytes to three significant digits, in powers of 1000.

    Example:
        >>> [format_memory(value) for value in (134217728, 2.2e9, 900, 0, None)]
        ['134 MB', '2.20 GB', '0.900 kB', '0 kB', '–']
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value == 0:
        return "0 kB"
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(value) >= 0.9995 * size:
            return f"{_format_digits(value / size)} {unit}"
    return f"{_format_digits(value / 1e3)} kB"


def format_ratio(value: float | None) -> str:
    """Return a ratio with a multiplication sign.

    Example:
        >>> [format_ratio(value) for value in (2.345, 0.914, 14.84, 312.4, float("nan"))]
        ['2.3×', '0.91×', '14.8×', '312×', '–']
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    if value >= 99.95:
        return f"{value:.0f}×"
    # Two digits below 2: there a tenth is the difference between ahead and behind.
    return f"{value:.2f}×" if value < 1.995 else f"{value:.1f}×"


def format_percent(value: float | None) -> str:
    """Return a part of one as a percentage.

    Example:
        >>> format_percent(0.824), format_percent(0.0312), format_percent(None)
        ('82 %', '3.1 %', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    return f"{100 * value:.0f} %" if abs(value) >= 0.0995 else f"{100 * value:.1f} %"


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number to this many significant digits.

    Example:
        >>> format_number(0.000031, 2), *(format_number(value) for value in (1234567.0, 8192.0, -2.8, None))
        ('3.1e−05', '1.235e+06', '8192', '−2.8', '–')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    return f"{value:.{digits}g}".replace("-", "−")


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    Example:
        >>> format_count(1, "case"), format_count(1200, "case"), format_count(0, "library", "libraries")
        ('1 case', '1,200 cases', '0 libraries')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def _drop_zeros(text: str) -> str:
    """Return a figure with its unit, without zeros after the decimal point."""
    figure, _, unit = text.partition(" ")
    return f"{float(figure.replace(',', '')):g} {unit}"


def _format_digits(value: float) -> str:
    """Return a number to three significant digits, without an exponent.

    Example:
        >>> _format_digits(12.345), _format_digits(1.2345), _format_digits(1234.5)
        ('12.3', '1.23', '1,234')
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3f}"
