"""Figures of the paper that experiments are compared with.

M. Seeger, A. Hetzel, Z. Dai, E. Meissner, N. D. Lawrence, *Auto-Differentiating Linear Algebra*,
arXiv:1710.08717, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A mean over folds and its standard deviation, and whether larger values are better."""

    mean: float
    deviation: float
    sense: Literal["≤", "≥"]

    @property
    def worst(self) -> float:
        """The limit for "reached": one standard deviation worse than the paper's mean."""
        return self.mean + self.deviation if self.sense == "≤" else self.mean - self.deviation

    def is_reached_by(self, figure: float) -> bool:
        """Return whether a figure is at least as good as the worst one that counts."""
        return figure <= self.worst if self.sense == "≤" else figure >= self.worst


@dataclass(frozen=True)
class Quality:
    """How well one task was learned: root mean squared error and mean log density of test targets."""

    rmse: Figure
    tll: Figure


def _make_row(*figures: tuple[float, float, float, float]) -> dict[str, Quality]:
    """Return a row of Table 1 from RMSE, its deviation, TLL and its deviation for each task."""
    tasks = ("naval1", "naval2", "kin8nm", "power")
    return {
        task: Quality(Figure(rmse, of_rmse, "≤"), Figure(tll, of_tll, "≥"))
        for task, (rmse, of_rmse, tll, of_tll) in zip(tasks, figures, strict=True)
    }


#: Table 1: sparse Gaussian processes, by library and number of inducing inputs; means over 10 folds.
TABLE1: dict[tuple[str, int], dict[str, Quality]] = {
    ("GPy", 50): _make_row(
        (3.5e-5, 1.0e-5, 8.58, 0.22),
        (3.1e-4, 9.0e-6, 6.66, 0.03),
        (8.7e-2, 3.1e-3, 0.98, 0.02),
        (3.98, 0.186, -2.80, 0.05),
    ),
    ("MXNet", 50): _make_row(
        (3.7e-5, 1.1e-5, 8.69, 0.19),
        (3.1e-4, 8.0e-6, 6.67, 0.02),
        (8.85e-2, 2.96e-3, 0.98, 0.02),
        (3.98, 0.186, -2.80, 0.05),
    ),
    ("MXNet", 3200): _make_row(
        (0.6e-5, 0.6e-5, 10.70, 0.51),
        (2.97e-4, 5.0e-6, 6.70, 0.02),
        (6.79e-2, 2.48e-3, 1.28, 0.04),
        (3.08, 0.280, -2.53, 0.10),
    ),
}

#: Table 2: deep Gaussian processes on MNIST, log likelihood of test images in nats, by model and architecture
#: (latent variables per layer, the top layer first). SV-DGP is the paper's own.
TABLE2: dict[str, dict[str, float]] = {
    "SV-DGP": {"5": 313.07, "10-50": 705.03, "5-20-50": 724.83},
    "VAE-DGP": {"5": 301.67, "10-50": 674.86, "5-20-50": 723.65},
}

#: Figure 2: seconds of criterion and gradient of a sparse Gaussian process on *power*, by library and device;
#: numbers of inducing inputs, and what the caption says of them.
FIGURE2: dict[str, tuple[tuple[int, float], ...]] = {
    "MXNet, GPU": ((50, 0.015), (3200, 1.49)),
    "MXNet, CPU": ((50, 0.035), (3200, 4.63)),
    "GPy": ((50, 1.070), (3200, 13.67)),
}
