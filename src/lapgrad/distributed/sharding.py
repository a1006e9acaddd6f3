"""The part of an array or file that belongs to one process of a group."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.group import Group
from lapgrad.distributed.streams import MappedRows, ParquetRows, RowStream

_Source = Tensor | np.ndarray[Any, Any] | RowStream | str | PathLike[str]


@overload
def shard(source: _Source, /, *, group: Group) -> Any: ...


@overload
def shard(source: _Source, /, *sources: _Source, group: Group) -> tuple[Any, ...]: ...


def shard(*sources: _Source, group: Group) -> Any:
    """Return the rows of this process, of arrays or files that all processes see as a whole.

    Process r of p gets the rows from n r / p to n (r + 1) / p. Files are not read here: models read them in
    chunks, each process its own rows.

    Args:
        sources: Tensors or arrays whose first dimension counts rows (series, tasks), all of the same length;
            paths of ``.npy`` and ``.parquet`` files; ``numpy.memmap`` arrays; ``RowStream`` objects.
        group: The processes. With one process all rows are returned.

    Returns:
        For each source a view of a tensor, or a ``RowStream`` of a file; a tuple if there are several.

    Raises:
        ShapeError: The sources differ in length.
        OptionError: A source is none of the above.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import Group, shard
        >>> X, y = shard(torch.zeros(10, 2), torch.zeros(10), group=Group())
        >>> X.shape, y.shape
        (torch.Size([10, 2]), torch.Size([10]))
    """
    opened = [_open_source(source) for source in sources]
    counts = [len(source) for source in opened]
    if len(set(counts)) > 1:
        raise _exceptions.ShapeError(
            f"shard: the sources differ in length: {', '.join(map(str, counts))} rows."
        )
    found = tuple(_select_rows(source, group) for source in opened)
    return found if len(found) > 1 else found[0]


def _open_source(source: object) -> Tensor | RowStream:
    if isinstance(source, Tensor | RowStream):
        return source
    if isinstance(source, np.memmap):
        return MappedRows(source)
    if isinstance(source, np.ndarray):
        return torch.from_numpy(source)
    if isinstance(source, str | PathLike):
        path = Path(source)
        return ParquetRows(path) if path.suffix == ".parquet" or path.is_dir() else MappedRows(path)
    raise _exceptions.OptionError(
        f"shard: a source must be a tensor, an array, a RowStream or the path of a file, got "
        f"{type(source).__name__}."
    )


def _select_rows(source: Tensor | RowStream, group: Group) -> Tensor | RowStream:
    n = len(source)
    begin, end = n * group.rank // group.size, n * (group.rank + 1) // group.size
    return source.select(begin, end) if isinstance(source, RowStream) else source[begin:end]
