"""Covariance functions for Gaussian processes: one file per family."""

from lapgrad.models.kernels.base import Kernel, Product, Sum, covariance, kernel_from_config, part_of_state
from lapgrad.models.kernels.constant import Constant, White
from lapgrad.models.kernels.deep import Deep
from lapgrad.models.kernels.dot_product import Linear, Polynomial
from lapgrad.models.kernels.periodic import Periodic
from lapgrad.models.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Stationary,
)

__all__ = [
    "RBF",
    "Constant",
    "Deep",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "White",
    "covariance",
    "kernel_from_config",
    "part_of_state",
]
