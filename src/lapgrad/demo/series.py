"""The time series of the examples: the flow of the Nile, and airline passengers; see data/*.md."""

from __future__ import annotations

import csv
from importlib.resources import files

import numpy as np
import numpy.typing as npt


def load_nile() -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.float64]]:
    """Return the years 1871 to 1970, as dates, and the flow of the Nile at Aswan in 10⁸ m³, both (100,).

    Example:
        >>> years, flow = load_nile()
        >>> str(years[0]), flow[0].item()
        ('1871', 1120.0)
    """
    return _load("nile.csv", "year", "volume", "datetime64[Y]")


def load_airline_passengers() -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.float64]]:
    """Return the months 1949-01 to 1960-12, as dates, and airline passengers in thousands, both (144,).

    Example:
        >>> months, passengers = load_airline_passengers()
        >>> str(months[-1]), passengers[-1].item()
        ('1960-12', 432.0)
    """
    return _load("airline_passengers.csv", "month", "passengers_thousands", "datetime64[M]")


def _load(
    name: str, time: str, value: str, dtype: str
) -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.float64]]:
    with (files("lapgrad") / "data" / name).open() as lines:
        rows = list(csv.DictReader(lines))
    return np.array([row[time] for row in rows], dtype=dtype), np.array([float(row[value]) for row in rows])
