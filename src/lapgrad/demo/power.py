"""Combined Cycle Power Plant: 9568 hours, the output of a plant from four measurements of air and steam.

The file is not part of the package. Tufekci and Kaya (2014), UCI Machine Learning Repository,
doi:10.24432/C5002N, CC BY 4.0.
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import torch
from torch import Tensor

FILE = "power.csv.gz"
_COLUMNS = 5


def load(folder: str | os.PathLike[str] | None = None) -> tuple[Tensor, Tensor]:
    """Inputs (9568, 4) and the output (9568,) as they were measured, in float64.

    Args:
        folder: Where ``power.csv.gz`` is: a line of names, then four inputs and the output per line. None:
            the environment variable LAPGRAD_DATA says it.

    Raises:
        FileNotFoundError: The file is not there; the message says where it can be had.
    """
    path = Path(folder or os.environ.get("LAPGRAD_DATA") or ".") / FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist. Pass the folder that holds it (--data-dir), or set LAPGRAD_DATA. The "
            f"data are set 294 of the UCI Machine Learning Repository, https://doi.org/10.24432/C5002N: save "
            f"its table (AT, V, AP, RH, PE; one header line) as a gzipped CSV file of that name."
        )
    with gzip.open(path, "rt") as lines:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(lines))[1:]]
    if not rows or any(len(row) != _COLUMNS for row in rows):
        raise ValueError(f"{path}: {_COLUMNS} numbers per line were wanted.")
    values = torch.tensor(rows, dtype=torch.float64)
    return values[:, :-1], values[:, -1]


def stand_in(n: int = 9568, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Made-up data of the same kind, for when the file is not there: inputs (n, d), output (n,).

    Example:
        >>> X, y = stand_in(100)
        >>> X.shape, y.shape
        (torch.Size([100, 4]), torch.Size([100]))
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    directions = torch.randn(d, 8, dtype=torch.float64, generator=generator) / d**0.5
    smooth = torch.sin(X @ directions).sum(-1)
    return X, smooth + 0.2 * torch.randn(n, dtype=torch.float64, generator=generator)


def standardised(values: Tensor) -> Tensor:
    """Each column (or the vector) with mean 0 and variance 1; what does not vary becomes 0."""
    deviation = values.std(0, correction=0)
    return (values - values.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
