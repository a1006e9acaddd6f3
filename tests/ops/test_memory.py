"""Memory: the peak of every operator is what its docstring says."""

from __future__ import annotations

import functools
import inspect
import json
import mmap
import re
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device import DEVICE
from fresh_process import get_output, run
from samples import MAKERS, OPERATORS
from torch import Tensor

from lapgrad_bench.bench.measure.memory import (
    EVERY_BUFFER_MAPPED,
    can_measure_memory,
    measure_mapped_bytes,
    measure_peak_bytes,
)

pytestmark = pytest.mark.skipif(
    not can_measure_memory(DEVICE), reason="this system does not tell peak memory"
)

N = 1000
MATRIX_BYTES = N * N * 8
#: Of a matrix: panels that BLAS packs, vectors beside matrices, pages around a buffer.
SLACK = 0.1

#: One long series; on a GPU, where one has a single block of threads, many.
_SERIES = (N * N // 2, 2) if DEVICE.type == "cpu" else (N // 2, N, 2)

#: Where they are not square matrices.
_OPERAND_SHAPES = {
    "makediag": ((N,),),
    "maketrian": ((N * (N + 1) // 2,),),
    "fused.mvn_nll": ((N, N), (N, 1)),
    "fused.kalman_nll": (_SERIES, (1, 1), (2, 1), (1, 1), (2, 2), (1,), (1, 1)),
    "linalg.cca": ((2 * N, N), (2 * N, N)),
    "linalg.lda": ((2 * N, N),),
}
#: Flags without a default.
_FLAGS: dict[str, dict[str, Any]] = {
    "linalg.eigh_fn": {"f": "sqrt"},
    "linalg.pca": {"k": N},
    "linalg.lda": {"labels": torch.arange(2 * N, device=DEVICE) % 4},
}

_LIBRARY = "the work space of cuSOLVER"
_INVERTED = "inverses of diagonal blocks, and products with them"
_COMPOSITE = "the gradient is a sequence of torch's operators, each with a buffer for its result"

#: The peak on CUDA, in matrices, at most, where it is not that of the docstring, and why.
ON_CUDA: dict[str, tuple[str, dict[str, float]]] = {
    "potrf": (f"{_LIBRARY}; {_INVERTED}", {"forward": 2, "overwrite": 1, "backward": 4}),
    "potrf_ex": (f"{_LIBRARY}; {_INVERTED}", {"forward": 2, "overwrite": 1, "backward": 4}),
    "trsm": (_INVERTED, {"forward": 2, "overwrite": 1}),
    "gemmt": ("cuBLAS's triangular product does not read a transposed factor", {"backward": 3}),
    "copyltu": (_COMPOSITE, {"backward": 3}),
    "gelqf": (f"Gram matrices, their factors and {_INVERTED}; {_LIBRARY}", {"forward": 6, "backward": 3}),
    "linalg.lstsq": ("of gelqf", {"forward": 6}),
    "potri": (_INVERTED, {"forward": 3, "overwrite": 2, "backward": 2}),
    "linalg.cho_solve": (f"torch.linalg returns new tensors; {_COMPOSITE}", {"forward": 3, "backward": 7}),
    "linalg.logdet_psd": ("of potrf and potri", {"forward": 2, "overwrite": 1, "backward": 3}),
    "linalg.solve_psd": ("of potrf and cho_solve", {"forward": 4, "backward": 6}),
    "linalg.inverse_psd": ("of potrf and potri", {"forward": 3, "overwrite": 2, "backward": 3}),
    "fused.mvn_nll": ("of potrf and potri", {"forward": 2, "overwrite": 1, "backward": 3}),
    "fused.kalman_nll": ("the moments of all steps of series that are short", {"backward": 2}),
    "gesvd": (
        f"steps of the polar decomposition, each of two LQ; {_COMPOSITE}",
        {"forward": 14.5, "backward": 8.1},
    ),
    "pstrf": (f"torch operations on both triangles; {_COMPOSITE}", {"forward": 4, "backward": 7}),
    "gesv": ("torch.linalg: the factors, copies of operands, results", {"forward": 6, "backward": 4}),
    "inverse": ("torch.linalg: the factors, an identity, results", {"forward": 5, "overwrite": 4}),
    "det": (f"torch.linalg: the factors; {_COMPOSITE}", {"forward": 3.4, "backward": 7}),
    "slogdet": (f"torch.linalg: the factors; {_COMPOSITE}", {"forward": 3.4, "backward": 7}),
    "syevd": (f"the work space of torch.linalg.eigh; {_COMPOSITE}", {"forward": 7.1, "backward": 8}),
    "linalg.eigh_fn": ("of syevd", {"forward": 7.1}),
    "linalg.pca": ("of syevd", {"forward": 9.1, "backward": 9}),
    "linalg.cca": ("of gesvd", {"forward": 21.5, "backward": 10}),
    "linalg.lda": ("of potrf and trsm", {"forward": 5, "backward": 5}),
}


def read_documented_memory(name: str) -> dict[str, tuple[float, bool]]:
    """Return the Memory line of a docstring: "forward 1 (0 with overwrite), backward 1".

    Buffers are counted in units of what is returned, or in matrices: "forward 1 n^2 (0 with overwrite)". The
    second entry says which.
    """
    text = inspect.getdoc(OPERATORS[name].fn) or ""
    number = r"(\d+(?:\.\d)?)( n\^2)?"
    line_of_memory = rf"^Memory:\n +forward {number}(?: \((\d+) with overwrite\))?, backward {number}$"
    found = re.search(line_of_memory, text, re.MULTILINE)
    assert found is not None, f"{name} has no Memory line"
    forward, forward_unit, overwrite, backward, backward_unit = found.groups()
    line = {
        "forward": (float(forward), forward_unit is not None),
        "backward": (float(backward), backward_unit is not None),
    }
    return line if overwrite is None else {**line, "overwrite": (int(overwrite), forward_unit is not None)}


def measure() -> dict[str, dict[str, tuple[float, float]]]:
    """For each operator and phase: the peak, and the memory of what is returned, in matrices."""
    return {
        name: {phase: measure_phase(name, phase) for phase in read_documented_memory(name)}
        for name in OPERATORS
    }


def measure_phase(name: str, phase: str) -> tuple[float, float]:
    case = OPERATORS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = _OPERAND_SHAPES.get(name, ((N, N),) * len(case.kinds))
    args = [
        MAKERS["general" if len(shape) == 1 else kind](shape, generator)
        for kind, shape in zip(case.kinds, shapes, strict=True)
    ]
    if name in ("trsm", "potri", "linalg.cho_solve"):
        args[0] = torch.eye(N, dtype=torch.float64, device=DEVICE) + args[0] / N
    flags = _FLAGS.get(name, {})
    if phase == "forward":
        return _measure_peak(lambda: case.fn(*args, **flags))
    if phase == "overwrite":
        assert case.overwrites is not None
        target = args[case.overwrites].clone()
        values, args[case.overwrites] = args[case.overwrites], target

        def overwrite() -> Any:
            target.copy_(values)
            return case.fn(*args, overwrite=True)

        return _measure_peak(overwrite)
    for arg in args:
        arg.requires_grad_()
    results = case.fn(*args, **flags)
    # The sign of a determinant requires a gradient, too, but is constant.
    of_interest = results.logabsdet if name == "slogdet" else results
    result = next(part for part in _list_tensors(of_interest) if part.requires_grad)
    cotangent = torch.ones_like(result)
    return _measure_peak(lambda: torch.autograd.grad(result, args, cotangent, retain_graph=True), cotangent)


def peak_bytes(function: Callable[[], Any]) -> int:
    return measure_mapped_bytes(function) if DEVICE.type == "cpu" else measure_peak_bytes(function, DEVICE)


def _measure_peak(function: Any, cotangent: Tensor | None = None) -> tuple[float, float]:
    shared = set() if cotangent is None else {cotangent.data_ptr()}
    returned = 0

    def count_call() -> Any:
        nonlocal returned
        result = function()
        returned = sum(
            t.untyped_storage().nbytes() for t in _list_tensors(result) if t.data_ptr() not in shared
        )
        return result

    return peak_bytes(count_call) / MATRIX_BYTES, returned / MATRIX_BYTES


def _list_tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@functools.cache
def _measure_in_a_fresh_process() -> dict[str, dict[str, tuple[float, float]]]:
    """Measure address space, which only the process itself changes (see ``measure_mapped_bytes``)."""
    code = "import json, test_memory; print(json.dumps(test_memory.measure()))"
    return json.loads(get_output(code, **EVERY_BUFFER_MAPPED))


def _get_measurement(name: str, phase: str) -> tuple[float, float]:
    """Return the measured peaks; on a GPU the allocator counts them, so that no fresh process is needed."""
    return _measure_in_a_fresh_process()[name][phase] if DEVICE.type == "cpu" else measure_phase(name, phase)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "overwrite", "backward"])
@pytest.mark.parametrize("name", OPERATORS)
def test_peak_is_what_the_docstring_says(name: str, phase: str) -> None:
    line = read_documented_memory(name)
    if phase not in line:
        assert "overwrite" not in inspect.signature(OPERATORS[name].fn).parameters
        return
    peak, returned = _get_measurement(name, phase)
    on_cuda = ON_CUDA.get(name, ("", {}))[1].get(phase)
    if DEVICE.type == "cuda" and on_cuda is not None:
        assert peak <= on_cuda + SLACK, f"{peak:.2f} matrices, on CUDA at most {on_cuda:.2f}"
        return
    buffers, in_matrices = line[phase]
    expected = buffers * (1.0 if in_matrices else returned)
    assert expected - SLACK <= peak <= expected + SLACK, f"{peak:.2f} matrices, documented are {expected:.2f}"


def check_measure() -> None:
    """Check measured peaks of functions with known peaks; runs in a process of its own."""
    megabyte = 2**20
    assert measure_mapped_bytes(lambda: None) == 0
    for size in (64, 8, 1):  # An earlier, larger peak does not hide a later, smaller one.
        buffers = measure_mapped_bytes(lambda size=size: torch.empty(size * megabyte, dtype=torch.uint8))
        assert 0 <= buffers - size * megabyte <= 8192
    freed = measure_mapped_bytes(lambda: torch.zeros(megabyte).add(1).sum())
    assert 0 <= freed - 8 * megabyte <= 16384
    with tempfile.TemporaryFile() as file:
        file.truncate(64 * megabyte)
        pages = mmap.mmap(file.fileno(), 64 * megabyte)

        def read_again() -> None:
            pages.madvise(mmap.MADV_DONTNEED)  # as if the system had taken them
            assert len(set(pages[:: mmap.PAGESIZE])) == 1

        assert measure_mapped_bytes(read_again) == 0


@pytest.mark.cpu
def test_measure_is_exact_and_does_not_depend_on_pages() -> None:
    get_output("import test_memory; test_memory.check_measure()", **EVERY_BUFFER_MAPPED)


@pytest.mark.cpu
def test_measure_needs_its_setting() -> None:
    done = run(
        "from lapgrad_bench.bench.measure.memory import *; measure_mapped_bytes(int)",
        MALLOC_MMAP_THRESHOLD_="1048576",
    )
    assert "RuntimeError: measure_mapped_bytes needs a process started with" in done.stderr
