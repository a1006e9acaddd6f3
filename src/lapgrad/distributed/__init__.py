"""Work that is spread over several processes.

``init_group`` joins the processes that ``torchrun``, ``mpiexec`` or Slurm has started. Models and
``fused.sgp_nll`` take the group as ``group=``: each process then holds some of the data, and all of them
learn the parameters that one process with all of the data would learn. Started alone, the same program runs
in one process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapgrad.distributed.checkpoints import Checkpoint as Checkpoint
    from lapgrad.distributed.dtensors import register_shardings as register_shardings
    from lapgrad.distributed.group import Group as Group
    from lapgrad.distributed.group import init_group as init_group
    from lapgrad.distributed.sharding import shard as shard
    from lapgrad.distributed.streams import MappedRows as MappedRows
    from lapgrad.distributed.streams import ParquetRows as ParquetRows
    from lapgrad.distributed.streams import RowStream as RowStream

#: Module of each public name. They are imported when they are first used: ``lapgrad`` itself imports this
#: package, and some of the modules stand above it.
_MODULES = {
    "Checkpoint": "checkpoints",
    "Group": "group",
    "MappedRows": "streams",
    "ParquetRows": "streams",
    "RowStream": "streams",
    "init_group": "group",
    "register_shardings": "dtensors",
    "shard": "sharding",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lapgrad.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lapgrad.distributed.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)


__all__ = [
    "Checkpoint",
    "Group",
    "MappedRows",
    "ParquetRows",
    "RowStream",
    "init_group",
    "register_shardings",
    "shard",
]
