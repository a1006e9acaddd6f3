"""A child process that answers requests, each a JSON object on one line, as is its answer."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

_LONGEST_WAIT = 10.0
"""Seconds after which the time limit is read again while waiting for an answer."""


class NoAnswerError(Exception):
    """The process did not answer in time."""


class EndedError(Exception):
    """The process ended; the message says how: `signal SIGSEGV`, or `exit code 3`."""


class GarbledError(Exception):
    """The answer is not JSON; the message quotes it."""


class WorkerProcess:
    """A child process and the pipes to it.

    Args:
        command: Its command line.
        environment: Its environment; None: that of this process.
        stderr: The file for its error messages; None: the stderr of this process.
        pass_fds: File descriptors that it inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._received = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C must reach this process only, which ends its children itself.
        )

    def send(self, request: Mapping[str, Any]) -> None:
        """Send one request.

        Raises:
            EndedError: The process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EndedError(self._describe_end()) from error

    def receive(self, seconds_left: Callable[[], float]) -> dict[str, Any]:
        """Wait for one answer and return it.

        Args:
            seconds_left: Returns how much longer to wait. It is called again when that time is over, because
                the process may have started another call.

        Raises:
            NoAnswerError: No time is left.
            EndedError: The process has ended.
            GarbledError: The answer cannot be read.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                left = seconds_left()
                if not selector.select(min(max(0.0, left), _LONGEST_WAIT)):
                    if seconds_left() <= 0.0:
                        raise NoAnswerError
                    continue
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise EndedError(self._describe_end())
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise GarbledError(repr(line[:80])) from error
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def close(self) -> None:
        """Kill the process."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # The process may have died before it read everything.
                    pipe.close()

    def _describe_end(self) -> str:
        code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
