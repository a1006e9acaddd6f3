"""Ctrl-C and the end of a time limit as a request: work goes on to a place where it can be left."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_HANDLED = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody has asked to stop.

    Attributes:
        signal: The signal that asked; 0: nobody has.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that ended because of the signal: 130 after Ctrl-C."""
        return 128 + self.signal if self.signal else 0


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """The first SIGINT or SIGTERM in here is a request; the second SIGINT is a KeyboardInterrupt.

    Elsewhere than in the main thread signals stay what they are.
    """
    request = StopRequest()

    def received(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, received) for number in _HANDLED}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
