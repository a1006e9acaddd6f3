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
    hide_from_garbage_collection()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Hides the modules of torch that the tests of one file have imported, before those of the next."""
    if nextitem is not None and nextitem.path != item.path:
        hide_from_garbage_collection()


def hide_from_garbage_collection() -> None:
    """Leaves all objects that are alive out of later collections of garbage: most of them stay to the end.

    A look through these millions of objects takes a quarter of a second, and timings, measurements of memory
    and PyTorch's tracers ask for one each time.
    """
    gc.collect()
    gc.freeze()
