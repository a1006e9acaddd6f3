"""Measures in a child process, so that a call that hangs or crashes costs one case and not the whole run.

torch and lapgrad take turns in one process, in compiled code that cannot be interrupted from within. So that
process is a child of the one that plans, prints and writes. It records every call before it makes it
(`activity.py`). If a call takes too long, or the child dies, the case is measured again in a new child,
without the library that was called.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lapgrad_bench.bench.measure.activity import Activity, SharedActivity
from lapgrad_bench.bench.measure.worker_process import EndedError, GarbledError, NoAnswerError, WorkerProcess
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.peers.client import Peers
from lapgrad_bench.bench.watched.requests import Answer, RequestHandler
from lapgrad_bench.common.results import Row
from lapgrad_bench.common.resumption import UsageError

PATIENCE = 120.0
"""Seconds after which a call is given up, by default."""

_LOADING = 120.0
"""Seconds that a new process has at least to import torch, on a busy machine and from a cold disk."""

_NO_FIGURES = ("median_s", "low_s", "high_s", "gemm_fraction", "extra_bytes", "device_s", "value")
"""Fields of a row that are None where a library failed."""


class FailedError(Exception):
    """A call hung, crashed or raised an exception; the message names the library and says how.

    Attributes:
        library: The library that was called; empty: none, the benchmark itself failed.
    """

    def __init__(self, library: str, how: str, what: str) -> None:
        super().__init__(f"{library or 'the benchmark itself'} {how} ({what})")
        self.library = library


class Measurer:
    """A measurer that works in this process: no call can be given up, and an exception ends the run.

    Args:
        peers: Other libraries that take part; their facts are updated.
    """

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self._here = RequestHandler(peers, Activity())

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.peers.__exit__()

    def measure(self, do: str, failed: Mapping[str, str] | None = None, **request: Any) -> Answer:
        """Measure; if a library fails, measure again without it.

        Args:
            do: The kind of request, as in `requests.py`.
            failed: Libraries that are left out from the beginning, and why.
            request: The other entries of the request.

        Returns:
            The answer. Rows of a library that failed have an `error` instead of figures.

        Raises:
            DisagreementError: lapgrad and torch do not agree.
            FailedError: lapgrad failed, or torch.mm, or the benchmark itself.
        """
        left_out = dict(failed or {})
        while True:
            try:
                answer = self.ask({"do": do, "without": sorted(left_out), **request})
            except FailedError as error:
                if error.library in ("", "lapgrad", "torch.mm", *left_out):
                    raise
                left_out[error.library] = str(error)
            else:
                return {**answer, "rows": list(_add_failure_rows(answer["rows"], left_out))}

    def ask(self, request: dict[str, Any]) -> Answer:
        """Send one request and return the answer, without a retry: bars cannot be measured without torch.

        Raises:
            DisagreementError: lapgrad and torch do not agree.
            FailedError: A call hung, crashed or raised an exception.
        """
        return self._here.answer(request)


class WatchedMeasurer(Measurer):
    """A measurer that works in a child process, which is started when needed, and again after a failure.

    Args:
        peers: Other libraries that take part. Their processes are children of the child, and end with it.
        patience: Seconds after which a call is given up; calls of large cases may take longer.
    """

    def __init__(self, peers: Peers, patience: float) -> None:
        super().__init__(peers)
        self._patience = patience
        self._process: WorkerProcess | None = None
        self._record = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._record.truncate(SharedActivity.SIZE)
        self._activity = SharedActivity(self._record.fileno(), patience)

    def __exit__(self, *exception: object) -> None:
        self._end()
        self._activity.close()
        self._record.close()
        super().__exit__()

    def ask(self, request: dict[str, Any]) -> Answer:
        """Send one request and return the answer.

        Raises:
            DisagreementError: lapgrad and torch do not agree.
            FailedError: A call hung, crashed or raised an exception.
        """
        process = self._process or self._start()
        self._activity.begin("", "request")
        try:
            process.send(request)
            answer = process.receive(self._count_seconds_left)
        except NoAnswerError as error:
            call = self._activity.read()
            self._end()
            how = f"did not finish within {call.limit:.3g} s"
            raise FailedError(call.library, how, call.what) from error
        except (EndedError, GarbledError) as error:
            call = self._activity.read()
            self._end()
            raise FailedError(call.library, f"crashed: {error}", call.what) from error
        if "disagreement" in answer:
            raise DisagreementError(answer["disagreement"])
        if "error" in answer:
            call = self._activity.read()
            self._end()  # After an error on a GPU its process cannot be used any more.
            raise FailedError(call.library, f"failed: {answer['error']}", call.what)
        self.peers.facts.update(answer["facts"])
        self.peers.failed_once.update(answer["failed"])
        return answer

    def _start(self) -> WorkerProcess:
        file = self._record.fileno()
        self._process = WorkerProcess([*make_child_command(), str(file)], pass_fds=[file])
        self._activity.begin("", "start", max(0.0, _LOADING - self._patience))
        peers = self.peers
        try:
            self._process.send(
                {
                    "patience": self._patience,
                    "peers": [(spec.library, spec.python) for spec in peers.specs],
                    "device": peers.device,
                    "timeout": peers.timeout,
                    "facts": peers.facts,
                    "failed": sorted(peers.failed_once),
                }
            )
            self._process.receive(self._count_seconds_left)
        except (EndedError, NoAnswerError) as error:
            self._end()
            why = f"it ended: {error}" if isinstance(error, EndedError) else "it did not answer"
            message = f"the process that measures could not be started: {why}. --give-up 0 does without it"
            raise UsageError(message) from error
        return self._process

    def _count_seconds_left(self) -> float:
        return self._activity.read().seconds_left

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def make_measurer(peers: Peers, patience: float) -> Measurer:
    """Return a measurer that gives calls up after this many seconds; 0: one that measures in this process."""
    return WatchedMeasurer(peers, patience) if patience else Measurer(peers)


def make_child_command() -> list[str]:
    """Return the command line of the child, to which the file descriptor of its record is appended."""
    # The module path is passed in the code and not in PYTHONPATH, which would reach the Pythons of peers.
    path = f"import sys; sys.path[:] = {sys.path!r}"
    start = f"{path}; from lapgrad_bench.bench.watched import requests; requests.main()"
    return [sys.executable, "-c", start]


def _add_failure_rows(rows: Iterable[Row], failed: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows, and after each row of lapgrad one with an error for every library that failed."""
    for row in rows:
        yield row
        if row["library"] == "lapgrad":
            for library, why in failed.items():
                empty = {name: None for name in _NO_FIGURES if name in row}
                yield {**row, **empty, "samples": 0, "library": library, "error": why}
