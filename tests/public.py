"""The operators that users see, by the name they are called by: ``potrf``, ``linalg.lstsq``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import lapgrad


def _list_functions(prefix: str, module: ModuleType) -> dict[str, Callable[..., Any]]:
    found = {prefix + name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


_FOUND: dict[str, Callable[..., Any]] = {
    **_list_functions("", lapgrad),
    **_list_functions("linalg.", lapgrad.linalg),
    **_list_functions("fused.", lapgrad.fused),
}

#: Functions of a function (a kernel) and tensors. The tables of samples and benchmarks know operands that are
#: tensors; these have tests of their own (the file is named here), and benchmarks time them as models.
OF_A_KERNEL: dict[str, str] = {"fused.sgp_nll": "models/gp/test_sgp_nll.py"}

#: torch's functions under torch's names; they are compared with torch's own (accelerate/test_linalg.py).
IN_TORCH_TERMS: dict[str, Callable[..., Any]] = {
    f"linalg.{name}": getattr(lapgrad.linalg, name) for name in lapgrad.linalg.IN_TORCH_TERMS
}

OPERATORS: dict[str, Callable[..., Any]] = {
    name: value for name, value in _FOUND.items() if name not in OF_A_KERNEL and name not in IN_TORCH_TERMS
}
FUNCTIONS_OF_A_KERNEL = {name: _FOUND[name] for name in OF_A_KERNEL}
