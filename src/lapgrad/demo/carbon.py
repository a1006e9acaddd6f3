"""CO2 at Mauna Loa, monthly means (data/co2_monthly.md): 29 years to learn from, 10 to forecast.

The result depends on where the series is cut. With cuts at 1985, 1988 and 1990 the RMSE of the forecast is
0.63, 0.75 and 1.95 ppm; that of the last year repeated with drift is 1.04, 0.83 and 1.53 ppm. (In 1992 and
1993 the level rose less than before.) The demonstration shows the library at work, not the best model of this
series.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import Tensor

FIRST_TEST_YEAR = 1988


@dataclass(frozen=True)
class Series:
    """Times in years (the middle of each month) and parts per million, both of shape (months,)."""

    years: Tensor
    ppm: Tensor

    def __len__(self) -> int:
        return len(self.years)


def load() -> tuple[Series, Series]:
    """Return the months before 1988 and those from then on, in float64.

    Example:
        >>> train, test = load()
        >>> len(train), len(test)
        (348, 120)
    """
    with (files("lapgrad") / "data" / "co2_monthly.csv").open() as lines:
        rows = [(_parse_month(row["month"]), float(row["co2_ppm"])) for row in csv.DictReader(lines)]
    years, ppm = torch.tensor(rows, dtype=torch.float64).unbind(1)
    early = years < FIRST_TEST_YEAR
    return Series(years[early], ppm[early]), Series(years[~early], ppm[~early])


def repeat_last_year_with_drift(train: Series, months: int) -> Tensor:
    """Return a forecast without a model: the last year repeated, plus the mean rise of the last ten years."""
    last = train.ppm[-12:]
    rise_per_year = (last.mean() - train.ppm[-132:-120].mean()) / 10
    ahead = torch.arange(months)
    return last[ahead % 12] + rise_per_year * (ahead // 12 + 1)


def _parse_month(month: str) -> float:
    """Return the middle of a month such as "1959-01" in years."""
    year, number = month.split("-")
    return int(year) + (int(number) - 0.5) / 12
