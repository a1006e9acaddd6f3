"""Batches as kernels take them (one leading dimension, three strides), and the status of their items.

A kernel that meets a failure writes item and code, as one number, into a *status cell* on the device, if that
number is smaller than what is there (``report_failure`` in ``kernels/batch.cuh``). The cell is read back once
per call, and only by routines that raise. Cells are reused: nothing is set up for a call, and a cell is reset
only after a failure.
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
from lapgrad._torch import synchronisation as _synchronisation

#: The number in a status cell as long as no item has failed.
NOTHING = (1 << 63) - 1

#: The arguments of ``_launch.launch``: stem, kernel, a tensor of its type, grid, threads, bytes, arguments.
Launch = tuple[Any, ...]

#: The part of a launch that depends on the shape alone: kernel, grid, threads, bytes.
Geometry = tuple[str, tuple[int, ...], int, int]


class _ThreadCells(threading.local):
    """Status cells of the current thread by (device, stream): two threads must not report into one cell.

    A thread-local, because PyTorch calls kernels, also in threads of autograd's own, without any argument in
    which cells could be passed.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Tensor] = {}
        #: By the address of a cell: reading through one takes half the time of torch's ``item``.
        self.mailboxes: dict[int, Any] = {}
        self.unused: dict[tuple[int, int], list[DeferredStatus]] = {}


_of_thread = _ThreadCells()


def flatten_batch(A: Tensor) -> Tensor:
    """A with one leading dimension; a copy where its leading dimensions have no common stride."""
    if A.dim() == 3:
        return A
    return A.reshape(A.shape[:-2].numel(), *A.shape[-2:])  # -1 would not do for an empty tensor


def view_batch(A: Tensor) -> Tensor | None:
    """A with one leading dimension, in its own memory; None where that cannot be."""
    if A.dim() == 3:
        return A
    try:
        return A.view(A.shape[:-2].numel(), *A.shape[-2:])
    except RuntimeError:
        return None


def has_block_memory(needed: int, like: Tensor) -> bool:
    """Whether a block on the device of ``like`` may have that many bytes of shared memory."""
    return needed <= _stream.get_block_memory(like.get_device())


def get_status_cell(like: Tensor) -> Tensor | None:
    """Return the status cell of this thread, for the current stream on the device of ``like``.

    None if it must not be read: while a graph is captured, and inside ``without_waiting``.
    """
    if not _synchronisation.may_wait() or _stream.is_capturing():
        return None
    device = like.get_device()
    key = device, _stream.get_current_stream(device)
    cell = _of_thread.cells.get(key)
    if cell is None:
        with torch.inference_mode(False):
            cell = _of_thread.cells[key] = create_status_cell(like)
            if like.is_cuda:
                _of_thread.mailboxes[cell.data_ptr()] = _create_mailbox()
    return cell


def create_status_cell(like: Tensor) -> Tensor:
    """Return a status cell on the device of ``like``, without a failure."""
    return torch.full((), NOTHING, dtype=torch.int64, device=like.device)


class DeferredStatus:
    """A status cell that is copied to the host while the device goes on with other work.

    Like status cells they are reused by thread, device and stream, except for one that was never received.

    Attributes:
        cell: Where kernels report a failure.
        mailbox: What algorithms of the core use to send the cell themselves, in place of ``send``.
    """

    def __init__(self, like: Tensor, unused: list[DeferredStatus]) -> None:
        with torch.inference_mode(False):
            self.cell = create_status_cell(like)
            self.mailbox = _create_mailbox()
        self._unused = unused

    @classmethod
    def acquire(cls, like: Tensor) -> DeferredStatus | None:
        """Return one for the current stream on ``like``'s device; None if nothing may be read back."""
        if not _synchronisation.may_wait() or _stream.is_capturing():
            return None
        device = like.get_device()
        unused = _of_thread.unused.setdefault((device, _stream.get_current_stream(device)), [])
        return unused.pop() if unused else cls(like, unused)

    def send(self) -> Callable[[], tuple[int, int] | None]:
        """Start copying the status to the host; return a function that waits for the copy and reads it."""
        self.mailbox.send(self.cell.data_ptr(), _stream.get_current_stream(self.cell.get_device()))
        return self.receive

    def receive(self) -> tuple[int, int] | None:
        """(item, code) of the first failure, None if there is none. Waits for the copy; once per send."""
        found: int = self.mailbox.receive()
        if found != NOTHING:
            self.cell.fill_(NOTHING)
        self._unused.append(self)
        return None if found == NOTHING else split_status(found)


def _create_mailbox() -> Any:
    """Pinned memory for one number, and the core's functions that copy to it."""
    _libraries.bind_driver()
    place = torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True)
    return core.Mailbox(place, place.data_ptr())


def report_no_failure() -> None:
    """Return None, in place of the function of ``DeferredStatus.send`` where nothing is checked."""


def read_first_failure(cell: Tensor | None) -> tuple[int, int] | None:
    """(item, code) of the first failure in all launches so far, None if there is none; resets the cell."""
    found = read_status(cell)
    return None if found is None else split_status(found)


def split_status(found: int) -> tuple[int, int]:
    """(item, code) from the number by which ``report_failure`` in ``kernels/batch.cuh`` encodes them."""
    return found >> 32, (found & 0xFFFFFFFF) - (1 << 31)


def read_status(cell: Tensor | None) -> int | None:
    """Return the number in a status cell, None if no item has failed; resets the cell."""
    if cell is None:
        return None
    address = cell.data_ptr()
    mailbox = _of_thread.mailboxes.get(address)
    if mailbox is None:
        found = int(cell.item())
    else:
        mailbox.send(address, _stream.get_current_stream(cell.get_device()))
        found = mailbox.receive()
    if found == NOTHING:
        return None
    cell.fill_(NOTHING)
    return found


def get_address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def choose_lanes(n: int) -> int:
    """Return the number of lanes (or registers) for n <= 32 rows or columns: 4, 8, 16 or 32."""
    return 4 if n <= 4 else 8 if n <= 8 else 16 if n <= 16 else 32


def pad_columns(columns: int, dtype: torch.dtype) -> int:
    """Elements of a row of a tile: ``pad_columns`` in ``kernels/batch.cuh``."""
    return columns + 16 // dtype.itemsize


def compute_tile_stride(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Elements between the tiles of two groups: ``kRectangleStride`` in ``kernels/batch.cuh``."""
    itemsize = dtype.itemsize
    return (-(-rows * pad_columns(columns, dtype) * itemsize // 128) * 128 + 16) // itemsize
