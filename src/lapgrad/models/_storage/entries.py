"""Entries of descriptions in files, and the types that they must have.

A description is the result of ``config`` of a model or of one of its parts, read back from JSON. Constructors
accept many wrong types (any text counts as true), so the types are checked before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lapgrad import _exceptions


class Entry(NamedTuple):
    """One entry of a description.

    Attributes:
        wanted: What it must be, in words.
        fits: Tells whether a value is that.
    """

    wanted: str
    fits: Callable[[Any], bool]


def check_entries(config: object, entries: Mapping[str, Entry], what: str = "the description") -> None:
    """Raise if a description lacks one of ``entries``, or has it with another type.

    Args:
        config: The description.
        entries: The entries that must exist; there may be others.
        what: What is described, for messages.

    Raises:
        FileFormatError: With the name of the entry.
    """
    if not isinstance(config, Mapping):
        raise _exceptions.FileFormatError(f"{what} is {config!r:.40}; a JSON object was wanted.")
    for name, entry in entries.items():
        if name not in config:
            raise _exceptions.FileFormatError(f"{what}: missing entry {name!r}.")
        if not entry.fits(config[name]):
            raise _exceptions.FileFormatError(
                f"{what}: the entry {name!r} is {config[name]!r:.40}; {entry.wanted} was wanted."
            )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _make_optional(entry: Entry) -> Entry:
    return Entry(f"{entry.wanted} or null", lambda value: value is None or entry.fits(value))


def _make_list(entry: Entry, wanted: str) -> Entry:
    return Entry(wanted, lambda value: isinstance(value, list | tuple) and all(map(entry.fits, value)))


#: The numbers 0 and 1 are accepted too, because callers may have passed them as flags.
FLAG = Entry("true or false", lambda value: isinstance(value, int) and value in (0, 1))
TEXT = Entry("text", lambda value: isinstance(value, str))
INTEGER = Entry("an integer", _is_integer)
NUMBER = Entry("a finite number", _is_number)
PART = Entry("a JSON object", lambda value: isinstance(value, Mapping))
INTEGERS = _make_list(INTEGER, "a list of integers")
FLAGS = _make_list(FLAG, "a list of true and false")
NUMBERS = _make_list(NUMBER, "a list of finite numbers")
NUMBER_OR_NUMBERS = Entry(
    "a finite number, or a list", lambda value: NUMBER.fits(value) or NUMBERS.fits(value)
)
TEXTS = _make_list(TEXT, "a list of texts")
PARTS = _make_list(PART, "a list of JSON objects")
OPTIONAL_INTEGER = _make_optional(INTEGER)
OPTIONAL_NUMBER = _make_optional(NUMBER)
OPTIONAL_INTEGERS = _make_optional(INTEGERS)
BOUNDS = Entry(
    "two numbers or null, and true or false",
    lambda value: isinstance(value, list) and len(value) == 3 and all(map(OPTIONAL_NUMBER.fits, value[:2])),
)
