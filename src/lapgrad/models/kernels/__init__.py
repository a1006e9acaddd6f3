"""Covariance functions for Gaussian processes: one file per family."""

from lapgrad.models.kernels.base import Kernel, Product, Sum, covariance, kernel_from_config, part_of_state
from lapgrad.models.kernels.stationary import RBF, Stationary

__all__ = [
    "RBF",
    "Kernel",
    "Product",
    "Stationary",
    "Sum",
    "covariance",
    "kernel_from_config",
    "part_of_state",
]
