"""Covariance functions (kernels) for Gaussian processes.

Kernels are added and multiplied with ``+`` and ``*``; ``Deep`` puts a network in front of one. Their
hyper-parameters are read and set in their own units (``kernel.lengthscale = 0.5``), and learned by
``fit`` of the model that holds the kernel.

Example:
    >>> import torch
    >>> from lapgrad.models.kernels import RBF, Periodic
    >>> kernel = RBF(lengthscale=3.0) + 2.0 * Periodic(period=1.0)
    >>> kernel(torch.zeros(5, 1)).shape
    torch.Size([5, 5])
"""

from lapgrad.models.kernels.base import Kernel, covariance, kernel_from_config
from lapgrad.models.kernels.combinations import Power, Product, Sum
from lapgrad.models.kernels.constant import Constant, White
from lapgrad.models.kernels.coregionalisation import Coregionalisation
from lapgrad.models.kernels.deep import Deep
from lapgrad.models.kernels.dot_product import Linear, Polynomial
from lapgrad.models.kernels.periodic import Periodic
from lapgrad.models.kernels.pivoted_cholesky import KernelFactor, pivoted_cholesky
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
    "Coregionalisation",
    "Deep",
    "Kernel",
    "KernelFactor",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Power",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "White",
    "covariance",
    "kernel_from_config",
    "pivoted_cholesky",
]


def __dir__() -> list[str]:
    return sorted(__all__)
