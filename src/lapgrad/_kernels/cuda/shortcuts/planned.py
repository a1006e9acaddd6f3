"""Planned shortcuts: one launch computes the result. The core repeats it for operands of the same layout.

A planned shortcut allocates the result and returns it with the launch, or None where it does not serve. All
of the launch but the addresses must depend on sizes, strides and flags alone, and every address in it must
lie in the memory of the result or of an operand: where an operand had to be copied, there is no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device

#: The result, and the launch that computes it.
Planned = tuple[Tensor, Launch]


def run_planned(
    plan: Callable[..., Planned | None], *arguments: Any
) -> tuple[Tensor, int, tuple[int, ...], int, int, tuple[int | float, ...]] | None:
    """Run a planned shortcut; return the result, and kernel, grid, threads, bytes, arguments of a launch."""
    made = plan(*arguments)
    if made is None:
        return None
    result, launch = made
    _run(result, launch)
    stem, name, like, grid, threads, shared, *values = launch
    return result, _launch.load_kernel(stem, name, like), grid, threads, shared, tuple(values)


@on_its_device
def _run(result: Tensor, launch: Launch) -> None:
    _launch.launch(*launch)
