"""What a measuring process is doing now, written where the process that watches it can read it.

A process that hangs or crashes in compiled code cannot say so. It therefore writes down which library it is
about to call, and how long that may take, before it does. The record is a page of shared memory: writing to
it takes a microsecond and wakes nobody up, so that samples of a few milliseconds can be watched.
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
"""When it began, how long it may take (seconds), the library, what it does."""


@dataclass(frozen=True)
class Call:
    """Something that a process began.

    Attributes:
        library: Whose code runs; empty: nobody's in particular.
        what: What it does, in words.
        began: By `time.monotonic`, a clock that all processes of a machine share.
        limit: Seconds that it may take.
    """

    library: str
    what: str
    began: float
    limit: float

    @property
    def seconds_left(self) -> float:
        """Until it has taken too long."""
        return self.began + self.limit - time.monotonic()


class Activity:
    """Told what a process begins to do. This one forgets it: nobody watches."""

    def begin(self, library: str, what: str, extra: float = 0.0) -> None:
        """Something begins that takes a limited time, and what was begun before has ended.

        Args:
            library: Whose code runs; empty: nobody's in particular.
            what: What it does, in words.
            extra: Seconds that it may take beyond those that everything may take.
        """

    def begin_unlimited(self, what: str) -> None:
        """Something begins that another limit holds for, such as a peer's turn."""

    def watch(self, sample: Sampler, library: str, what: str, extra: float = 0.0) -> Sampler:
        """The same sampler; each sample is told about before it is taken."""

        def begin_and_sample(calls: int) -> float:
            self.begin(library, what, extra)
            return sample(calls)

        return begin_and_sample

    def pause(self, sample: Sampler, what: str) -> Sampler:
        """The same sampler, of a peer, which has a limit of its own."""

        def begin_and_sample(calls: int) -> float:
            self.begin_unlimited(what)
            return sample(calls)

        return begin_and_sample


class SharedActivity(Activity):
    """Writes what a process begins to do into a file that another process reads.

    Args:
        file: Descriptor of an open file of `SIZE` bytes.
        patience: Seconds that everything may take.
    """

    SIZE = _RECORD.size

    def __init__(self, file: int, patience: float) -> None:
        self._memory, self._patience = mmap.mmap(file, _RECORD.size), patience

    def begin(self, library: str, what: str, extra: float = 0.0) -> None:
        """Something begins that takes a limited time, and what was begun before has ended."""
        self._write(library, what, self._patience + extra)

    def begin_unlimited(self, what: str) -> None:
        """Something begins that another limit holds for, such as a peer's turn."""
        self._write("", what, math.inf)

    def _write(self, library: str, what: str, limit: float) -> None:
        self._memory[:] = _RECORD.pack(time.monotonic(), limit, library.encode()[:64], what.encode()[:192])

    def read(self) -> Call:
        """What was begun last."""
        record, again = self._memory[:], b""
        while record != again:  # the other process may be writing
            record, again = self._memory[:], record
        began, limit, library, what = _RECORD.unpack(record)
        return Call(_text(library), _text(what), began, limit)

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.close()


def _text(stored: bytes) -> str:
    return stored.rstrip(b"\0").decode(errors="replace")
