"""Loads the data sets of the experiments from files; nothing is downloaded.

The files are not part of the package: ``--data-dir`` or LAPGRAD_DATA names the folder they are in, and the
message about a missing one says where it can be had. Each is a gzipped CSV file: a line with the names of
the columns, then numbers, targets last.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import os
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions


@dataclass(frozen=True)
class Table:
    """A file of measurements.

    Attributes:
        file: Its name.
        inputs: Names of the columns that are given.
        targets: Names of the columns that are to be predicted; they come last.
        rows: How many measurements there are.
        sha256: Of the file that published figures were made with.
        source: Where it can be had, in words.
    """

    file: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    rows: int
    sha256: str
    source: str

    @property
    def columns(self) -> tuple[str, ...]:
        """All names, in the order of the file."""
        return self.inputs + self.targets


POWER = Table(
    file="power.csv.gz",
    inputs=("AT", "V", "AP", "RH"),
    targets=("PE",),
    rows=9568,
    sha256="a5c1c9ebe84fc4e39bb4c1ed41d3116bd88b5797e254e3682fb379239a5c3448",
    source=(
        "Combined Cycle Power Plant (Tufekci and Kaya 2014), set 294 of the UCI Machine Learning Repository, "
        "https://doi.org/10.24432/C5002N"
    ),
)
NAVAL = Table(
    file="naval.csv.gz",
    inputs=(
        *("lp", "v", "GTT", "GTn", "GGn", "Ts", "Tp", "T48"),
        *("T1", "T2", "P48", "P1", "P2", "Pexh", "TIC", "mf"),
    ),
    targets=("kMc", "kMt"),
    rows=11934,
    sha256="3db793ff53306a0b7ad22b7a1d04ad142b5179b7b187b4aec4bf9be2d45b0afa",
    source=(
        "Condition Based Maintenance of Naval Propulsion Plants (Coraddu et al. 2014), set 316 of the UCI "
        "Machine Learning Repository, https://doi.org/10.24432/C5K31K"
    ),
)
KIN8NM = Table(
    file="kin8nm.csv.gz",
    inputs=tuple(f"theta{joint}" for joint in range(1, 9)),
    targets=("y",),
    rows=8192,
    sha256="0bfc160393b078105a841ad00b321b03d5799b7600ec1b5a4f774ed93761bf40",
    source="kin8nm of the DELVE repository (University of Toronto), also set 189 of https://www.openml.org",
)

#: What is learned from what: a table and one of its targets. Which decay coefficient is naval1 and which
#: naval2 is not said in the paper; `lapgrad reproduce table1` reports what fits.
TASKS: dict[str, tuple[Table, str]] = {
    "naval1": (NAVAL, "kMc"),
    "naval2": (NAVAL, "kMt"),
    "kin8nm": (KIN8NM, "y"),
    "power": (POWER, "PE"),
}


def load(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[Tensor, Tensor]:
    """Return inputs (n, d) and one target (n,) of a task, unscaled, in float64, in the order of the file.

    Args:
        name: A key of ``TASKS``.
        folder: Where the files are; None: what LAPGRAD_DATA says, else the present folder.

    Raises:
        FileNotFoundError: The file is not there; the message says where it can be had.
        FileFormatError: It is not a table of these columns.
        OptionError: There is no such task.

    Warns:
        UserWarning: The file is another one than that of the published figures.
    """
    if name not in TASKS:
        raise _errors.unknown_option("datasets.load", "name", name, list(TASKS))
    table, target = TASKS[name]
    values = _read_table(table, find_file(table.file, table.source, _describe_contents(table), folder))
    return values[:, : len(table.inputs)], values[:, table.columns.index(target)]


def find_file(file: str, source: str, wanted: str, folder: str | os.PathLike[str] | None) -> Path:
    """Return the path of a data file.

    Args:
        file: Its name.
        source: Where it can be had.
        wanted: What is to be in it.
        folder: Where it is; None: what LAPGRAD_DATA says, else the present folder.

    Raises:
        FileNotFoundError: It is not there.
    """
    path = Path(folder or os.environ.get("LAPGRAD_DATA") or ".") / file
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist. Pass the folder that holds it (--data-dir), or set LAPGRAD_DATA. The "
            f"data are {source}: save {wanted} under that name."
        )
    return path


def make_stand_in(n: int = POWER.rows, d: int = 4) -> tuple[Tensor, Tensor]:
    """Return made-up data like *power*, for when its file is missing: inputs (n, d), target (n,).

    Example:
        >>> X, y = make_stand_in(100)
        >>> X.shape, y.shape
        (torch.Size([100, 4]), torch.Size([100]))
    """
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    directions = torch.randn(d, 8, dtype=torch.float64, generator=generator) / d**0.5
    smooth = torch.sin(X @ directions).sum(-1)
    return X, smooth + 0.2 * torch.randn(n, dtype=torch.float64, generator=generator)


def standardise(values: Tensor) -> Tensor:
    """Return each column (or the vector) with mean 0 and variance 1; a constant one becomes 0."""
    deviation = values.std(0, correction=0)
    return (values - values.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def _describe_contents(table: Table) -> str:
    return f"its table as a gzipped CSV file (one line of names: {','.join(table.columns)}; then the numbers)"


def _read_table(table: Table, path: Path) -> Tensor:
    try:
        packed = path.read_bytes()
        lines = gzip.decompress(packed).decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _make_format_error(table, path, f"it is not a gzipped text file ({error})") from error
    names, *rows = list(csv.reader(lines)) or [[]]
    if len(names) != len(table.columns):
        raise _make_format_error(
            table, path, f"its first line has {len(names)} names, {len(table.columns)} are wanted"
        )
    if not rows:
        raise _make_format_error(table, path, "there is nothing below its first line")
    numbers = [_parse_numbers(table, path, row, line) for line, row in enumerate(rows, start=2)]
    if hashlib.sha256(packed).hexdigest() != table.sha256:
        warnings.warn(
            f"{path} is not the file that published figures were made with (its sha256 is another one): "
            f"{len(rows)} rows, {table.rows} in the original.",
            stacklevel=4,
        )
    return torch.tensor(numbers, dtype=torch.float64)


def _parse_numbers(table: Table, path: Path, row: list[str], line: int) -> list[float]:
    if len(row) != len(table.columns):
        raise _make_format_error(
            table, path, f"line {line} has {len(row)} cells, {len(table.columns)} are wanted"
        )
    try:
        numbers = [float(cell) for cell in row]
    except ValueError as error:
        raise _make_format_error(table, path, f"line {line}: {error}") from error
    if not all(map(math.isfinite, numbers)):
        raise _make_format_error(table, path, f"line {line} holds a NaN or an infinity")
    return numbers


def _make_format_error(table: Table, path: Path, what: str) -> _exceptions.FileFormatError:
    return _exceptions.FileFormatError(
        f"{path}: {what}. The data are {table.source}: save {_describe_contents(table)}."
    )
