"""Turns SIGINT (Ctrl-C) and SIGTERM into a request to stop, so that work can first be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_HANDLED = (signal.SIGINT, signal.SIGTERM)

ACKNOWLEDGEMENT = "stopping after this step; Ctrl-C again quits now"


class StopRequest:
    """Whether a signal has asked to stop; true if one has.

    Attributes:
        signal: The signal; 0: there was none.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """The exit code of a process that a signal has ended: 130 after Ctrl-C, 0 without a signal."""
        return 128 + self.signal if self.signal else 0


@contextlib.contextmanager
def catch_stop_signals(*, acknowledge: bool = True) -> Iterator[StopRequest]:
    """Record the first SIGINT or SIGTERM while the block runs; a second SIGINT is a KeyboardInterrupt.

    In other threads than the main one signals are not changed.

    Args:
        acknowledge: Say on standard error, at once, that the first signal was seen. Worker processes, which
            receive Ctrl-C together with the process that started them, leave that to it.
    """
    request = StopRequest()

    def record_signal(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number
        if acknowledge:
            # Not print(): the signal may have come in the middle of one, and streams are not re-entrant.
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), f"\n{ACKNOWLEDGEMENT}\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, record_signal) for number in _HANDLED}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
