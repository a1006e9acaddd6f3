"""The stand-ins for NVIDIA's libraries leave the core as they found it."""

from __future__ import annotations

import ctypes
from typing import Any

import emulated
import pytest
import stand_ins
import torch

from lapgrad._kernels.cpu import core, is_available
from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad._kernels.cuda.small import gelqf_panels as _gelqf_panels

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not is_available(), reason="the functions are bound to the compiled core"),
]

_ADDRESS = ctypes.c_void_p
_OF_EVENT = ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, *[ctypes.c_uint] * 7, _ADDRESS, _ADDRESS, _ADDRESS)
HANDLE = 0x7F00_0000_0040


class Driver:
    """Takes the place of a real driver, which was bound before any stand-in; notes what reaches it."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.destroyed: list[int] = []
        self.callbacks: dict[str, Any] = {
            "cuLaunchKernel": _LAUNCH(self._launch),
            "cuEventDestroy_v2": _OF_EVENT(self._destroy),
        }

    def _launch(self, kernel: int, *_: Any) -> int:
        self.launched.append(kernel)
        return 0

    def _destroy(self, event: int) -> int:
        self.destroyed.append(event)
        return 0


def launch_on_device() -> None:
    assert core.device_launch(HANDLE, (1,), 32, 0, 0, (0,)) == 0


def factorise_emulated() -> None:
    A = torch.randn(1, 20, 30, dtype=torch.float64)
    L, Q = A.new_empty(1, 20, 20), torch.empty_like(A)
    with stand_ins.replace_gpu():
        assert _gelqf_panels.gelqf(L, Q, A) is None
    torch.testing.assert_close(L @ Q, A)


def test_every_function_of_the_core_has_a_stand_in() -> None:
    assert set(stand_ins.make_callbacks()) == {
        *_libraries._DRIVER,
        *(letter + name for letter in "SD" for name in _libraries._CUBLAS),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_bound_is_bound_again(fails: bool) -> None:
    """Functions that were bound before are bound again, also after a failure; or none, if there were none."""
    before = stand_ins.read_bound_addresses()
    with stand_ins.bind_to_core(Driver().callbacks):
        with_driver = stand_ins.read_bound_addresses()
        assert {name for name in before if with_driver[name] != before[name]} == set(Driver().callbacks)
        try:
            with stand_ins.replace_gpu():
                inside = stand_ins.read_bound_addresses()
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert fails
        assert all(inside[name] != with_driver[name] for name in inside)
        assert stand_ins.read_bound_addresses() == with_driver
    assert stand_ins.read_bound_addresses() == before


@pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels")
def test_emulated_and_real_launches_take_turns() -> None:
    """Emulated and real launches each reach their own driver, in either order."""
    driver = Driver()
    with stand_ins.bind_to_core(driver.callbacks):
        for count in (1, 2):
            factorise_emulated()
            launch_on_device()
            assert driver.launched == [HANDLE] * count


def test_a_mailbox_is_destroyed_by_the_driver_that_made_it() -> None:
    """A test that fails keeps its objects alive, until other functions are bound."""
    driver = Driver()
    with stand_ins.bind_to_core(driver.callbacks):
        with stand_ins.replace_gpu():
            mailbox = stand_ins.make_pinned_elsewhere()
        del mailbox
        assert driver.destroyed == []
