"""Other libraries, each in a process of its own, with a Python of its own.

A peer runs `worker/` and answers one request at a time. Between its turns it is stopped, so that threads
that spin while they wait do not take the time of the others. What goes wrong (no such Python, a library that
does not load, a process that dies or does not answer) is kept as the reason why the peer is missing, and the
others go on without it.
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
"""Those that have the operators."""
LIBRARIES_OF_MODELS = ("gpytorch", "gpy", "gpflow")
"""Those that have models."""
_MODULES = {"gpy": "GPy"}
"""What is imported, where that has another name."""

TIMEOUT = 180.0
"""Seconds within which every request has to be answered: compiling a large case takes some."""


_LOADING = 60.0
"""The least that a library is given to be imported, on a busy machine and from a cold disk."""


class PeerError(Exception):
    """A peer cannot go on, and why.

    Attributes:
        library: whose process it is.
    """

    def __init__(self, library: str, why: str) -> None:
        super().__init__(why)
        self.library = library


@dataclass(frozen=True)
class PeerSpec:
    """A library and the Python that has it; None: this one."""

    library: str
    python: str | None = None

    @classmethod
    def parse(cls, text: str, known: Sequence[str] = LIBRARIES) -> PeerSpec:
        """`jax`, or `jax=/path/to/python`; `known` are the libraries that can take part.

        Example:
            >>> PeerSpec.parse("jax=/opt/jax/bin/python")
            PeerSpec(library='jax', python='/opt/jax/bin/python')
        """
        library, separator, python = text.partition("=")
        if library not in known or (separator and not python):
            wanted = f"one of {', '.join(known)}, alone or as {known[0]}=/path/to/python, was wanted"
            raise ValueError(f"{text!r} is no peer: {wanted}")
        return cls(library, python or None)

    @property
    def installed(self) -> bool:
        """Whether this Python has the library."""
        return importlib.util.find_spec(_MODULES.get(self.library, self.library)) is not None

    def __str__(self) -> str:
        return f"{self.library}={self.python}" if self.python else self.library


class Peer(WorkerProcess):
    """One library in a process, at one number of threads."""

    def __init__(self, spec: PeerSpec, threads: int, device: str, timeout: float = TIMEOUT) -> None:
        self.library, self._timeout = spec.library, timeout
        python = self._python(spec)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            command = [python, str(_WORKER), spec.library, device, str(threads)]
            super().__init__(command, environment=_make_environment(threads, device), stderr=self._complaints)
        except OSError as error:
            self._complaints.close()
            raise self._error(f"{python} cannot be run: {error.strerror}") from error
        except BaseException:
            self._complaints.close()
            raise
        try:
            self.facts = self._answer("while it was loaded", max(timeout, _LOADING))
            if "missing" in self.facts:
                raise self._error(self.facts["missing"])
            if self.facts["device"] != device:
                raise self._error(f"{self.library} {self.facts['version']} sees no {device} device")
            self._pause()
        except BaseException:
            self.close()
            raise

    def _python(self, spec: PeerSpec) -> str:
        if spec.python is None and not spec.installed:
            raise self._error(
                f"not installed in this Python; --peer {spec.library}=/path/to/python names one that has it"
            )
        python = spec.python or sys.executable
        if not Path(python).exists():
            raise self._error(f"there is no {python}")
        return python

    def ask(self, what: str, **request: Any) -> dict[str, Any]:
        """One request and its answer.

        Args:
            what: said in the message when there is none.
            request: as `worker/__init__.py` has them.

        Raises:
            PeerError: The process died, did not answer in time, or could not do it.
        """
        self.signal(signal.SIGCONT)
        try:
            self.send(request)
        except EndedError as error:
            raise self._error(self._end(what, error)) from error
        answer = self._answer(what, self._timeout)
        if "error" in answer:
            raise self._error(f"failed {what}: {answer['error']}")
        self._pause()
        return answer

    def close(self) -> None:
        """Ends the process."""
        super().close()
        self._complaints.close()

    def _answer(self, what: str, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout
        try:
            return self.receive(lambda: end - time.monotonic())
        except NoAnswerError as error:
            raise self._error(f"no answer within {timeout:g} s {what}") from error
        except EndedError as error:
            raise self._error(self._end(what, error)) from error
        except GarbledError as error:
            raise self._error(f"answered {error} {what}") from error

    def _end(self, what: str, how: EndedError) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"its process ended {what} ({how}{': ' + lines[-1][:200] if lines else ''})"

    def _error(self, why: str) -> PeerError:
        return PeerError(self.library, why)

    def _pause(self) -> None:
        self.signal(signal.SIGSTOP)


@dataclass
class Peers:
    """The peers of a run, started when they are first asked, and what became of them.

    Attributes:
        specs: who takes part.
        device: where they compute.
        timeout: seconds within which a request has to be answered.
        facts: per library {"version", "python", ...}, or {"missing": why}; for the results file.
        failed_once: those that hung or died before.
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
        """Those that can take part at a number of threads."""
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
        """Keeps why a peer is not timed on a case."""
        self.facts[library].setdefault("lacks", {})[what] = why

    def record_failure(self, library: str, what: str, why: str) -> None:
        """A peer that hung or died in a case is started anew for the next; the second time it is dropped."""
        if library in self.failed_once:
            self.drop(library, why)
            return
        self.failed_once.add(library)
        self.record_missing_case(library, what, why)
        self._close(library)

    def drop(self, library: str, why: str) -> None:
        """Ends a peer's part in the run."""
        self.facts[library] = {**self.facts.get(library, {}), "missing": why}
        self._close(library)

    def _close(self, library: str) -> None:
        for key in [key for key in self._running if key[0] == library]:
            self._running.pop(key).close()


def _make_environment(threads: int, device: str) -> dict[str, str]:
    """As many threads as lapgrad has, on the same kind of device."""
    count = str(threads)
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NPROC",  # the thread pool of XLA
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
    else:  # the GPU is shared with torch
        changed["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        changed["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return {**os.environ, **changed}
