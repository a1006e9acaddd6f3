"""Reads requests and answers them; the protocol is described in `__init__.py`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np


class Worker:
    """A library and the case that it is timed on; one method per request."""

    def __init__(self, library: Any, formulas: dict[str, Callable[..., Any]]) -> None:
        self.library = library
        self.formulas = formulas
        self.thunks: dict[str, Callable[[], Any]] = {}

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the functions to be timed; store their results and gradients in files, for comparison."""
        self.thunks = {}
        library, name, phases = self.library, request["operator"], request["phases"]
        formula = self.formulas.get(name) or _find_method(library, name)
        if formula is None:
            return {"phases": [], "lacks": f"no formula for {name}"}
        with np.load(request["file"]) as stored:
            inputs = tuple(library.array(stored[f"input{i}"]) for i in range(request["inputs"]))
            weights = [stored[f"weight{i}"] for i in range(request["weights"])]
        stored_results: dict[str, Any] = {}
        lacks = None
        try:
            function = library.function(formula, name)
            results = function(*inputs)
            self._keep(stored_results, "result", results)
            self.thunks["forward"] = lambda: function(*inputs)
            if phases != ["forward"]:
                self._prepare_gradients(function, inputs, weights, request, stored_results)
        except Exception as error:  # A library may raise anything; the next case may work.
            lacks = shorten_message(error)
        np.savez(request["file"] + ".out.npz", **stored_results)
        return {"phases": [phase for phase in phases if phase in self.thunks], "lacks": lacks}

    def _prepare_gradients(
        self, function: Callable[..., Any], inputs: Any, weights: Any, request: Any, stored: dict[str, Any]
    ) -> None:
        library = self.library
        results, graph = library.graph(function, inputs)
        # Where the sign of a row is free, a cotangent that changes sign with the row gives the same gradient.
        cotangents = []
        for i, result in enumerate(_flatten(results)):
            seen = _to_numpy(result)
            weight = weights[i].reshape(seen.shape)  # MXNet's scalars have one dimension.
            cotangents.append(library.array(weight * seen if request["signs"] else weight))
        given = type(results)(cotangents) if isinstance(results, (tuple, list)) else cotangents[0]
        backward = library.backward(graph, given)
        self._keep(stored, "gradient", backward())
        self.thunks["backward"] = backward
        self.thunks["step"] = library.step(function, inputs, given)

    @staticmethod
    def _keep(stored: dict[str, Any], name: str, results: Any) -> None:
        for i, result in enumerate(_flatten(results)):
            stored[f"{name}{i}"] = _to_numpy(result)

    def model(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the function that evaluates the criterion of a model and its gradient."""
        self.thunks = {}
        make = getattr(self.library, "models", {}).get(request["model"])
        if make is None:
            return {"phases": [], "lacks": "it has no such model"}
        with np.load(request["file"]) as stored:
            arguments = {name: stored[name] if stored[name].ndim else stored[name].item() for name in stored}
        try:
            thunk = make(**arguments)
            value = float(_flatten(thunk())[0])
        except Exception as error:  # A library may raise anything; the next case may work.
            return {"phases": [], "lacks": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        self.thunks["step"] = thunk
        return {"phases": ["step"], "lacks": None, "value": value}

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time calls; an uncounted call comes first if they are short, to fill the caches."""
        thunk, wait, calls = self.thunks[request["phase"]], self.library.wait, request["calls"]
        each = self.library.device == "cpu"
        if calls > 1:
            wait(thunk())
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        for _ in range(calls):
            results = thunk()
            if each:
                wait(results)
        wait(results)
        seconds = (time.perf_counter() - start) / calls
        gc.enable()
        return {"seconds": seconds}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the bytes at the peak of a call, as the operating system sees it (Linux, CPU)."""
        thunk = self.thunks[request["phase"]]
        if self.library.device != "cpu" or getattr(self.library, "keeps_memory", False):
            return {"bytes": None}
        self.library.wait(thunk())
        try:
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            before = _read_resident_bytes("VmRSS")
            results = thunk()
            self.library.wait(results)
            found = _read_resident_bytes("VmHWM") - before
            # Memory that the library keeps for its next call is not seen; the peak is then below the results.
            least = sum(_to_numpy(result).nbytes for result in _flatten(results))
            return {"bytes": found if found >= least else None}
        except (OSError, AttributeError):
            return {"bytes": None}

    def release(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forget the case and free its memory."""
        self.thunks = {}
        gc.collect()
        return {}


def _find_method(library: Any, name: str) -> Callable[..., Any] | None:
    """Return the formula of an operator that the library offers under its own name; None if it does not."""
    stem = name.rpartition(".")[2]
    return (lambda la, *operands: getattr(la, stem)(*operands)) if hasattr(library, stem) else None


def _flatten(results: Any) -> Any:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _to_numpy(result: Any) -> Any:
    return result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)


def shorten_message(error: Exception) -> str:
    """Return the first line of an error message, or the last one if the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1] if lines[0].endswith(":") else lines[0]
    name = type(error).__name__
    return (line if line.startswith(name) else f"{name}: {line}")[:300]


def _read_resident_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        found = re.search(rf"^{field}:\s*(\d+) kB$", file.read(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field}")
    return 1024 * int(found.group(1))


def die_with_parent() -> None:
    """Make Linux end this process when its parent dies, which a stopped process could not notice."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def open_answer_stream() -> IO[str]:
    """Return the stream for answers, and send everything else that is printed to stdout to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main() -> None:
    """Answer requests until stdin ends."""
    die_with_parent()
    answers = open_answer_stream()

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    name, device, threads = sys.argv[1:]
    try:
        library = importlib.import_module(f"in_{name}").Library(device, int(threads))
    except Exception as error:
        send({"missing": shorten_message(error)})
        return
    if hasattr(library, "start"):
        library.start()
    formulas = importlib.import_module("formulas").FORMULAS
    worker = Worker(library, formulas)
    send({"version": library.version, "python": platform.python_version(), "device": library.device})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            send(getattr(worker, request["do"])(request))
        except Exception as error:
            send({"error": shorten_message(error)})


if __name__ == "__main__":
    main()
