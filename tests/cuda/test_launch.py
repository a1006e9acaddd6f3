"""Launches through the compiled core: the driver gets the arguments that were passed.

The driver is a stand-in that runs the emulated kernel, or records its arguments.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import emulated
import pytest
import stand_ins
import torch
from tolerances import assert_close, of_order

from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime import solver as _solver
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.stream import has_fast_float64
from lapgrad._kernels.cuda.small import potrf as _potrf_batch

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of the driver"),
    pytest.mark.skipif(not is_available(), reason="launches go through the compiled core"),
]

_DRIVER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
STREAM, REFUSED = 0x7F00_0000_0040, 701


class Driver:
    """Stands in for cuLaunchKernel: kernels are numbered in the order in which they are loaded."""

    def __init__(self) -> None:
        self.kernels: list[tuple[str, str]] = []
        self.geometry: tuple[int, ...] = ()
        self.stream = 0
        self.status = 0

    def load(self, stem: str, name: str, dtype: torch.dtype, device: int) -> int:
        self.kernels.append((stem, emulated.name_instance(name, dtype)))
        return len(self.kernels)

    def launch(self, kernel: int, *rest: Any) -> int:
        *geometry, self.stream, parameters, extra = rest
        assert extra is None
        self.geometry = tuple(geometry)
        if self.status == 0:
            addresses = ctypes.c_void_p(parameters)
            assert emulated.run(*self.kernels[kernel - 1], (*geometry, 0), addresses) is None
        return self.status


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    if emulated.COMPILER is None:
        pytest.skip("needs g++ to emulate kernels")
    made = Driver()
    callback = _DRIVER(made.launch)
    monkeypatch.setattr(_launch, "_load_kernel", made.load)
    monkeypatch.setattr(_stream, "get_current_stream", lambda device: STREAM)
    with stand_ins.bind_to_core({"cuLaunchKernel": callback}):
        yield made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [3, 40])
def test_arguments_arrive(driver: Driver, n: int, dtype: torch.dtype) -> None:
    """A launch with many pointers and strides, of a batch inside of a larger tensor."""
    root = torch.randn(5, n, n + 2, dtype=dtype, generator=torch.Generator().manual_seed(n))
    A = (root @ root.mT + torch.eye(n, dtype=dtype)).expand(2, 5, n, n)[1, ::2]
    L, info = torch.empty_like(A), torch.empty(3, dtype=torch.int32)
    plan = _potrf_batch.plan_factorisation(L, A, True, info, None)
    _launch.launch(*plan)
    assert_close(L, torch.linalg.cholesky(A), of_order(n))
    assert info.tolist() == [0, 0, 0]
    _, _, _, grid, threads, shared, *_ = plan
    assert driver.geometry == (*grid, 1, 1, threads, 1, 1, shared)
    assert driver.stream == STREAM


def test_numbers_with_a_fraction_arrive(driver: Driver) -> None:
    """finish_inverse: the last two arguments are doubles."""
    B, X, weight = torch.eye(3), torch.ones(3, 1), torch.full((1,), 2.0)
    tile_bytes = 32 * 33 * B.element_size()
    _launch.launch(
        "triangle", "finish_inverse<{T}>", B, (1, 1), 256, tile_bytes,
        B.data_ptr(), 9, 3, 3, X.data_ptr(), 3, 1, 1, 1, weight.data_ptr(), 0.5, -0.25,
    )  # fmt: skip
    assert torch.equal(B, torch.eye(3) - 0.25)


def test_nothing_to_do_is_not_launched(driver: Driver) -> None:
    _launch.launch("triangle", "copy_rows<{T}>", torch.empty(0), (0, 4), 256, 0, 0)
    assert driver.kernels == []


def test_mail_comes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status reaches the host, also if torch's default device is a GPU."""
    like = torch.empty(1)
    pageable = SimpleNamespace(
        empty=lambda *size, pin_memory, **options: torch.empty(*size, **options), int64=torch.int64
    )
    monkeypatch.setattr(_items, "torch", pageable)
    monkeypatch.setattr(_items, "core", SimpleNamespace(Mailbox=lambda owner, place: (owner, place)))
    monkeypatch.setattr(_items._libraries, "bind_driver", lambda: None)
    with torch.device("meta"):
        number, place = _items._create_mailbox()
        assert number.is_cpu
        assert number.data_ptr() == place
        assert all(work.is_cpu for work in _solver.allocate_workspace(4, 4, like))


@pytest.mark.parametrize(("ratio", "fast"), [(2, True), (64, False)])
def test_devices_for_pictures_are_slow_in_float64(
    ratio: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(single_to_double_precision_perf_ratio=ratio)
    device = SimpleNamespace(Device=lambda number: SimpleNamespace(properties=properties))
    monkeypatch.setitem(sys.modules, "cuda.core", device)
    assert has_fast_float64.__wrapped__(0) is fast


def test_a_context_is_made_current_for_the_current_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch must not change which device is the current one of the user."""
    bound: list[int] = []

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def set_current(self) -> None:
            bound.append(self.number)

    monkeypatch.setattr(_stream, "_bound", _stream._BoundDevices())
    monkeypatch.setattr(_stream, "get_current_device", lambda: 0)
    for name in ("cuda", "cuda.core"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Device=Device))
    for device in (1, 0, 0):
        _stream.bind_context(device)
    assert bound == [0]


def test_a_refused_launch_names_the_kernel(driver: Driver) -> None:
    driver.status = REFUSED
    with pytest.raises(RuntimeError, match=r"copy_rows<\{T\}> of triangle .*CUresult 701"):
        _launch.launch("triangle", "copy_rows<{T}>", torch.empty(1), (1, 1), 256, 0, *[0] * 7)


@pytest.mark.parametrize(
    ("grid", "arguments", "error"),
    [((1, 1, 1, 1), (0,), ValueError), ((1,), (0,) * 200, ValueError), ((1,), ("0",), TypeError)],
    ids=["grid", "too many", "text"],
)
def test_what_is_no_launch_is_refused(
    driver: Driver, grid: tuple[int, ...], arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        _launch.launch("triangle", "copy_rows<{T}>", torch.empty(1), grid, 256, 0, *arguments)
    assert driver.geometry == ()
