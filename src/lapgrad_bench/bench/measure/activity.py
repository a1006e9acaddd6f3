"""The record of the call that a measuring process is making, in memory shared with its watchdog.

A process that hangs or crashes in compiled code cannot report it. Before every call it therefore records
which library it is about to call, and how long that may take. Writing to shared memory takes a microsecond
and wakes no other process, so that even samples of a few milliseconds can be recorded.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapgrad_bench.bench.measure.timing import Sampler

_RECORD = struct.Struct("dd64s192s")
"""Start time, time limit (both in seconds), library, description."""


@dataclass(frozen=True)
class Call:
    """The last call that a process has recorded.

    Attributes:
        library: The library that is called; empty: none, the benchmark prepares something.
        what: A description.
        began: Start time by `time.monotonic`, a clock that all processes of a machine share.
        limit: Seconds that the call may take.
    """

    library: str
    what: str
    began: float
    limit: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the call has taken too long; negative after that."""
        return self.began + self.limit - time.monotonic()


class Activity:
    """A record of calls that keeps nothing, for processes that are not watched."""

    def begin(self, library: str, what: str, extra: float = 0.0) -> None:
        """Record a call with a time limit; the call recorded before has ended.

        Args:
            library: The library that is called; empty: none.
            what: A description.
            extra: Seconds that the call may take beyond the limit of all calls.
        """

    def begin_unlimited(self, what: str) -> None:
        """Record a call without a limit here, such as a peer's turn, whose limit the peer's client checks."""

    def watch(self, sample: Sampler, library: str, what: str, extra: float = 0.0) -> Sampler:
        """Return the sampler, which records a call with its time limit before each sample."""

        def begin_and_sample(calls: int) -> float:
            self.begin(library, what, extra)
            return sample(calls)

        return begin_and_sample

    def pause(self, sample: Sampler, what: str) -> Sampler:
        """Return the sampler of a peer, which records a call without a time limit before each sample."""

        def begin_and_sample(calls: int) -> float:
            self.begin_unlimited(what)
            return sample(calls)

        return begin_and_sample


class SharedActivity(Activity):
    """A record of calls in a file that another process reads.

    Args:
        file: Descriptor of an open file of `SIZE` bytes.
        patience: Seconds that every call may take.
    """

    SIZE = _RECORD.size

    def __init__(self, file: int, patience: float) -> None:
        self._memory, self._patience = mmap.mmap(file, _RECORD.size), patience

    def begin(self, library: str, what: str, extra: float = 0.0) -> None:
        """Record a call with a time limit; the call recorded before has ended."""
        self._write(library, what, self._patience + extra)

    def begin_unlimited(self, what: str) -> None:
        """Record a call without a limit here, such as a peer's turn, whose limit the peer's client checks."""
        self._write("", what, math.inf)

    def _write(self, library: str, what: str, limit: float) -> None:
        self._memory[:] = _RECORD.pack(time.monotonic(), limit, library.encode()[:64], what.encode()[:192])

    def read(self) -> Call:
        """Return the last call."""
        record, again = self._memory[:], b""
        while record != again:  # Read until two reads agree: the other process may be writing.
            record, again = self._memory[:], record
        began, limit, library, what = _RECORD.unpack(record)
        return Call(_decode(library), _decode(what), began, limit)

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


def _decode(stored: bytes) -> str:
    return stored.rstrip(b"\0").decode(errors="replace")
