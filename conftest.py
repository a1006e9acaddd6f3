"""What every doctest may use without importing it."""

from typing import Any

import pytest
import torch

import lapgrad


@pytest.fixture(autouse=True)
def names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """Adds `torch` and `lapgrad` to the names of doctests."""
    doctest_namespace.update(torch=torch, lapgrad=lapgrad)
