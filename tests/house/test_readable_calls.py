"""Calls can be read without looking up the called function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"


def find_bare_flags(text: str) -> Iterator[int]:
    """Yield the lines of calls with more than one boolean that is passed without a name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            flags = [isinstance(a, ast.Constant) and isinstance(a.value, bool) for a in node.args]
            if sum(flags) > 1:
                yield node.lineno


def test_the_search_finds_bare_flags() -> None:
    assert list(find_bare_flags("f(A, True)\nf(A, True, lower=False)\nf(A, True, 1.0, False)")) == [3]


def test_flags_have_names() -> None:
    files = sorted(SOURCES.rglob("*.py"))
    assert len(files) > 200
    found = [f"{file}:{line}" for file in files for line in find_bare_flags(file.read_text())]
    assert not found
