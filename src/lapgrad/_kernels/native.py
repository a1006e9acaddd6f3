"""The compiled core: whether it can be used, its instruction set, and the BLAS that it calls."""

from __future__ import annotations

import importlib
import os
from typing import Any

from lapgrad import _blas


def _load_core() -> Any:
    try:
        return importlib.import_module("lapgrad._core")
    except ImportError:  # installed without the compiled core
        return None


core = _load_core()

ISA_VARIANTS = ("avx512", "avx2", "baseline")


def is_switched_off() -> bool:
    """Whether ``LAPGRAD_CORE`` asks for the kernels in plain PyTorch."""
    return os.environ.get("LAPGRAD_CORE", "").lower() in ("off", "0", "false")


def _start() -> str | None:
    """Bind BLAS to the core; return None, or why the core cannot be used."""
    if is_switched_off():
        return "LAPGRAD_CORE switches it off"
    if core is None:
        return "this installation was built without it"
    isa = os.environ.get("LAPGRAD_ISA", "")
    if not core.select_isa(isa):
        names = ", ".join(ISA_VARIANTS)
        raise ValueError(f"LAPGRAD_ISA={isa!r} is not one of {names}, or this CPU does not run it")
    try:
        _blas.bind(core)
    except ImportError as error:
        return str(error)
    return None


#: Why the compiled core cannot be used; None when it can.
UNAVAILABLE = _start()


def is_available() -> bool:
    """Whether the compiled core is there and has found its BLAS."""
    return UNAVAILABLE is None


def make_call_gate(options: dict[str, Any]) -> Any:
    """Return the function that csrc/bind/bind_gate.cpp describes; None if this core cannot make one."""
    if core is None:
        return None
    try:
        return core.CallGate(options)
    except ValueError:  # a version of DLPack that the core does not know
        return None


def bind_torch_calls(names: dict[str, Any]) -> bool:
    """Prepare gates for calls of torch's kernels by address, see csrc/bind/torch_calls.h."""
    return core is not None and bool(core.bind_torch_calls(names))


def make_torch_call(described: dict[str, Any]) -> Any:
    """Return a function that calls a kernel of torch, see csrc/bind/torch_calls.h."""
    return core.TorchCall(described)


def register_solve_triangular(names: dict[str, Any]) -> bool:
    """Register torch's kernel under another key, see csrc/bind/torch_calls.h."""
    return bool(core.register_solve_triangular(names))


def describe() -> dict[str, Any]:
    """Return whether the core is used, its instruction set and its thresholds, for ``lapgrad info``."""
    if not is_available():
        return {"core": False, "isa": None, "isa_supported": [], "plan": {}}
    return {
        "core": True,
        "isa": core.isa(),
        "isa_supported": [name for name in ISA_VARIANTS if core.isa_supported(name)],
        "plan": core.plan(),
    }
