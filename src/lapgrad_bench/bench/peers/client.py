"""Starts other libraries, each in a process and a Python of its own, and sends them requests.

A peer runs `worker/` and answers one request at a time. Between its turns the process is stopped, so that
threads that spin while they wait do not slow the others down. If something goes wrong (there is no such
Python, the library does not load, the process dies or does not answer), the reason is stored and the others
go on without the peer.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lapgrad_bench.bench.measure.worker_process import EndedError, GarbledError, NoAnswerError, WorkerProcess

_WORKER = Path(__file__).with_name("worker")

LIBRARIES = ("jax", "tensorflow", "mxnet")
"""Libraries that operators are compared with."""
LIBRARIES_OF_MODELS = ("gpytorch", "gpy", "gpflow")
"""Libraries that models are compared with."""
_MODULES = {"gpy": "GPy"}
"""The name of the module, where it is not that of the library."""

TIMEOUT = 180.0
"""Seconds within which a request has to be answered; compiling a large case takes some time."""


_LOADING = 60.0
"""Seconds that a library has at least to be imported, on a busy machine and from a cold disk."""


class PeerError(Exception):
    """A peer cannot continue; the message says why.

    Attributes:
        library: The library that runs in its process.
    """

    def __init__(self, library: str, why: str) -> None:
        super().__init__(why)
        self.library = library


@dataclass(frozen=True)
class PeerSpec:
    """A library and the path of the Python that has it; None: the Python that runs this."""

    library: str
    python: str | None = None

    @classmethod
    def parse(cls, text: str, known: Sequence[str] = LIBRARIES) -> PeerSpec:
        """Return the peer of `jax` or `jax=/path/to/python`; `known` are the libraries that are allowed.

        Example:
            >>> PeerSpec.parse("jax=/opt/jax/bin/python")
            PeerSpec(library='jax', python='/opt/jax/bin/python')
        """
        library, separator, python = text.partition("=")
        if library not in known or (separator and not python):
            wanted = f"one of {', '.join(known)}, alone or as {known[0]}=/path/to/python, was wanted"
            raise ValueError(f"{text!r} is not a peer: {wanted}")
        return cls(library, python or None)

    @property
    def is_installed(self) -> bool:
        """Whether the library is installed in this Python."""
        return importlib.util.find_spec(_MODULES.get(self.library, self.library)) is not None

    def __str__(self) -> str:
        return f"{self.library}={self.python}" if self.python else self.library


class Peer(WorkerProcess):
    """The process of one library, with a fixed number of threads."""

    def __init__(self, spec: PeerSpec, threads: int, device: str, timeout: float = TIMEOUT) -> None:
        self.library, self._timeout = spec.library, timeout
        python = self._find_python(spec)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            command = [python, str(_WORKER), spec.library, device, str(threads)]
            super().__init__(command, environment=_make_environment(threads, device), stderr=self._complaints)
        except OSError as error:
            self._complaints.close()
            raise self._make_error(f"{python} cannot be run: {error.strerror}") from error
        except BaseException:
            self._complaints.close()
            raise
        try:
            self.facts = self._receive_answer("while it was loaded", max(timeout, _LOADING))
            if "missing" in self.facts:
                raise self._make_error(self.facts["missing"])
            if self.facts["device"] != device:
                raise self._make_error(f"{self.library} {self.facts['version']} sees no {device} device")
            self._pause()
        except BaseException:
            self.close()
            raise

    def _find_python(self, spec: PeerSpec) -> str:
        if spec.python is None and not spec.is_installed:
            raise self._make_error(
                f"not installed in this Python; --peer {spec.library}=/path/to/python names one that has it"
            )
        python = spec.python or sys.executable
        if not Path(python).exists():
            raise self._make_error(f"there is no {python}")
        return python

    def ask(self, what: str, **request: Any) -> dict[str, Any]:
        """Send one request and return the answer.

        Args:
            what: What is asked for, for error messages.
            request: The entries of the request, as in `worker/__init__.py`.

        Raises:
            PeerError: The process died, did not answer in time, or could not do it.
        """
        self.signal(signal.SIGCONT)
        try:
            self.send(request)
        except EndedError as error:
            raise self._make_error(self._explain_end(what, error)) from error
        answer = self._receive_answer(what, self._timeout)
        if "error" in answer:
            raise self._make_error(f"failed {what}: {answer['error']}")
        self._pause()
        return answer

    def close(self) -> None:
        """End the process."""
        super().close()
        self._complaints.close()

    def _receive_answer(self, what: str, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout
        try:
            return self.receive(lambda: end - time.monotonic())
        except NoAnswerError as error:
            raise self._make_error(f"no answer within {timeout:g} s {what}") from error
        except EndedError as error:
            raise self._make_error(self._explain_end(what, error)) from error
        except GarbledError as error:
            raise self._make_error(f"answered {error} {what}") from error

    def _explain_end(self, what: str, how: EndedError) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"its process ended {what} ({how}{': ' + lines[-1][:200] if lines else ''})"

    def _make_error(self, why: str) -> PeerError:
        return PeerError(self.library, why)

    def _pause(self) -> None:
        self.signal(signal.SIGSTOP)


@dataclass
class Peers:
    """The peers of a run. They are started when they are first needed.

    Attributes:
        specs: The libraries that take part.
        device: Where they compute.
        timeout: Seconds within which a request has to be answered.
        facts: For the results file, by library: {"version", "python", ...}, or {"missing": why}.
        failed_once: Libraries that have hung or died once.
    """

    specs: Sequence[PeerSpec] = ()
    device: str = "cpu"
    timeout: float = TIMEOUT
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed_once: set[str] = field(default_factory=set)
    _running: dict[tuple[str, int], Peer] = field(default_factory=dict)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *exception: object) -> None:
        for peer in self._running.values():
            peer.close()
        self._running.clear()

    def list_present(self, threads: int) -> list[Peer]:
        """Return the running peers with this many threads; starts those that do not run yet."""
        found = []
        for spec in self.specs:
            if "missing" in self.facts.get(spec.library, {}):
                continue
            key = spec.library, threads
            if key not in self._running:
                try:
                    self._running[key] = Peer(spec, threads, self.device, self.timeout)
                except PeerError as error:
                    self.drop(spec.library, str(error))
                    continue
                facts = self._running[key].facts
                self.facts[spec.library] = {
                    "version": facts["version"],
                    "python": facts["python"],
                    "executable": spec.python or sys.executable,
                    "lacks": self.facts.get(spec.library, {}).get("lacks", {}),
                }
            found.append(self._running[key])
        return found

    def record_missing_case(self, library: str, what: str, why: str) -> None:
        """Record why a peer is not timed on a case."""
        self.facts[library].setdefault("lacks", {})[what] = why

    def record_failure(self, library: str, what: str, why: str) -> None:
        """Record that a peer hung or died: the first time it is restarted, the second time dropped."""
        if library in self.failed_once:
            self.drop(library, why)
            return
        self.failed_once.add(library)
        self.record_missing_case(library, what, why)
        self._close(library)

    def drop(self, library: str, why: str) -> None:
        """End the processes of a peer and record why it takes no further part."""
        self.facts[library] = {**self.facts.get(library, {}), "missing": why}
        self._close(library)

    def _close(self, library: str) -> None:
        for key in [key for key in self._running if key[0] == library]:
            self._running.pop(key).close()


def _make_environment(threads: int, device: str) -> dict[str, str]:
    """Return an environment with as many threads as lapgrad has, and the same kind of device."""
    count = str(threads)
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NPROC",  # XLA's thread pool
        "TF_NUM_INTRAOP_THREADS",
        "MXNET_CPU_WORKER_NTHREADS",
    )
    changed = dict.fromkeys(names, count)
    changed["TF_NUM_INTEROP_THREADS"] = "1"
    changed["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if device == "cpu":
        changed["JAX_PLATFORMS"] = "cpu"
        changed["CUDA_VISIBLE_DEVICES"] = ""
        if threads == 1:
            changed["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    else:  # The GPU is shared with torch, so a peer must not reserve all of its memory.
        changed["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        changed["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return {**os.environ, **changed}
