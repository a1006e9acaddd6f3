"""Products and triangular solves on a grid of GPUs: cuBLASMp, through ``nvmath.bindings``."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks

# Enumerations of cuBLAS.
_NO, _TRANSPOSED = 0, 1
_LEFT, _RIGHT = 0, 1
_LOWER, _NON_UNIT = 0, 0
_ROW_MAJOR = 1
DATA_TYPES = {torch.float32: 0, torch.float64: 1}
_COMPUTE_TYPES = {torch.float32: 68, torch.float64: 70}
_NUMBERS: dict[torch.dtype, type[ctypes.c_float] | type[ctypes.c_double]] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}

#: run(sizes of the workspaces on device and host, call with their addresses and sizes)
Runner = Callable[[tuple[int, int], Callable[..., None]], None]


class GridProducts:
    """cuBLASMp on a grid of GPUs.

    Args:
        communicator: ``ncclComm_t`` as a number.
        shape: Rows and columns of the grid.
        stream: On which it computes, as a number.
        run: Calls a routine with workspaces, on that stream.
    """

    def __init__(self, communicator: int, shape: tuple[int, int], stream: int, run: Runner) -> None:
        self._library, self._run = load_bindings("cublasMp"), run
        try:
            self._handle = self._library.create(stream)
            self._grid = self._library.grid_create(*shape, _ROW_MAJOR, communicator)
        except RuntimeError as error:
            raise _exceptions.MissingDependencyError(
                f"Triangular solves and products on a grid of GPUs need cuBLASMp 0.8 or later with NCCL "
                f"2.29 or later, and torch {torch.__version__} has NCCL {torch.cuda.nccl.version()}: "
                f"{error}. pip install nvidia-cublasmp-cu13"
            ) from error

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        """Overwrite B by t(L)⁻¹ B or B t(L)⁻¹."""
        dtype = B.local.dtype
        with self._describe(L) as of_factor, self._describe(B) as of_values:
            arguments = (
                self._handle,
                _RIGHT if rightside else _LEFT,
                _LOWER,
                _TRANSPOSED if transpose else _NO,
                _NON_UNIT,
                B.layout.rows,
                B.layout.columns,
                *_store_number(1.0, dtype),
                *of_factor,
                *of_values,
                _COMPUTE_TYPES[dtype],
            )
            self._call("trsm", arguments)

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        """Overwrite C by t(A) t(B)."""
        dtype = C.local.dtype
        inner = A.layout.rows if transpose_a else A.layout.columns
        with self._describe(A) as left, self._describe(B) as right, self._describe(C) as result:
            arguments = (
                self._handle,
                _TRANSPOSED if transpose_a else _NO,
                _TRANSPOSED if transpose_b else _NO,
                C.layout.rows,
                C.layout.columns,
                inner,
                *_store_number(1.0, dtype),
                *left,
                *right,
                *_store_number(0.0, dtype),
                *result,
                _COMPUTE_TYPES[dtype],
            )
            self._call("gemm", arguments)

    def transpose(self, A: Blocks, C: Blocks) -> None:
        """Overwrite C by Aᵀ."""
        dtype = C.local.dtype
        C.local.zero_()
        with self._describe(A) as of_operand, self._describe(C) as of_result:
            sizes = (C.layout.rows, C.layout.columns)
            numbers = _store_number(1.0, dtype), _store_number(0.0, dtype)
            self._call(
                "geadd",
                (self._handle, _TRANSPOSED, *sizes, *numbers[0], *of_operand, *numbers[1], *of_result),
            )

    def close(self) -> None:
        """Free the handle."""
        self._library.grid_destroy(self._grid)
        self._library.destroy(self._handle)

    def _call(self, routine: str, arguments: tuple[Any, ...]) -> None:
        plain = tuple(a.address if isinstance(a, _Number) else a for a in arguments)
        sizes = getattr(self._library, f"{routine}_buffer_size")(*plain)
        self._run(sizes, lambda *workspaces: getattr(self._library, routine)(*plain, *workspaces))

    @contextlib.contextmanager
    def _describe(self, blocks: Blocks) -> Iterator[tuple[int, int, int, int]]:
        """Yield address, first row and column (from 1), and descriptor of a matrix."""
        layout = blocks.layout
        descriptor = self._library.matrix_descriptor_create(
            layout.rows,
            layout.columns,
            layout.row_block,
            layout.column_block,
            0,
            0,
            max(1, layout.local_shape[0]),
            DATA_TYPES[blocks.local.dtype],
            self._grid,
        )
        try:
            yield blocks.local.data_ptr(), 1, 1, descriptor
        finally:
            self._library.matrix_descriptor_destroy(descriptor)


class _Number:
    """A number in memory, for routines that take addresses."""

    def __init__(self, value: float, dtype: torch.dtype) -> None:
        self._stored = _NUMBERS[dtype](value)
        self.address = ctypes.addressof(self._stored)


def _store_number(value: float, dtype: torch.dtype) -> tuple[_Number]:
    return (_Number(value, dtype),)


def load_bindings(name: str) -> Any:
    """Return ``nvmath.bindings.cublasMp`` or ``cusolverMp``.

    Raises:
        MissingDependencyError: nvmath-python is not installed.
    """
    try:
        from nvmath import bindings
    except ImportError as error:
        raise _exceptions.MissingDependencyError(
            "A grid of GPUs needs cuSOLVERMp and cuBLASMp through nvmath-python: "
            "pip install 'nvmath-python[cu13-distributed]'"
        ) from error
    return getattr(bindings, name)
