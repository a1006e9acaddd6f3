"""Parsers of option values; argparse turns an ArgumentTypeError into a usage message."""

from __future__ import annotations

import argparse
import math


def parse_number(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def parse_positive(text: str) -> float:
    """Return a positive number, which must be finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
