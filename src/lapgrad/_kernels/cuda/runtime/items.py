"""Batches as kernels see them: one leading dimension, three strides; and the first item that failed.

A kernel that meets a failure lowers a number on the device (``report_failure`` in ``kernels/batch.cuh``),
which is read back once, and only by routines that raise. The number is kept from call to call: nothing is set
up and nothing is reset unless an item failed. Each thread has its own, for each device and stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.native import core
from lapgrad._torch import synchronisation as _waiting

#: What the number is as long as nothing failed.
NOTHING = (1 << 63) - 1

#: What ``_launch.launch`` takes: stem, kernel, a tensor of its type, grid, threads, bytes, the arguments.
Launch = tuple[Any, ...]

#: What of a launch depends on the shape alone: kernel, grid, threads, bytes.
Geometry = tuple[str, tuple[int, ...], int, int]

_kept = threading.local()


def readable(A: Tensor) -> Tensor:
    """A with one leading dimension; a copy where its leading dimensions have no common stride."""
    if A.dim() == 3:
        return A
    return A.reshape(-1, *A.shape[-2:])


def writable(A: Tensor) -> Tensor | None:
    """A with one leading dimension, in its own memory; None where that cannot be."""
    if A.dim() == 3:
        return A
    try:
        return A.view(-1, *A.shape[-2:])
    except RuntimeError:
        return None


def fits(needed: int, like: Tensor) -> bool:
    """Whether a block of the device of ``like`` may have that many bytes of memory."""
    return needed <= _stream.block_memory(like.get_device())


def first_failure_cell(like: Tensor) -> Tensor | None:
    """The number that kernels lower, on the current device.

    None while a graph is captured, and where nobody waits for it.
    """
    if not _waiting.waits() or _stream.being_captured():
        return None
    by_stream: dict[tuple[int, int], Tensor] | None = getattr(_kept, "by_stream", None)
    if by_stream is None:
        by_stream = _kept.by_stream = {}
    device = like.get_device()
    key = device, _stream.current_stream(device)
    cell = by_stream.get(key)
    if cell is None:
        with torch.inference_mode(False):
            cell = by_stream[key] = new_cell(like)
    return cell


def new_cell(like: Tensor) -> Tensor:
    """A number on the device of ``like`` that says that nothing failed."""
    return torch.full((), NOTHING, dtype=torch.int64, device=like.device)


class Question:
    """A number that kernels lower, and its way to the host, on which nothing else has to wait.

    As ``first_failure_cell`` each thread keeps them, for each device and stream; one that was never answered
    is not used again.
    """

    def __init__(self, like: Tensor, kept: list[Question]) -> None:
        with torch.inference_mode(False):
            self.cell = new_cell(like)
            self._mailbox = _mailbox()
        self._kept = kept

    @classmethod
    def about(cls, like: Tensor) -> Question | None:
        """None while a graph is captured, and where nobody waits for the answer."""
        if not _waiting.waits() or _stream.being_captured():
            return None
        by_stream: dict[tuple[int, int], list[Question]] | None = getattr(_kept, "questions", None)
        if by_stream is None:
            by_stream = _kept.questions = {}
        device = like.get_device()
        kept = by_stream.setdefault((device, _stream.current_stream(device)), [])
        return kept.pop() if kept else cls(like, kept)

    def sent(self) -> Callable[[], tuple[int, int] | None]:
        """What is launched so far answers it; the function that is returned waits for that."""
        self._mailbox.send(self.cell.data_ptr(), _stream.current_stream(self.cell.get_device()))
        return self._answer

    def _answer(self) -> tuple[int, int] | None:
        found: int = self._mailbox.receive()
        if found != NOTHING:
            self.cell.fill_(NOTHING)
        self._kept.append(self)
        return None if found == NOTHING else item_and_code(found)


def _mailbox() -> Any:
    """Pinned memory for a number, and the core's way there."""
    _libraries.bind_driver()
    place = torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True)
    return core.Mailbox(place, place.data_ptr())


def no_failure() -> None:
    """The answer where nothing was asked."""


def first_failure(cell: Tensor | None) -> tuple[int, int] | None:
    """(item, code) of the first failure in all that was launched; the number starts anew."""
    found = lowered(cell)
    return None if found is None else item_and_code(found)


def item_and_code(found: int) -> tuple[int, int]:
    """What ``report_failure`` in ``kernels/batch.cuh`` has put into one number."""
    return found >> 32, (found & 0xFFFFFFFF) - (1 << 31)


def lowered(cell: Tensor | None) -> int | None:
    """What kernels lowered the number to, None where nothing failed; the number starts anew."""
    if cell is None:
        return None
    found = int(cell.item())
    if found == NOTHING:
        return None
    cell.fill_(NOTHING)
    return found


def address(tensor: Tensor | None) -> int:
    """Where a tensor lies; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def lanes_for(n: int) -> int:
    """Lanes, or registers, for n <= 32 rows or columns."""
    return 4 if n <= 4 else 8 if n <= 8 else 16 if n <= 16 else 32


def padded(columns: int, dtype: torch.dtype) -> int:
    """Elements of a row of a tile: ``padded`` in ``kernels/batch.cuh``."""
    return columns + 16 // dtype.itemsize


def tile_stride(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Elements between the tiles of two groups: ``kRectangleStride`` in ``kernels/batch.cuh``."""
    itemsize = dtype.itemsize
    return (-(-rows * padded(columns, dtype) * itemsize // 128) * 128 + 16) // itemsize
