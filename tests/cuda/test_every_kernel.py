"""Every kernel of ``make test-cuda-sanitize``, emulated on the CPU, with its memory accesses checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import emulated
import every_kernel
import pytest
import stand_ins
import torch
from kernel_packages import CUDA_KERNELS

from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda.runtime import stream as _stream

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="the algorithms are in the compiled core"),
]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[every_kernel.Kernel]]:
    """Run CUDA kernels emulated on CPU tensors; yields the set of kernels that were launched."""
    found: set[every_kernel.Kernel] = set()
    run = emulated.run

    def remember(stem: str, expression: str, *rest: Any) -> str | None:
        found.add(every_kernel.identify_kernel(stem, expression))
        return run(stem, expression, *rest)

    monkeypatch.setattr(emulated, "run", remember)
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    with stand_ins.replace_gpu(), mock.patch.dict(_kernels._CPU.fill(), CUDA_KERNELS, clear=True):
        yield found


def test_groups_stand_for_all_files() -> None:
    stems = [stem for _, stems in every_kernel.GROUPS.values() for stem in stems]
    assert sorted(stems) == sorted({stem for stem, _ in every_kernel.list_kernels_of_sources()})


@pytest.mark.parametrize("name", every_kernel.GROUPS)
def test_every_kernel_is_launched_and_does_no_wrong_to_memory(
    name: str, launched: set[every_kernel.Kernel]
) -> None:
    every_kernel.run(name, every_kernel.Draw("cpu", torch.float64), launched)
