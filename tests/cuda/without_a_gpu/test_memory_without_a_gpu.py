"""Peak memory on CUDA, counted without a GPU: algorithms ask torch's allocator for the same there.

Not counted is the work space of cuSOLVER, which no stand-in has.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import emulated
import numpy as np
import pytest
import test_memory
import torch
from kernel_packages import CUDA_KERNELS
from stand_ins import replace_gpu
from torch import Tensor
from torch.autograd.profiler import profile

from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.runtime import stream as _stream

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="the algorithms are in the compiled core"),
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
]

#: Operators with algorithms of their own for large matrices. Operators composed of them are not measured.
NAMES = (
    "potrf",
    "trsm",
    "trmm",
    "gemmt",
    "syrk",
    "copyltu",
    "extracttrian",
    "maketrian",
    "gelqf",
    "potri",
    "fused.mvn_nll",
)


def factorise_upper(A: Tensor, code: int) -> None:
    """Factorise positive definite matrices by NumPy, whose memory torch's allocator does not count."""
    for item in A if A.dim() == 3 else A[None]:
        R = item.numpy()
        named = np.triu_indices(len(R))
        R[named] = np.linalg.cholesky(np.triu(R).T + np.triu(R, 1)).T[named]


def measure_peak(function: Callable[[], Any]) -> int:
    """Return the peak of torch's allocator in a call, after a first call that compiles the kernels."""
    gc.collect()
    with profile(profile_memory=True) as recorded:
        result = function()
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        now += event.nbytes()
        most = max(most, now)
    del result
    return most


@pytest.fixture
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors through the kernels for CUDA."""
    for name in list(_kernels._CPU.fill()):
        monkeypatch.delitem(_kernels._CPU, name)
    for name, kernel in CUDA_KERNELS.items():
        monkeypatch.setitem(_kernels._CPU, name, kernel)
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(test_memory, "peak_bytes", measure_peak)
    with replace_gpu():
        monkeypatch.setattr(_cholesky, "factorise_upper", factorise_upper)
        yield


@pytest.mark.usefixtures("_on_a_gpu")
@pytest.mark.parametrize("name", NAMES)
def test_peak_is_within_what_is_said(name: str) -> None:
    for phase, (buffers, in_matrices) in test_memory.read_documented_memory(name).items():
        peak, returned = test_memory.measure_phase(name, phase)
        on_cuda = test_memory.ON_CUDA.get(name, ("", {}))[1].get(phase)
        allowed = buffers * (1.0 if in_matrices else returned) if on_cuda is None else on_cuda
        assert peak <= allowed + test_memory.SLACK, f"{phase}: {peak:.2f} matrices, allowed are {allowed:.2f}"
