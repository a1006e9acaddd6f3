"""The operators that users see, by the name they are called by: ``potrf``, ``linalg.lstsq``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import lapgrad


def _functions(prefix: str, module: ModuleType) -> dict[str, Callable[..., Any]]:
    found = {prefix + name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


OPERATORS: dict[str, Callable[..., Any]] = {
    **_functions("", lapgrad),
    **_functions("linalg.", lapgrad.linalg),
    **_functions("fused.", lapgrad.fused),
}
