"""Rows of data that stay in a file, and are read in chunks: memory-mapped NumPy arrays, and Parquet files."""

from __future__ import annotations

import abc
import copy
import warnings
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapgrad import _errors, _exceptions

_FLOATS = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class RowStream(abc.ABC):
    """Rows (n, d) of numbers that models read in chunks, several times, and never hold all at once.

    Pass it to ``SparseGPRegression`` in place of a tensor. ``shard`` makes one from a file. For another
    source of data write a subclass with ``read``.

    Args:
        shape: (n, d).
        dtype: float32 or float64.
        begin: The first row of the source that belongs to this stream.

    Attributes:
        shape: (n, d).
        dtype: Of the rows that are read.
    """

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, begin: int = 0) -> None:
        self.shape, self.dtype, self.begin = shape, dtype, begin

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} x {self.shape[1]}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> RowStream:
        return copy.copy(self)  # rows are read-only, so copies can share them

    @abc.abstractmethod
    def read(self, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` of the source, (end - begin, d), on the CPU."""

    def read_rows(self, rows: slice) -> Tensor:
        """Return some rows of this stream, (m, d), on the CPU."""
        begin, end, _ = rows.indices(self.shape[0])
        return self.read(self.begin + begin, self.begin + end)

    def read_sample(self, rows: Tensor) -> Tensor:
        """Return single rows of this stream, by their numbers (m,) in ascending order."""
        found = [self.read_rows(slice(row, row + 1)) for row in rows.tolist()]
        return torch.cat(found) if found else torch.empty(0, self.shape[1], dtype=self.dtype)

    def select(self, begin: int, end: int) -> RowStream:
        """Return the stream of rows ``begin`` to ``end`` of this one; nothing is read."""
        part = copy.copy(self)
        part.shape, part.begin = (end - begin, self.shape[1]), self.begin + begin
        return part


class MappedRows(RowStream):
    """Rows of a NumPy array that is mapped into memory: the system reads and forgets pages as needed.

    Args:
        source: The path of a ``.npy`` file, or an array, such as a ``numpy.memmap``: (n, d) or (n,), float32
            or float64, in C order.

    Raises:
        DTypeError: The numbers are neither float32 nor float64.
        ShapeError: It is not a matrix.
        FileFormatError: The file is not one of NumPy.

    Example:
        >>> import numpy as np, tempfile
        >>> from lapgrad.distributed import MappedRows
        >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        ...     np.save(file.name, np.arange(6.0).reshape(3, 2))
        ...     MappedRows(file.name).read_rows(slice(1, 2))
        tensor([[2., 3.]], dtype=torch.float64)
    """

    def __init__(self, source: str | PathLike[str] | np.ndarray[Any, Any]) -> None:
        if isinstance(source, np.ndarray):
            array = source
        else:
            try:
                array = np.load(source, mmap_mode="r", allow_pickle=False)
            except ValueError as error:
                raise _exceptions.FileFormatError(f"MappedRows: {fspath(source)}: {error}") from error
        if array.dtype not in _FLOATS:
            raise _exceptions.DTypeError(
                f"MappedRows: the array must be float32 or float64, got {array.dtype}."
            )
        if array.ndim not in (1, 2):
            raise _exceptions.ShapeError(
                f"MappedRows: the array must have shape (n, d) or (n,), got {array.shape}."
            )
        matrix = array.reshape(-1, 1) if array.ndim == 1 else array
        self._array = matrix
        super().__init__((matrix.shape[0], matrix.shape[1]), _FLOATS[array.dtype])

    def read(self, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end``. They share memory with the file's pages: do not write to them."""
        with warnings.catch_warnings():  # torch warns that the pages are read-only; nothing writes to them
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(np.asarray(self._array[begin:end]))

    def read_sample(self, rows: Tensor) -> Tensor:
        """Return single rows of this stream, by their numbers (m,)."""
        return torch.from_numpy(np.array(self._array[(rows + self.begin).numpy()]))


class ParquetRows(RowStream):
    """Columns of Parquet files as rows of numbers, read one row group at a time (needs pyarrow).

    Args:
        paths: A file, a folder of files (in the order of their names), or several files, one after the other.
        columns: The names of the columns, of numbers without gaps; None: all of them.
        dtype: What the numbers are converted to.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        FileFormatError: A file is not one of Parquet, or has no such column.

    Example:
        >>> import tempfile, pyarrow, pyarrow.parquet
        >>> from lapgrad.distributed import ParquetRows
        >>> table = pyarrow.table({"x": [1.0, 2.0], "y": [3.0, 4.0]})
        >>> with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        ...     pyarrow.parquet.write_table(table, file.name)
        ...     ParquetRows(file.name, ["y"]).read_rows(slice(1, 2))
        tensor([[4.]], dtype=torch.float64)
    """

    def __init__(
        self,
        paths: str | PathLike[str] | Sequence[str | PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        parquet = _import_parquet()
        given = [paths] if isinstance(paths, str | PathLike) else list(paths)
        files = [file for path in given for file in _list_files(Path(path))]
        self._groups: list[tuple[Path, int]] = []
        bounds = [0]
        names = None if columns is None else list(columns)
        for file in files:
            try:
                metadata = parquet.ParquetFile(file)
            except (OSError, ValueError) as error:
                raise _exceptions.FileFormatError(f"ParquetRows: {file}: {error}") from error
            names = metadata.schema_arrow.names if names is None else names
            missing = [name for name in names if name not in metadata.schema_arrow.names]
            if missing:
                raise _exceptions.FileFormatError(f"ParquetRows: {file} has no column {missing[0]!r}.")
            for group in range(metadata.num_row_groups):
                self._groups.append((file, group))
                bounds.append(bounds[-1] + metadata.metadata.row_group(group).num_rows)
        self._bounds, self._columns = np.array(bounds), names or []
        #: The row group that was read last, because consecutive chunks usually belong to the same one.
        self._last: tuple[int, Tensor] | None = None
        super().__init__((bounds[-1], len(self._columns)), dtype)

    def read(self, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` of the files."""
        parts = [torch.empty(0, self.shape[1], dtype=self.dtype)]
        group = int(np.searchsorted(self._bounds, begin, side="right")) - 1
        while begin < end:
            first, past = int(self._bounds[group]), int(self._bounds[group + 1])
            parts.append(self._read_group(group)[begin - first : min(end, past) - first])
            begin, group = min(end, past), group + 1
        return torch.cat(parts)

    def _read_group(self, number: int) -> Tensor:
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        self._last = None  # frees it before the next one is read
        file, group = self._groups[number]
        table = _import_parquet().ParquetFile(file).read_row_group(group, columns=self._columns)
        kind = np.float32 if self.dtype is torch.float32 else np.float64
        rows = np.empty((table.num_rows, len(self._columns)), kind)
        for position, name in enumerate(self._columns):
            rows[:, position] = table.column(name).to_numpy()
        self._last = number, torch.from_numpy(rows)
        return self._last[1]


def _import_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise _errors.missing_dependency("ParquetRows", "pyarrow", "distributed") from error
    return parquet


def _list_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


class TensorStream(RowStream):
    """Rows of a tensor, for code that reads all data as a stream."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        super().__init__((tensor.shape[0], tensor.shape[1]), tensor.dtype)

    def read(self, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end``, on the device of the tensor."""
        return self._tensor[begin:end]

    def read_sample(self, rows: Tensor) -> Tensor:
        """Return single rows, by their numbers (m,)."""
        return self._tensor[(rows + self.begin).to(self._tensor.device)]
