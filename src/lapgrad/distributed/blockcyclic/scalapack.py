"""The engine of several processes on CPUs: ScaLAPACK, with BLACS over MPI."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_double, c_float, c_int
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic import scalapack_library as _library
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.factor import factor_on_grid
from lapgrad.distributed.blockcyclic.inverse import invert_on_grid
from lapgrad.distributed.blockcyclic.layout import Layout

_LARGEST = 2**31 - 1
_DENSE_MATRIX = 1
_LETTERS = {torch.float32: "s", torch.float64: "d"}
_NUMBERS: dict[torch.dtype, type[c_float] | type[c_double]] = {
    torch.float32: c_float,
    torch.float64: c_double,
}
#: Numbers in one message: sums of more are sent in parts, because BLACS counts in 32-bit integers.
_LONGEST_MESSAGE = 1 << 24


class ScalapackEngine:
    """ScaLAPACK on a grid of the processes that ``mpiexec`` has started.

    Args:
        shape: Rows and columns of the grid; None: the most square grid of all processes.
    """

    name = "scalapack"

    def __init__(self, shape: tuple[int, int] | None = None) -> None:
        self._libraries = _library.load_libraries()
        self.device = torch.device("cpu")
        rank, size, context = c_int(), c_int(), c_int()
        blacs = self._libraries.blacs
        blacs.Cblacs_pinfo(byref(rank), byref(size))  # starts MPI if nobody has
        self.rank, self.size = rank.value, size.value
        self.shape = choose_shape(self.size) if shape is None else shape
        if self.shape[0] * self.shape[1] != self.size:
            raise _exceptions.OptionError(
                f"make_grid: a grid of {self.shape[0]} x {self.shape[1]} needs "
                f"{self.shape[0] * self.shape[1]} processes, and mpiexec has started {self.size}."
            )
        blacs.Cblacs_get(c_int(-1), c_int(0), byref(context))
        blacs.Cblacs_gridinit(byref(context), c_char_p(b"Row"), c_int(self.shape[0]), c_int(self.shape[1]))
        self._context = context.value
        self.position = divmod(self.rank, self.shape[1])

    def describe(self) -> str:
        """Return the file that the routines come from."""
        return self._libraries.path

    def potrf(self, A: Blocks) -> int:
        """Overwrite A by its Cholesky factor."""
        return factor_on_grid(self, A)

    def potri(self, L: Blocks) -> None:
        """Overwrite L by the lower triangle of the inverse of L Lᵀ."""
        invert_on_grid(self, L)

    def potrs(self, L: Blocks, B: Blocks) -> None:
        """Overwrite B by (L Lᵀ)⁻¹ B."""
        self._check("potrs", self._call("potrs", L, b"L", L.layout.rows, B.layout.columns, L, B))

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        """Overwrite B by t(L)⁻¹ B or B t(L)⁻¹."""
        flags = (b"R" if rightside else b"L", b"L", b"T" if transpose else b"N", b"N")
        sizes = (B.layout.rows, B.layout.columns)
        self._call("trsm", L, *flags, *sizes, 1.0, L, B, returns_info=False)

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        """Overwrite C by t(A) t(B)."""
        flags = (b"T" if transpose_a else b"N", b"T" if transpose_b else b"N")
        inner = A.layout.rows if transpose_a else A.layout.columns
        sizes = (C.layout.rows, C.layout.columns, inner)
        self._call("gemm", C, *flags, *sizes, 1.0, A, B, 0.0, C, returns_info=False)

    def transpose(self, A: Blocks, C: Blocks) -> None:
        """Overwrite C by Aᵀ."""
        self._call("tran", C, C.layout.rows, C.layout.columns, 1.0, A, 0.0, C, returns_info=False)

    def sum_over_grid(self, values: Tensor) -> None:
        """Replace values by their sum over all processes.

        The sum is made by one process, which sends it to the others. If each of them added up the numbers,
        results could differ in the last bit, and optimisers that must take the same steps would diverge.
        """
        if self.size == 1:
            return
        # Integers below 2^53 and both kinds of floats are exact in float64.
        message = values.detach().to(torch.float64).contiguous().flatten()
        for part in message.split(_LONGEST_MESSAGE):
            self._libraries.blacs.Cdgsum2d(*self._describe_message(b"All", part), c_int(0), c_int(0))
        self._share(b"All", message, (0, 0))
        values.copy_(message.view(values.shape))

    def share_along_row(self, values: Tensor, column: int) -> None:
        """Overwrite values by those of the process of this row in that column."""
        if self.shape[1] > 1:
            self._share(b"Row", values, (self.position[0], column))

    def share_along_column(self, values: Tensor, row: int) -> None:
        """Overwrite values by those of the process of this column in that row."""
        if self.shape[0] > 1:
            self._share(b"Column", values, (row, self.position[1]))

    def sum_over_column(self, values: Tensor) -> None:
        """Replace values by their sum over the processes of this column."""
        if self.shape[0] > 1:
            add = getattr(self._libraries.blacs, f"C{_LETTERS[values.dtype]}gsum2d")
            for part in values.view(-1).split(_LONGEST_MESSAGE):
                # -1: all processes get the sum.
                add(*self._describe_message(b"Column", part), c_int(-1), c_int(-1))

    def close(self) -> None:
        """Leave MPI. Open MPI reports processes that end without it as failed."""
        self._libraries.blacs.Cblacs_gridexit(c_int(self._context))
        self._libraries.blacs.Cblacs_exit(c_int(0))

    def _share(self, scope: bytes, values: Tensor, source: tuple[int, int]) -> None:
        """Send values of the process at the position ``source`` to the others."""
        letter, blacs = _LETTERS[values.dtype], self._libraries.blacs
        for part in values.view(-1).split(_LONGEST_MESSAGE):
            message = self._describe_message(scope, part)
            if self.position == source:
                getattr(blacs, f"C{letter}gebs2d")(*message)
            else:
                getattr(blacs, f"C{letter}gebr2d")(*message, *map(c_int, source))

    def _describe_message(self, scope: bytes, values: Tensor) -> tuple[Any, ...]:
        """Return the arguments of BLACS: who takes part, and numbers as a matrix of one column."""
        count = c_int(len(values))
        data = ctypes.c_void_p(values.data_ptr())
        return c_int(self._context), c_char_p(scope), c_char_p(b" "), count, c_int(1), data, count

    def _call(self, stem: str, like: Blocks, *arguments: Any, returns_info: bool = True) -> int:
        """Call a routine of Fortran, which takes everything by reference; return its status."""
        dtype = like.local.dtype
        passed: list[Any] = []
        for argument in arguments:
            passed.extend(self._convert(argument, dtype))
        info = c_int()
        if returns_info:
            passed.append(byref(info))
        getattr(self._libraries.scalapack, f"p{_LETTERS[dtype]}{stem}_")(*passed)
        return info.value

    def _convert(self, argument: Any, dtype: torch.dtype) -> list[Any]:
        if isinstance(argument, Blocks):
            one = byref(c_int(1))
            return [ctypes.c_void_p(argument.local.data_ptr()), one, one, self._describe(argument)]
        if isinstance(argument, bytes):
            return [c_char_p(argument)]
        return [byref(_NUMBERS[dtype](argument) if isinstance(argument, float) else c_int(argument))]

    def _describe(self, blocks: Blocks) -> Any:
        """Return the descriptor of a matrix: its sizes, those of blocks, and the leading dimension."""
        layout = blocks.layout
        check_size(layout)
        local = blocks.local
        leading = max(1, local.stride(1) if local.shape[1] > 1 else local.shape[0])
        sizes = (layout.rows, layout.columns, layout.row_block, layout.column_block)
        return (c_int * 9)(_DENSE_MATRIX, self._context, *sizes, 0, 0, leading)

    def _check(self, routine: str, info: int) -> None:
        if info:
            raise RuntimeError(f"ScaLAPACK's {routine} failed with the status {info}.")


def choose_shape(size: int) -> tuple[int, int]:
    """Return rows and columns of the most square grid of so many processes, with rows <= columns."""
    rows = next(rows for rows in range(int(size**0.5), 0, -1) if size % rows == 0)
    return rows, size // rows


def check_size(layout: Layout) -> None:
    """Raise if the part of one process has more entries than 32-bit integers count."""
    rows, columns = layout.local_shape
    if rows * columns > _LARGEST:
        raise _exceptions.SizeError(
            f"A process holds {rows} x {columns} entries of the matrix; ScaLAPACK counts in 32-bit "
            f"integers. Use more processes."
        )
