"""What every doctest may use without importing it, and what collecting the tests leaves behind."""

import gc
from typing import Any

import pytest
import torch

import lapgrad


@pytest.fixture(autouse=True)
def names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """Adds `torch` and `lapgrad` to the names of doctests."""
    doctest_namespace.update(torch=torch, lapgrad=lapgrad)


def pytest_collection_finish() -> None:
    """Leaves modules and tests to no garbage collection: they stay to the end.

    A look through these millions of objects takes a quarter of a second, and timings, measurements of memory
    and PyTorch's tracers ask for one each time.
    """
    gc.collect()
    gc.freeze()
