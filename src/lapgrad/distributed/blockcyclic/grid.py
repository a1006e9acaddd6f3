"""Grids of processes, on which matrices are spread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.distributed.blockcyclic.engine import Engine
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.distributed.blockcyclic.local import LocalEngine

_ENGINES = ("local", "scalapack", "cusolvermp")
#: Variables in which launchers say how many processes there are: MPICH and Slurm, Open MPI, torchrun.
_COUNTS = {"cpu": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"), "cuda": ("WORLD_SIZE",)}
_BLOCKS = {"cpu": 192, "cuda": 512}


class ProcessGrid:
    """Processes in rows and columns; each process holds some blocks of every matrix.

    ``make_grid`` makes one of all processes that a launcher has started. All of them run the same program,
    and make the same calls with the grid in the same order.

    Args:
        engine: The library that computes.
        block: Rows and columns of a block.

    Attributes:
        shape: Rows and columns of the grid.
        position: Row and column of this process.
        rank: The number of this process, from 0 on, along the rows of the grid.
        size: How many processes there are.
        block: Rows and columns of a block.
        device: Where the blocks are.

    Example:
        >>> from lapgrad.distributed import make_grid
        >>> make_grid(block=64)
        ProcessGrid(1 x 1, this is process 0, block=64, engine=local, device=cpu)
    """

    def __init__(self, engine: Engine, block: int) -> None:
        if isinstance(block, bool) or not isinstance(block, int) or block < 1:
            raise _exceptions.OptionError(f"make_grid: block must be a positive number, got {block!r}.")
        self.engine, self.block = engine, block
        self.shape, self.position = engine.shape, engine.position
        self.rank, self.size = engine.rank, engine.size
        self.device = engine.device

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"ProcessGrid({rows} x {columns}, this is process {self.rank}, block={self.block}, "
            f"engine={self.engine.name}, device={self.device.type})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessGrid:
        return self  # a copy of a model belongs to the same processes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error the other processes may be waiting for this one, and an orderly exit would wait for
        # them. The launcher ends them when this process has ended with its error.
        if kind is None:
            self.close()

    @property
    def is_first(self) -> bool:
        """Whether this is process 0: the one that prints, and writes files."""
        return self.rank == 0

    def make_layout(self, rows: int, columns: int, *, column_block: int | None = None) -> Layout:
        """Return how a matrix of this size is spread over the grid."""
        column_block = self.block if column_block is None else column_block
        return Layout(rows, columns, self.block, column_block, *self.shape, *self.position)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, the same to the last bit on each."""
        total = values.detach().clone(memory_format=torch.contiguous_format)
        self.engine.sum_over_grid(total)
        return total

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0, to the last bit."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        total = self.sum(flat if self.is_first else torch.zeros_like(flat))
        with torch.no_grad():
            for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def check_replicated(self, who: str, tensors: Mapping[str, Tensor]) -> None:
        """Raise on all processes if a tensor is not the same on each.

        Raises:
            OptionError: Names the tensor.
        """
        if self.size == 1:
            return
        marks = torch.stack([_compute_mark(tensor) for tensor in tensors.values()])
        first = self.sum(marks if self.is_first else torch.zeros_like(marks))
        differing = self.sum((marks != first).any(1).to(marks))
        for name, count in zip(tensors, differing.tolist(), strict=True):
            if count:
                raise _exceptions.OptionError(
                    f"{who}: {name} must be the same on all processes, and differs from that of process 0 on "
                    f"{count:.0f} of {self.size}. Are random numbers drawn without a seed, or rows in "
                    f"another order?"
                )

    def close(self) -> None:
        """Leave the grid. The processes of Open MPI must call this (or use ``with``) at the end."""
        self.engine.close()


def make_grid(
    shape: tuple[int, int] | None = None,
    *,
    block: int | None = None,
    device: torch.device | str = "cpu",
    engine: str | None = None,
) -> ProcessGrid:
    """Return the grid of all processes that ``mpiexec`` (CPUs) or ``torchrun`` (GPUs) has started.

    A program that was started alone gets a grid of one process, and needs no MPI.

    Args:
        shape: Rows and columns of the grid; None: as square as possible.
        block: Rows and columns of a block; None: 192 on CPUs, 512 on GPUs. Small blocks spread the work
            evenly, large ones make fewer messages.
        device: "cpu" or "cuda": where matrices are.
        engine: "scalapack" (CPUs), "cusolvermp" (GPUs), or "local" (one process); None: as there are
            processes.

    Raises:
        MissingDependencyError: A library is missing; the message says what to install.
        OptionError: The processes do not fill a grid of that shape, or the engine does not exist.

    Example:
        >>> from lapgrad.distributed import make_grid
        >>> grid = make_grid()
        >>> grid.shape, grid.is_first
        ((1, 1), True)
    """
    device = torch.device(device)
    if device.type not in _COUNTS:
        raise _errors.unknown_option("make_grid", "device", device.type, tuple(_COUNTS))
    if shape is not None and not _is_shape(shape):
        raise _exceptions.OptionError(
            f"make_grid: shape must be two positive numbers, rows and columns, got {shape!r}."
        )
    if engine is None:
        large = "cusolvermp" if device.type == "cuda" else "scalapack"
        engine = large if _count_processes(device) > 1 else "local"
    if engine not in _ENGINES:
        raise _errors.unknown_option("make_grid", "engine", engine, _ENGINES)
    return ProcessGrid(_make_engine(engine, shape, device), _BLOCKS[device.type] if block is None else block)


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(count, int) and count > 0 for count in value)
    )


def _make_engine(name: str, shape: tuple[int, int] | None, device: torch.device) -> Engine:
    if name == "local":
        if shape not in (None, (1, 1)):
            raise _exceptions.OptionError(
                f"make_grid: a grid of {shape} needs several processes, and this program was started as one: "
                f"mpiexec -n 4 python program.py"
            )
        return LocalEngine(device)
    if name == "scalapack":
        from lapgrad.distributed.blockcyclic.scalapack import ScalapackEngine

        return ScalapackEngine(shape)
    from lapgrad.distributed.blockcyclic.cusolvermp import CusolverMpEngine

    return CusolverMpEngine(shape, device)


def _count_processes(device: torch.device) -> int:
    """Return how many processes the launcher of this one says that it has started."""
    for variable in _COUNTS[device.type]:
        value = os.environ.get(variable, "")
        if value.isdigit():
            return int(value)
    return 1


def _compute_mark(tensor: Tensor) -> Tensor:
    """Return a checksum (4,) that differs for another shape or dtype, other values, or another order."""
    values = tensor.detach().double().flatten()
    weights = torch.linspace(1.0, 2.0, len(values), dtype=torch.float64, device=values.device)
    shape = sum((3.0**axis) * size for axis, size in enumerate(tensor.shape))
    form = values.new_tensor([shape, tensor.element_size()])
    return torch.cat([form, torch.stack([values.sum(), weights @ values])]).nan_to_num().cpu()
