"""Evaluations of a loss on fewer threads while other programs use the cores.

The compiled core notices such programs and gives its own loops fewer threads (``csrc/base/contention.h``).
torch does not: each of its parallel loops waits for a thread whose core another program has, often for
milliseconds. The loss of a model consists of both kinds of loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lapgrad import _blas
from lapgrad._kernels import cpu as _cpu


class ThreadChoice:
    """Chooses between all threads and fewer, by which of them the last evaluations were faster.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # Seconds of the last evaluation on fewer threads, and on all. Fewer are tried first.
        self._seconds = {True: 0.0, False: 0.0}

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Run a block on the threads that are chosen; torch's number of threads is restored at its end."""
        if not _cpu.is_available():
            yield
            return
        # torch sets the number of a new thread of the program when it is asked for it first.
        all_threads = torch.get_num_threads()
        fewer = _cpu.core.limited_threads()
        takes_fewer = fewer < all_threads and self._seconds[True] <= self._seconds[False]
        began = self._clock()
        try:
            if takes_fewer:
                _blas.use_threads(fewer)
            yield
        finally:
            if takes_fewer:
                _blas.use_threads(all_threads)
            self._seconds[takes_fewer] = self._clock() - began
