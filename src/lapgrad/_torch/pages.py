"""Huge pages for large new tensors on the CPU.

The kernel maps memory in pages of 4 kB, each when it is first written to: a quarter of a microsecond per kB,
four times as long as writing. Linux often has huge pages (2 MB) only for programs that ask for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from torch import Tensor

#: Smaller blocks are mostly memory that the process has used before. As in csrc/base/pages.h.
_LEAST_BYTES = 1 << 23
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
_advise = ctypes.CDLL(None).madvise if _HUGE is not None else None


def use_huge_pages(tensor: Tensor) -> Tensor:
    """``tensor`` itself; if it is large, and on the CPU, the kernel is asked for huge pages."""
    # Tensors without memory (those of torch.compile) are of other types, or raise an error.
    if _advise is None or type(tensor) is not Tensor or tensor.nbytes < _LEAST_BYTES or not tensor.is_cpu:
        return tensor
    with contextlib.suppress(RuntimeError):
        address = tensor.data_ptr()
        begin, end = address + -address % mmap.PAGESIZE, address + tensor.nbytes
        _advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - end % mmap.PAGESIZE - begin), _HUGE)
    return tensor
