"""How the processes of a group learn that one of them has failed, and which one.

A rank that raises an error joins the next collective with its status set, and then sends its error to the
others: all of them raise. A rank that dies cannot do that. The others notice it by a broken connection, or
find its process gone. The first rank that notices sets an alarm in the store of the group. Ranks that wait
for a collective read it once per second, so that none waits for ever.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import re
import socket
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from lapgrad import _exceptions

#: Seconds between two reads of the alarm while a rank waits for a collective.
LOOK_EVERY = 1.0
#: Seconds in which a rank that waits answers an alarm.
_ANSWER_WITHIN = 3.0 * LOOK_EVERY
#: The name of the attribute of errors that all ranks raise together.
_SHARED = "is_raised_by_all_ranks"


def get_attempt() -> str:
    """Return how many times torchrun has started this program again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


class Member(NamedTuple):
    """The process of one rank."""

    host: str
    pid: int

    @classmethod
    def describe_self(cls) -> Member:
        """Return host and process id of this process."""
        return cls(socket.gethostname(), os.getpid())

    def is_known_dead(self) -> bool:
        """Return whether the process is known to have ended, which can be found out on this host only."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # A process that its parent has not asked about yet still has an entry, in state Z or X.
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
        return False


class KeyStore(Protocol):
    """The part of torch's stores of keys and values that is used here."""

    def set(self, key: str, value: str) -> None:
        """Set the value of a key, for all ranks."""

    def check(self, keys: list[str]) -> bool:
        """Return whether these keys have been set."""


class Watch:
    """What one rank knows of the processes of its group.

    Args:
        store: The store of the group; None: alarms cannot be raised.
        rank: The own rank.
        members: The processes by rank.
    """

    def __init__(self, store: KeyStore | None, rank: int, members: list[Member]) -> None:
        self._store, self._rank, self._members = store, rank, members
        #: The key of the alarm. An alarm of an earlier attempt does not count.
        self._alarm = f"lapgrad/alarm/{get_attempt()}"

    def check(self) -> None:
        """Raise if a process of this host has ended, or if another rank has raised an alarm.

        Raises:
            ProcessGroupError: It names the rank.
        """
        if self._find_dead() or self._has_alarm():
            raise self.explain("")

    def explain(self, reason: str) -> _exceptions.ProcessGroupError:
        """Tell all ranks of a failure, and return an error that names the ranks that died or are silent."""
        dead = self._find_dead()
        answered = self._raise_alarm()
        # A rank that is busy computing does not answer either, so what is known for certain comes first.
        silent = [rank for rank in range(len(self._members)) if rank not in answered]
        missing = dead or self._find_dead() or silent
        names = ", ".join(self._describe(rank) for rank in missing)
        what = f"{names} has ended or cannot be reached" if missing else "the connection to a rank was lost"
        # gloo's messages begin with a line of its source and end with advice: both are cut off.
        told = re.sub(r"^\[[^]]*\] *", "", reason.strip()).partition(". This is")[0].partition("\n")[0]
        detail = f" ({told.removesuffix('.')})" if told else ""
        error = _exceptions.ProcessGroupError(f"rank {self._rank}: {what}{detail}.", tuple(missing))
        mark_as_shared(error)
        return error

    def _describe(self, rank: int) -> str:
        member = self._members[rank]
        return f"rank {rank} (process {member.pid} on {member.host})"

    def _find_dead(self) -> list[int]:
        return [rank for rank, member in enumerate(self._members) if member.is_known_dead()]

    def _has_alarm(self) -> bool:
        if self._store is None:
            return False
        try:
            return self._store.check([self._alarm])
        except (RuntimeError, ValueError):  # rank 0 keeps the store, and has ended
            return True

    def _raise_alarm(self) -> set[int]:
        """Set the alarm, and return the ranks that answer it."""
        everyone = set(range(len(self._members)))
        if self._store is None:
            return everyone
        try:
            self._store.set(self._alarm, "1")
            self._store.set(f"{self._alarm}/{self._rank}", "1")
            deadline = time.monotonic() + _ANSWER_WITHIN
            waiting = everyone - {self._rank}
            while waiting and time.monotonic() < deadline and not self._find_dead():
                waiting = {rank for rank in waiting if not self._store.check([f"{self._alarm}/{rank}"])}
                time.sleep(0.05)
        except (RuntimeError, ValueError):
            return everyone - {0}
        return everyone - waiting


def wait_for(work: dist.Work, watch: Watch, limit: float, device: torch.device) -> None:
    """Wait for a collective; raise if a rank of it has failed.

    Args:
        work: The collective.
        watch: Looks after the other ranks.
        limit: Seconds after which the rank that is missing counts as failed.
        device: Of the tensors.

    Raises:
        ProcessGroupError: A rank has ended, or has not joined within ``limit`` seconds.
    """
    wait_a_while = _wait_on_host if device.type == "cpu" else _wait_for_device
    begun = time.monotonic()
    while not wait_a_while(work):
        if time.monotonic() - begun > limit:
            raise watch.explain(f"a collective was not joined within {limit:g} s")
        watch.check()
    try:
        work.wait()
    except RuntimeError as error:
        raise watch.explain(str(error)) from error


def _wait_on_host(work: dist.Work) -> bool:
    """Wait for a collective of the host up to ``LOOK_EVERY`` seconds; return whether it has ended."""
    # A wait that has run out of time leaves the collective as it is.
    with contextlib.suppress(RuntimeError):
        work.wait(datetime.timedelta(seconds=LOOK_EVERY))
    return work.is_completed()


def _wait_for_device(work: dist.Work) -> bool:
    """Wait for a collective of a GPU in the same way. (NCCL would abort one whose wait runs out of time.)"""
    begun, pause = time.monotonic(), 1e-5
    while not work.is_completed() and time.monotonic() - begun < LOOK_EVERY:
        time.sleep(pause)
        pause = min(2.0 * pause, 1e-3)
    return work.is_completed()


class Report(NamedTuple):
    """An error of one rank, as it is sent to the others.

    Attributes:
        rank: Whose error it is.
        text: Its type and message.
        pickled: The error itself, if it can be pickled.
    """

    rank: int
    text: str
    pickled: bytes | None

    @classmethod
    def from_error(cls, rank: int, error: BaseException) -> Report:
        """Return the report of an error of this rank."""
        try:
            pickled = pickle.dumps(error) if is_numerical(error) else None
        except Exception:  # an error of a subclass may hold anything
            pickled = None
        return cls(rank, f"{type(error).__name__}: {error}", pickled)

    def make_error(self, of_all: bool) -> BaseException:
        """Return the error that all ranks raise; it names the rank, unless all have failed (``of_all``)."""
        error: BaseException | None = None
        if self.pickled is not None:
            with contextlib.suppress(Exception):  # its class may not be known here
                error = pickle.loads(self.pickled)
        if error is None:
            error = _exceptions.ProcessGroupError(f"rank {self.rank} failed: {self.text}", (self.rank,))
        elif not of_all and error.args:
            error.args = (f"rank {self.rank}: {error.args[0]}", *error.args[1:])
        mark_as_shared(error)
        return error


def is_numerical(error: BaseException) -> bool:
    """Return whether a fit can continue after this error, which all ranks then raise."""
    return isinstance(error, _exceptions.LapgradError) and not isinstance(
        error, _exceptions.ProcessGroupError
    )


def mark_as_shared(error: BaseException) -> None:
    """Note that all ranks know of this error."""
    setattr(error, _SHARED, True)


def is_shared(error: BaseException | None) -> bool:
    """Return whether all ranks know of this error, or of the one that it was raised from."""
    while error is not None:
        if getattr(error, _SHARED, False):
            return True
        error = error.__cause__
    return False
