"""Shortcuts: operators on ordinary tensors, computed by the core without any Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lapgrad._kernels.native import core
from lapgrad._torch.private import find_names_for_shortcuts


def list_shortcuts() -> dict[str, Callable[..., Any]]:
    """Return the shortcuts by name, ``trsm_shortcut`` and so on; none if this torch cannot be read from C."""
    names = find_names_for_shortcuts()
    if names is None or not core.bind_torch(names):
        return {}
    return {name: getattr(core, name) for name in dir(core) if name.endswith("_shortcut")}
