"""Parsers of option values; argparse turns an ArgumentTypeError into a usage message."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable


def parse_number(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def parse_numbers(text: str) -> list[int]:
    """Return the positive whole numbers of a list with commas, each of them once."""
    return list(dict.fromkeys(parse_number(part) for part in text.split(",")))


def make_names_parser(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of lists with commas of the names in ``known``; it returns each name once.

    A list without names is an error.
    """
    names = list(known)

    def parse(text: str) -> list[str]:
        chosen = [part.strip() for part in text.split(",") if part.strip()]
        if unknown := [name for name in chosen if name not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(names)}")
        if not chosen:
            raise argparse.ArgumentTypeError(f"{text!r} names none of {', '.join(names)}")
        return list(dict.fromkeys(chosen))

    return parse


def parse_positive(text: str) -> float:
    """Return a positive number, which must be finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
