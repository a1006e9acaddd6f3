"""A communicator of the NCCL that torch has loaded, for libraries that exchange messages themselves."""

from __future__ import annotations

import ctypes

import torch
import torch.distributed as dist

from lapgrad import _exceptions

_SUCCESS = 0


class _UniqueId(ctypes.Structure):
    """The identifier by which the processes of a communicator find each other; the first process makes it."""

    _fields_ = (("content", ctypes.c_byte * 128),)


class Communicator:
    """All processes of torch's default group (or this one alone), each with its current GPU.

    Attributes:
        rank, size: The number of this process, and how many there are.
        handle: ``ncclComm_t`` as a number.
    """

    def __init__(self) -> None:
        is_alone = not dist.is_initialized()
        self.rank, self.size = (0, 1) if is_alone else (dist.get_rank(), dist.get_world_size())
        self._library = _load_nccl()
        unique = _UniqueId()
        if self.rank == 0:
            self._check("ncclGetUniqueId", self._library.ncclGetUniqueId(ctypes.byref(unique)))
        if self.size > 1:
            message = [bytes(unique)]
            dist.broadcast_object_list(message, src=0)
            unique = _UniqueId.from_buffer_copy(message[0])
        found = ctypes.c_void_p()
        make = self._library.ncclCommInitRank
        make.argtypes = [ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int]
        self._check("ncclCommInitRank", make(ctypes.byref(found), self.size, unique, self.rank))
        self.handle = found.value or 0

    def close(self) -> None:
        """Free it. All processes must do so."""
        if self.handle:
            self._library.ncclCommDestroy(ctypes.c_void_p(self.handle))
            self.handle = 0

    def _check(self, routine: str, status: int) -> None:
        if status != _SUCCESS:
            explain = self._library.ncclGetErrorString
            explain.restype = ctypes.c_char_p
            raise RuntimeError(f"{routine} failed on process {self.rank}: {explain(status).decode()}.")


def _load_nccl() -> ctypes.CDLL:
    torch.cuda.init()
    try:
        return ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise _exceptions.MissingDependencyError(
            "make_grid: NCCL is not there; torch for CUDA on Linux brings it: pip install torch"
        ) from error
