"""Where a CUDA kernel is tested: on the CPU, with threads in either order, and on a device, if any."""

from __future__ import annotations

import dataclasses
from typing import Any

import emulated
import pytest
import torch

from lapgrad._kernels.cuda.runtime import items as _items


@dataclasses.dataclass(frozen=True)
class Machine:
    """Launches what a planning function (``plan_...``) returns, on tensors of its device."""

    device: str
    reverse_order: bool = False

    def launch(self, plan: tuple[Any, ...]) -> None:
        if self.device == "cpu":
            emulated.launch(*plan, reverse_order=self.reverse_order)
            return
        from lapgrad._kernels.cuda.runtime import launch as _launch

        _launch.launch(*plan)

    def first_failure(self, plan_with_cell: Any, like: torch.Tensor) -> tuple[int, int] | None:
        """Launch ``plan_with_cell(cell)`` and read what it reports."""
        cell = _items.create_status_cell(like)
        self.launch(plan_with_cell(cell))
        return _items.read_first_failure(cell)


_emulated = (
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
)
_needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MACHINES = [
    pytest.param(Machine("cpu"), id="emulated", marks=_emulated),
    pytest.param(Machine("cpu", reverse_order=True), id="emulated-backwards", marks=_emulated),
    pytest.param(Machine("cuda"), id="device", marks=_needs_device),
]
