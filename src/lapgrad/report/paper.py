"""Figures of M. Seeger et al., Auto-Differentiating Linear Algebra (arXiv:1710.08717), beside ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A mean over ten folds and its deviation, as printed."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Quality:
    """One method on one data set of Table 1: root mean squared error, log likelihood of test points."""

    method: str
    inducing: int
    rmse: Figure
    tll: Figure


def _row(method: str, inducing: int, rmse: tuple[float, float], tll: tuple[float, float]) -> Quality:
    return Quality(method, inducing, Figure(*rmse), Figure(*tll))


TABLE_1 = {
    "naval1": (
        _row("GPy", 50, (3.5e-5, 1.0e-5), (8.58, 0.22)),
        _row("MXNet", 50, (3.7e-5, 1.1e-5), (8.69, 0.19)),
        _row("MXNet", 3200, (0.6e-5, 0.6e-5), (10.70, 0.51)),
    ),
    "naval2": (
        _row("GPy", 50, (3.1e-4, 9.0e-6), (6.66, 0.03)),
        _row("MXNet", 50, (3.1e-4, 8.0e-6), (6.67, 0.02)),
        _row("MXNet", 3200, (2.97e-4, 5.0e-6), (6.70, 0.02)),
    ),
    "kin8nm": (
        _row("GPy", 50, (8.7e-2, 3.1e-3), (0.98, 0.02)),
        _row("MXNet", 50, (8.85e-2, 2.96e-3), (0.98, 0.02)),
        _row("MXNet", 3200, (6.79e-2, 2.48e-3), (1.28, 0.04)),
    ),
    "power": (
        _row("GPy", 50, (3.98, 0.186), (-2.80, 0.05)),
        _row("MXNet", 50, (3.98, 0.186), (-2.80, 0.05)),
        _row("MXNet", 3200, (3.08, 0.280), (-2.53, 0.10)),
    ),
}
"""By data set."""

TABLE_2 = {
    "5": {"SV-DGP": 313.07, "VAE-DGP": 301.67},
    "10-50": {"SV-DGP": 705.03, "VAE-DGP": 674.86},
    "5-20-50": {"SV-DGP": 724.83, "VAE-DGP": 723.65},
}
"""Log likelihood of test points of MNIST by architecture; SV-DGP is the paper's model."""

FIGURE_2 = {
    "MXNet, GPU": ((50, 0.015), (3200, 1.49)),
    "MXNet, CPU": ((50, 0.035), (3200, 4.63)),
    "GPy": ((50, 1.070), (3200, 13.67)),
}
"""Seconds of criterion and gradient of a sparse Gaussian process on power, by its inducing inputs."""
