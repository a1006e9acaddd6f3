"""Whether operators read a status back from a GPU, for which the host has to wait.

An operator that may raise an error must read a number from the device, and the host waits until everything
launched before has run. A training step of many small operators would spend most of its time waiting. Inside
``without_waiting`` operators read nothing back: the caller knows that they cannot fail, or keeps their status
(``potrf_ex``) and checks it later. Nothing changes for CPU tensors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad._torch.private import is_in_backward


class _Blocks(threading.local):
    """How many ``without_waiting`` blocks the current thread is inside of."""

    count = 0


# These are not passed as arguments, because PyTorch calls operators by itself: its dispatcher, and autograd,
# which runs backward passes of CUDA tensors in threads of its own.
_own = _Blocks()
_lock = threading.Lock()
_in_all_threads = 0


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Operators on CUDA tensors skip every check for which the host would wait for the device.

    This holds in this thread and in the backward passes of all threads, because autograd does not say for
    which thread it runs one. Operators that other threads call still check.
    """
    global _in_all_threads
    with _lock:
        _in_all_threads += 1
    _own.count += 1
    try:
        yield
    finally:
        _own.count -= 1
        with _lock:
            _in_all_threads -= 1


def may_wait() -> bool:
    """Whether the callers of an operator allow it to wait for a device."""
    if not _in_all_threads:
        return True
    return not _own.count and not is_in_backward()


def may_read(tensor: Tensor) -> bool:
    """Whether operators may read ``tensor``: on a GPU not without waiting, nor while a graph is captured."""
    return tensor.is_cpu or (may_wait() and not torch.cuda.is_current_stream_capturing())
