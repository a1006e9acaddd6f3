"""Stand-ins for the CUDA driver and for cuBLAS are gone when a test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stand_ins
import torch

from lapgrad._kernels.cpu import is_available


@pytest.fixture(autouse=True)
def functions_of_the_core() -> Iterator[None]:
    """Fail a test after which the core would call other functions: the next test may run on a device.

    On a device, a test may be the first that needs a library, whose functions then stay bound.
    """
    if not is_available():
        yield
        return
    before = stand_ins.read_bound_addresses()
    yield
    after = stand_ins.read_bound_addresses()
    may_be_first = torch.cuda.is_available()
    changed = [name for name in after if after[name] != before[name] and (before[name] or not may_be_first)]
    assert not changed, f"the core still calls stand-ins: {changed}"
