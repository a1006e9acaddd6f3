"""Work that is spread over several processes.

``init_group`` joins the processes that ``torchrun``, ``mpiexec`` or Slurm has started. Models and
``fused.sgp_nll`` take the group as ``group=``: each process then holds some of the data, and all of them learn
the parameters that one process with all of the data would learn. Started alone, the same program runs in one
process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapgrad.distributed.group import Group as Group
    from lapgrad.distributed.group import init_group as init_group

#: Module of each public name. They are imported when they are first used: ``lapgrad`` itself imports this
#: package, and some of the modules stand above it.
_MODULES = {
    "Group": "group",
    "init_group": "group",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lapgrad.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lapgrad.distributed.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)


__all__ = ["Group", "init_group"]
