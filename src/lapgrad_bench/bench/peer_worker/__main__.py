"""The process: reads requests, answers them. The protocol stands in `__init__.py`."""

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
    """One library, and the case that it is timed on."""

    def __init__(self, library: Any, formulas: dict[str, Callable[..., Any]]) -> None:
        self.library = library
        self.formulas = formulas
        self.thunks: dict[str, Callable[[], Any]] = {}

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Makes the functions to be timed; stores their results, and gradients, for comparison."""
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
        except Exception as error:  # whatever a library raises, the next case may do
            lacks = in_a_line(error)
        np.savez(request["file"] + ".out.npz", **stored_results)
        return {"phases": [phase for phase in phases if phase in self.thunks], "lacks": lacks}

    def _prepare_gradients(
        self, function: Callable[..., Any], inputs: Any, weights: Any, request: Any, stored: dict[str, Any]
    ) -> None:
        library = self.library
        results, graph = library.graph(function, inputs)
        # Where the sign of a row is free, a cotangent that changes with it gives the same gradient.
        cotangents = []
        for i, result in enumerate(_flat(results)):
            seen = _numpy(result)
            weight = weights[i].reshape(seen.shape)  # a scalar has one dimension in MXNet
            cotangents.append(library.array(weight * seen if request["signs"] else weight))
        given = type(results)(cotangents) if isinstance(results, (tuple, list)) else cotangents[0]
        backward = library.backward(graph, given)
        self._keep(stored, "gradient", backward())
        self.thunks["backward"] = backward
        self.thunks["step"] = library.step(function, inputs, given)

    @staticmethod
    def _keep(stored: dict[str, Any], name: str, results: Any) -> None:
        for i, result in enumerate(_flat(results)):
            stored[f"{name}{i}"] = _numpy(result)

    def model(self, request: dict[str, Any]) -> dict[str, Any]:
        """Makes the function that evaluates a model's criterion and its gradient."""
        self.thunks = {}
        make = getattr(self.library, "models", {}).get(request["model"])
        if make is None:
            return {"phases": [], "lacks": "it has no such model"}
        with np.load(request["file"]) as stored:
            arguments = {name: stored[name] if stored[name].ndim else stored[name].item() for name in stored}
        try:
            thunk = make(**arguments)
            value = float(_flat(thunk())[0])
        except Exception as error:  # whatever a library raises, the next case may do
            return {"phases": [], "lacks": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        self.thunks["step"] = thunk
        return {"phases": ["step"], "lacks": None, "value": value}

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Times calls; short ones after one that is not counted, as the caches were another's until now."""
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
        """Bytes at the peak of a call, as the operating system sees it (Linux, CPU)."""
        thunk = self.thunks[request["phase"]]
        if self.library.device != "cpu" or getattr(self.library, "keeps_memory", False):
            return {"bytes": None}
        self.library.wait(thunk())
        try:
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            before = _resident("VmRSS")
            results = thunk()
            self.library.wait(results)
            found = _resident("VmHWM") - before
            # Memory that the library keeps for its next call is not seen: less than the results is no answer.
            least = sum(_numpy(result).nbytes for result in _flat(results))
            return {"bytes": found if found >= least else None}
        except (OSError, AttributeError):
            return {"bytes": None}

    def release(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forgets the case."""
        self.thunks = {}
        gc.collect()
        return {}


def _find_method(library: Any, name: str) -> Callable[..., Any] | None:
    """Returns the formula of an operator that the library offers under its own name; None if it does not."""
    stem = name.rpartition(".")[2]
    return (lambda la, *operands: getattr(la, stem)(*operands)) if hasattr(library, stem) else None


def _flat(results: Any) -> Any:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _numpy(result: Any) -> Any:
    return result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)


def in_a_line(error: Exception) -> str:
    """The first line of a message; the last where the first only announces it (TensorFlow's does)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1] if lines[0].endswith(":") else lines[0]
    name = type(error).__name__
    return (line if line.startswith(name) else f"{name}: {line}")[:300]


def _resident(field: str) -> int:
    with open("/proc/self/status") as file:
        found = re.search(rf"^{field}:\s*(\d+) kB$", file.read(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field}")
    return 1024 * int(found.group(1))


def die_with_parent() -> None:
    """A worker that is stopped between its turns would not see that its parent has gone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def answer_stream() -> IO[str]:
    """Where the answers go. What a library prints goes to stderr: it would be taken for an answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main() -> None:
    """Answers requests until there are no more."""
    die_with_parent()
    answers = answer_stream()

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    name, device, threads = sys.argv[1:]
    try:
        library = importlib.import_module(f"in_{name}").Library(device, int(threads))
    except Exception as error:
        say({"missing": in_a_line(error)})
        return
    if hasattr(library, "start"):
        library.start()
    formulas = importlib.import_module("formulas").FORMULAS
    worker = Worker(library, formulas)
    say({"version": library.version, "python": platform.python_version(), "device": library.device})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(getattr(worker, request["do"])(request))
        except Exception as error:
            say({"error": in_a_line(error)})


if __name__ == "__main__":
    main()
