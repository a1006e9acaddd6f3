"""Models and matrices that are spread over several processes, each with its own CPUs or GPU.

``init_group`` joins the processes that ``torchrun``, ``mpiexec`` or Slurm has started. Models and
``fused.sgp_nll`` take the group as ``group=``: each process then holds some of the data, and all of them
learn the parameters that one process with all of the data would learn. Started alone, the same program runs
in one process.

``make_grid`` makes a grid of processes for one matrix that is too large for one of them: ``mvn_nll``,
``potrf``, ``trsm`` and ``potri`` compute with its blocks, and ``GPRegression`` takes the grid as
``distributed=``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapgrad.distributed.blockcyclic.grid import ProcessGrid as ProcessGrid
    from lapgrad.distributed.blockcyclic.grid import make_grid as make_grid
    from lapgrad.distributed.blockcyclic.matrix import BlockCyclicMatrix as BlockCyclicMatrix
    from lapgrad.distributed.blockcyclic.mvn_nll import mvn_nll as mvn_nll
    from lapgrad.distributed.blockcyclic.potrf import potrf as potrf
    from lapgrad.distributed.blockcyclic.potri import potri as potri
    from lapgrad.distributed.blockcyclic.trsm import trsm as trsm
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
    "BlockCyclicMatrix": "blockcyclic.matrix",
    "ProcessGrid": "blockcyclic.grid",
    "make_grid": "blockcyclic.grid",
    "mvn_nll": "blockcyclic.mvn_nll",
    "potrf": "blockcyclic.potrf",
    "potri": "blockcyclic.potri",
    "trsm": "blockcyclic.trsm",
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
    "BlockCyclicMatrix",
    "Checkpoint",
    "Group",
    "MappedRows",
    "ParquetRows",
    "ProcessGrid",
    "RowStream",
    "init_group",
    "make_grid",
    "mvn_nll",
    "potrf",
    "potri",
    "register_shardings",
    "shard",
    "trsm",
]
