"""Whether the host waits for a GPU to say that a computation has failed.

An operator that raises must read a number back from the device, and the host stands still until all that
was launched before has run. A training step of many small operators would spend most of its time so. Inside
of ``without_waiting`` operators read nothing back: who uses it knows that they cannot fail, or keeps their
status (``potrf_ex``) and looks at it once in a while. Nothing changes for CPU tensors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

_lock = threading.Lock()
_without = 0
_own = threading.local()


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Operators on CUDA tensors do not check what would take a look at the device.

    In this thread, and in those that Python has not started: a backward pass runs in threads of autograd's
    own, for whomever. Other threads wait as ever.
    """
    global _without
    with _lock:
        _without += 1
    _own.without = getattr(_own, "without", 0) + 1
    try:
        yield
    finally:
        _own.without -= 1
        with _lock:
            _without -= 1


def waits() -> bool:
    """Whether operators may read from a device, as far as their callers are concerned."""
    if not _without:
        return True
    return not getattr(_own, "without", 0) and not _is_foreign(threading.current_thread())


def _is_foreign(thread: threading.Thread) -> bool:
    """Python has a class, without a public name, for threads that it has not started."""
    return type(thread).__name__ == "_DummyThread"


def may_look_at(tensor: Tensor) -> bool:
    """Whether operators may read ``tensor``: on a GPU only if somebody waits, and no graph is captured."""
    return tensor.is_cpu or (waits() and not torch.cuda.is_current_stream_capturing())
