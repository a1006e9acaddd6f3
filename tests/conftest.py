"""Which tests run on which device, and the seed of each.

Tests marked ``cpu`` are left out on any other device. Every test draws the same random numbers in every run,
alone or among others; ``LAPGRAD_TEST_SEED=1`` gives all of them other numbers.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from device import DEVICE
from paths import PATHS

import lapgrad

#: Programs that tests start as processes, stand-ins for other libraries, and a plugin of pytest.
collect_ignore = ["bench/fake_peers", "bench/fake_processes", "sanitized_core.py"]


def pytest_configure(config: pytest.Config) -> None:
    # How busy this machine is must not decide how many threads a test has.
    os.environ.setdefault("LAPGRAD_CONTENTION", "off")
    # Background jobs of a shell ignore SIGINT, and their children inherit that. Tests interrupt processes.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if DEVICE.type not in ("cpu", "cuda"):
        raise pytest.UsageError(f"LAPGRAD_TEST_DEVICE={DEVICE}: the tests run on cpu or cuda")
    if DEVICE.type == "cuda":
        if not torch.cuda.is_available():
            raise pytest.UsageError(
                f"LAPGRAD_TEST_DEVICE={DEVICE}: torch {torch.__version__} sees no CUDA device"
            )
        # A machine with a GPU need not have a compiler for the core: these tests do not run on it.
        config.addinivalue_line(
            "filterwarnings", "ignore:lapgrad's compiled core is not available:RuntimeWarning"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _chooses_its_own_path(item):
            item.add_marker(pytest.mark.cpu)
    # Several processes share the tests. They end together if nothing that takes long is left for the end.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if DEVICE.type == "cpu":
        return
    left_out = [item for item in items if item.get_closest_marker("cpu")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("cpu")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    seed = zlib.crc32(f"{os.environ.get('LAPGRAD_TEST_SEED', '0')} {item.name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    # Not torch.manual_seed: where CUDA is not initialised, it keeps the stack of every call until it is.
    torch.default_generator.manual_seed(seed)
    if DEVICE.type == "cuda":
        torch.cuda.manual_seed_all(seed)


@pytest.fixture
def overrides_removed() -> Iterator[None]:
    """The test starts and ends without the overrides of ``lapgrad.accelerate()``."""
    lapgrad.accelerate.off()
    lapgrad.accelerate.stats(reset=True)
    yield
    lapgrad.accelerate.off()


def _chooses_its_own_path(item: pytest.Item) -> bool:
    """Return whether a test runs on another path through the compiled core than the default one."""
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        return False
    path, isa = parameters.params.get("path"), parameters.params.get("isa")
    return (path in PATHS and path != "default") or bool(isa)
