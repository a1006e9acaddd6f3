"""Parts of time series: trends, seasons, autoregressions and more, to be added up in ``LinearGaussianSSM``.

A component defines how its states move and how they are observed. Components are added with ``+``: their
states are put side by side, and their observations are added.
"""

from lapgrad.models.components.base import Block, Component, Sum
from lapgrad.models.components.learned import Emitted, LinearDynamics
from lapgrad.models.components.periodic import Cycle, HarmonicSeasonal
from lapgrad.models.components.structural import AR, LocalLevel, LocalLinearTrend, Regression, Seasonal

__all__ = [
    "AR",
    "Block",
    "Component",
    "Cycle",
    "Emitted",
    "HarmonicSeasonal",
    "LinearDynamics",
    "LocalLevel",
    "LocalLinearTrend",
    "Regression",
    "Seasonal",
    "Sum",
]


def __dir__() -> list[str]:
    return sorted(__all__)
