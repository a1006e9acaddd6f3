"""What the library uses of pandas, for tests without it: Series, DataFrame and an index of dates."""

from __future__ import annotations

from typing import Any

import numpy as np


class Index:
    """Labels of rows; dates if the array holds dates."""

    def __init__(self, labels: Any, name: str | None = None) -> None:
        self.labels, self.name = np.asarray(labels), name
        self.dtype, self.tz = self.labels.dtype, None

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Any:
        return iter(self.labels)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.labels.astype(dtype) if dtype is not None else self.labels

    def __getitem__(self, rows: slice) -> Index:
        return Index(self.labels[rows], self.name)

    def to_numpy(self) -> Any:
        return self.labels

    def get_indexer(self, labels: Any) -> Any:
        raise NotImplementedError


class Series:
    """A column with an index and a name."""

    def __init__(self, values: Any, index: Any, name: Any = None) -> None:
        self.values, self.index, self.name = np.asarray(values), index, name
        self.iloc, self.dtype, self.shape = self.values, self.values.dtype, self.values.shape

    def to_numpy(self, dtype: Any = None, na_value: Any = None) -> Any:
        return self.values.astype(dtype)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class _Columns:
    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    def __getitem__(self, place: tuple[slice, int]) -> Series:
        return Series(self.frame.values[place], self.frame.index, self.frame.columns[place[1]])


class DataFrame:
    """Columns with an index and names."""

    def __init__(self, values: Any, index: Any, columns: Any = None) -> None:
        self.values, self.index = np.asarray(values), index
        self.columns = list(range(self.values.shape[1])) if columns is None else list(columns)
        self.shape, self.dtypes = self.values.shape, [self.values.dtype] * self.values.shape[1]
        self.iloc = _Columns(self)

    def __getitem__(self, names: list[Any]) -> DataFrame:
        places = [self.columns.index(name) for name in names]
        return DataFrame(self.values[:, places], self.index, names)

    def to_numpy(self, dtype: Any = None, na_value: Any = None) -> Any:
        return self.values.astype(dtype)
