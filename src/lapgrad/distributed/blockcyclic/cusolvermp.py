"""The engine of several processes with a GPU each: cuSOLVERMp, through ``nvmath.bindings``.

It has potrf and potrs, but no potri: the inverse is computed by local products (``inverse``). Products and
triangular solves, which gradients of operators need, come from cuBLASMp, and are loaded when they are first
used.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.cublasmp import DATA_TYPES, GridProducts, load_bindings
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.inverse import invert_on_grid
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.distributed.blockcyclic.nccl import Communicator
from lapgrad.distributed.blockcyclic.scalapack import choose_shape
from lapgrad.distributed.blockcyclic.triangles import get_diagonal

_LOWER = 0


class CusolverMpEngine:
    """cuSOLVERMp on a grid of the processes of torch's default group; ``torchrun`` starts them.

    Args:
        shape: Rows and columns of the grid; None: the most square grid of all processes.
        device: The GPU of this process; without a number the one that ``LOCAL_RANK`` names.
    """

    name = "cusolvermp"

    def __init__(self, shape: tuple[int, int] | None, device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise _exceptions.DeviceError(
                f"make_grid: torch {torch.__version__} sees no GPU, which the engine cusolvermp needs."
            )
        number = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
        self.device = torch.device("cuda", number)
        torch.cuda.set_device(self.device)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            dist.init_process_group("nccl", device_id=self.device)
        self._library = _load_cusolvermp()
        self._communicator = Communicator()
        self.rank, self.size = self._communicator.rank, self._communicator.size
        self.shape = choose_shape(self.size) if shape is None else shape
        if self.shape[0] * self.shape[1] != self.size:
            raise _exceptions.OptionError(
                f"make_grid: a grid of {self.shape[0]} x {self.shape[1]} needs "
                f"{self.shape[0] * self.shape[1]} processes, and torchrun has started {self.size}."
            )
        self.position = divmod(self.rank, self.shape[1])
        # cuSOLVERMp does not take the default stream.
        self._stream = torch.cuda.Stream(self.device)
        self._handle = self._library.create(number, self._stream.cuda_stream)
        self._grid = self._library.create_device_grid(
            self._handle,
            self._communicator.handle,
            *self.shape,
            int(self._library.GridMapping.ROW_MAJOR),
        )
        self._products: GridProducts | None = None
        self._groups = self._make_groups() if self.size > 1 else ()

    def potrf(self, A: Blocks) -> int:
        """Overwrite A by its Cholesky factor."""
        kind = DATA_TYPES[A.local.dtype]
        with self._describe(A.layout, A.local) as descriptor:
            arguments = (self._handle, _LOWER, A.layout.rows, A.local.data_ptr(), 1, 1, descriptor, kind)
            sizes = self._library.potrf_buffer_size(*arguments)
            diagonal = get_diagonal(A)
            try:
                return self._run_with_status(sizes, lambda *rest: self._library.potrf(*arguments, *rest))
            except self._library.cuSOLVERMpError:
                # A matrix that is not positive definite is reported as an internal error, without the minor.
                return self._explain_failure(A, diagonal)

    def potri(self, L: Blocks) -> None:
        """Overwrite L by the lower triangle of the inverse of L Lᵀ."""
        invert_on_grid(self, L)

    def potrs(self, L: Blocks, B: Blocks) -> None:
        """Overwrite B by (L Lᵀ)⁻¹ B."""
        self._solve(L, B)

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        """Overwrite B by t(L)⁻¹ B or B t(L)⁻¹."""
        self._get_products().trsm(L, B, transpose=transpose, rightside=rightside)

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        """Overwrite C by t(A) t(B)."""
        self._get_products().gemm(A, B, C, transpose_a=transpose_a, transpose_b=transpose_b)

    def transpose(self, A: Blocks, C: Blocks) -> None:
        """Overwrite C by Aᵀ."""
        self._get_products().transpose(A, C)

    def sum_over_grid(self, values: Tensor) -> None:
        """Replace values by their sum over all processes.

        NCCL adds up each number in one place and sends it to the others: all get the same.
        """
        if self.size > 1 and values.numel():
            total = values.detach().to(self.device, torch.float64).contiguous()
            dist.all_reduce(total)
            values.copy_(total)

    def share_along_row(self, values: Tensor, column: int) -> None:
        """Copy values from the process in ``column`` of this row of the grid."""
        if self.shape[1] > 1 and values.numel():
            dist.broadcast(values, self.position[0] * self.shape[1] + column, group=self._groups[0])

    def share_along_column(self, values: Tensor, row: int) -> None:
        """Copy values from the process in ``row`` of this column of the grid."""
        if self.shape[0] > 1 and values.numel():
            dist.broadcast(values, row * self.shape[1] + self.position[1], group=self._groups[1])

    def sum_over_column(self, values: Tensor) -> None:
        """Replace values by their sum over the processes of this column."""
        if self.shape[0] > 1 and values.numel():
            dist.all_reduce(values, group=self._groups[1])

    def close(self) -> None:
        """Free the handles, and leave torch's default group."""
        if self._products is not None:
            self._products.close()
        self._library.destroy_grid(self._grid)
        self._library.destroy(self._handle)
        self._communicator.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _make_groups(self) -> tuple[dist.ProcessGroup, ...]:
        """Return the processes in the row, and in the column, of this one. All processes make all groups."""
        rows, columns = self.shape
        of_rows = [
            dist.new_group([row * columns + column for column in range(columns)]) for row in range(rows)
        ]
        of_columns = [
            dist.new_group([row * columns + column for row in range(rows)]) for column in range(columns)
        ]
        return of_rows[self.position[0]], of_columns[self.position[1]]

    def _get_products(self) -> GridProducts:
        if self._products is None:
            stream = self._stream.cuda_stream
            self._products = GridProducts(self._communicator.handle, self.shape, stream, self._run)
        return self._products

    def _solve(self, L: Blocks, B: Blocks) -> None:
        kind = DATA_TYPES[B.local.dtype]
        of_factor, of_values = self._describe(L.layout, L.local), self._describe(B.layout, B.local)
        with of_factor as factor, of_values as values:
            arguments = (
                self._handle,
                _LOWER,
                B.layout.rows,
                B.layout.columns,
                *(L.local.data_ptr(), 1, 1, factor),
                *(B.local.data_ptr(), 1, 1, values),
                kind,
            )
            sizes = self._library.potrs_buffer_size(*arguments)
            status = self._run_with_status(sizes, lambda *rest: self._library.potrs(*arguments, *rest))
        if status:
            raise RuntimeError(f"cuSOLVERMp's potrs failed with the status {status}.")

    @contextlib.contextmanager
    def _describe(self, layout: Layout, local: Tensor) -> Iterator[int]:
        """Yield the descriptor of a matrix; ``local`` may be a part of a larger matrix of this process."""
        leading = max(1, local.stride(1) if local.shape[1] > 1 else local.shape[0])
        descriptor = self._library.create_matrix_desc(
            self._grid,
            DATA_TYPES[local.dtype],
            layout.rows,
            layout.columns,
            layout.row_block,
            layout.column_block,
            0,
            0,
            leading,
        )
        try:
            yield descriptor
        finally:
            self._library.destroy_matrix_desc(descriptor)

    def _explain_failure(self, A: Blocks, diagonal: Tensor) -> int:
        """Return the order of the leading minor that failed; 0 if A had a NaN, which is then on its diagonal.

        Pivots before the one that failed are positive. The one that failed is not, or is NaN.

        Args:
            A: What ``potrf`` has left.
            diagonal: The diagonal entries of this process before.
        """
        index, row, column = A.layout.list_diagonal(A.local.device)
        given = self._find_first(index[~diagonal.isfinite()], A.layout.rows)
        if given < A.layout.rows:
            A.local[row[index == given], column[index == given]] = torch.nan
            return 0
        failed = self._find_first(index[~(A.local[row, column] > 0.0)], A.layout.rows)
        if failed == A.layout.rows:
            raise RuntimeError("cuSOLVERMp's potrf failed, and all pivots are positive.")
        return failed + 1

    def _find_first(self, indices: Tensor, otherwise: int) -> int:
        """Return the least of the indices of all processes; ``otherwise`` if there are none."""
        first = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        first[self.rank] = indices[0] if len(indices) else otherwise
        self.sum_over_grid(first)
        return int(first.min())

    def _run_with_status(self, sizes: tuple[int, int], call: Callable[..., None]) -> int:
        """Call a routine that takes workspaces and the address of a status; return the status."""
        status = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._run(sizes, lambda *workspaces: call(*workspaces, status.data_ptr()))
        return int(status.item())

    def _run(self, sizes: tuple[int, int], call: Callable[..., None]) -> None:
        """Call a routine with workspaces on its own stream, in order with torch's current stream."""
        on_device = torch.empty(max(1, sizes[0]), dtype=torch.uint8, device=self.device)
        on_host = torch.empty(max(1, sizes[1]), dtype=torch.uint8)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        call(on_device.data_ptr(), sizes[0], on_host.data_ptr(), sizes[1])
        # Workspaces must live until the routine has finished.
        self._stream.synchronize()


def _load_cusolvermp() -> Any:
    """Return the bindings, with the library loaded from the package that brings it.

    nvmath-python looks for libraries in the usual places only, but uses one that is already loaded.
    """
    bindings = load_bindings("cusolverMp")
    torch.cuda.init()
    for package in ("nvidia-cusolvermp-cu13", "nvidia-cusolvermp-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.distribution(package).files or ():
                if file.name.startswith("libcusolverMp.so"):
                    _load(str(file.locate()))
    return bindings


def _load(path: str) -> None:
    try:
        ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
    except OSError as error:
        raise _exceptions.MissingDependencyError(
            f"make_grid: {path} cannot be loaded: {error}. cuSOLVERMp 0.9 needs cuBLASMp 0.9 and NCCL 2.29; "
            f"with an older NCCL: pip install nvidia-cusolvermp-cu13==0.8.0.3126"
        ) from error
