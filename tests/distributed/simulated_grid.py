"""A grid of processes in one process: every rank is a thread, and the engine computes with whole matrices.

The threads meet at barriers where processes would exchange messages, in the same order as processes do: a
rank that leaves out a call, or makes another one, is an error here and not a hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.factor import factor_on_grid
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.inverse import invert_on_grid
from lapgrad.distributed.blockcyclic.layout import Layout

_Result = TypeVar("_Result")
_SECONDS = 30.0


class _Meeting:
    """A barrier at which all ranks exchange values: each leaves its own, and reads those of the others."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=_SECONDS)
        self._parts: list[Any] = [None] * size

    def exchange(self, rank: int, part: Any) -> list[Any]:
        self._parts[rank] = part
        self._barrier.wait()
        parts = list(self._parts)
        self._barrier.wait()
        return parts

    def abort(self) -> None:
        self._barrier.abort()


class SimulatedEngine:
    """``Engine`` of one of the threads.

    Attributes:
        calls: The routines that were called, with the bytes that this rank holds of their first matrix.
    """

    name = "simulated"
    device = torch.device("cpu")

    def __init__(
        self, meeting: _Meeting, lines: list[list[_Meeting]], rank: int, shape: tuple[int, int]
    ) -> None:
        self._meeting, self._lines, self.rank, self.shape = meeting, lines, rank, shape
        self.size, self.position = shape[0] * shape[1], divmod(rank, shape[1])
        self.calls: list[str] = []

    def potrf(self, A: Blocks) -> int:
        self.calls.append("potrf")
        return factor_on_grid(self, A)

    def potri(self, L: Blocks) -> None:
        self.calls.append("potri")
        invert_on_grid(self, L)

    def potrs(self, L: Blocks, B: Blocks) -> None:
        assert L.layout.row_block == B.layout.row_block
        self._scatter(torch.cholesky_solve(self._gather("potrs", B), self._gather("", L).tril()), B)

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        whole = self._gather("trsm", L).tril()
        factor = whole.mT if transpose else whole
        right = self._gather("", B)
        self._scatter(torch.linalg.solve_triangular(factor, right, upper=transpose, left=not rightside), B)

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        left, right = self._gather("gemm", A), self._gather("", B)
        self._scatter((left.mT if transpose_a else left) @ (right.mT if transpose_b else right), C)

    def transpose(self, A: Blocks, C: Blocks) -> None:
        self._scatter(self._gather("transpose", A).mT, C)

    def sum_over_grid(self, values: Tensor) -> None:
        parts = self._meeting.exchange(self.rank, ("sum", values.clone()))
        assert all(kind == "sum" and part.shape == values.shape for kind, part in parts)
        values.copy_(torch.stack([part for _, part in parts]).sum(0))

    def share_along_row(self, values: Tensor, column: int) -> None:
        values.copy_(self._meet("share", 0, values)[column])

    def share_along_column(self, values: Tensor, row: int) -> None:
        values.copy_(self._meet("share", 1, values)[row])

    def sum_over_column(self, values: Tensor) -> None:
        values.copy_(torch.stack(self._meet("sum", 1, values)).sum(0))

    def _meet(self, kind: str, axis: int, values: Tensor) -> list[Tensor]:
        """Return the values of all processes of this row (axis 0) or column (axis 1)."""
        assert values.is_contiguous()
        meeting = self._lines[axis][self.position[axis]]
        parts = meeting.exchange(self.position[1 - axis], (kind, values.clone()))
        assert all(name == kind and part.shape == values.shape for name, part in parts)
        return [part for _, part in parts]

    def close(self) -> None:
        pass

    def _gather(self, routine: str, blocks: Blocks) -> Tensor:
        """Return the whole matrix; all ranks must ask for the same one."""
        layout, local = blocks
        assert local.shape == layout.local_shape
        assert not local.numel() or local.mT.is_contiguous(), "engines read blocks that are stored by columns"
        if routine:
            self.calls.append(routine)
        parts = self._meeting.exchange(self.rank, (routine, layout, local.detach().clone()))
        whole = torch.full((layout.rows, layout.columns), torch.nan, dtype=local.dtype)
        for name, other, part in parts:
            assert name == routine
            assert (other.rows, other.columns) == (layout.rows, layout.columns)
            whole[other.list_rows()[:, None], other.list_columns()] = part
        return whole

    def _scatter(self, whole: Tensor, blocks: Blocks) -> None:
        layout: Layout = blocks.layout
        blocks.local.copy_(whole[layout.list_rows()[:, None], layout.list_columns()])


def run_on_grid(
    shape: tuple[int, int], block: int, function: Callable[[ProcessGrid], _Result]
) -> list[_Result]:
    """Return what ``function(grid)`` returns on each rank, or raise the error of the first that failed."""
    meeting = _Meeting(shape[0] * shape[1])
    lines = [[_Meeting(shape[1]) for _ in range(shape[0])], [_Meeting(shape[0]) for _ in range(shape[1])]]
    results: list[Any] = [None] * (shape[0] * shape[1])
    errors: list[BaseException | None] = [None] * len(results)

    def run(rank: int) -> None:
        try:
            results[rank] = function(ProcessGrid(SimulatedEngine(meeting, lines, rank, shape), block))
        except BaseException as error:
            errors[rank] = error
            for place in (meeting, *lines[0], *lines[1]):
                place.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [error for error in errors if error is not None]
    # A barrier that another rank has broken is a consequence, not a cause.
    causes = [error for error in found if not isinstance(error, threading.BrokenBarrierError)]
    if causes or found:
        raise (causes or found)[0]
    return results
