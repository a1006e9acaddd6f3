"""Criteria of models as one operator each, with their gradient in closed form.

``mvn_nll`` is the negative log density of a normal distribution, ``kalman_nll`` that of a linear Gaussian
state space model, and ``sgp_nll`` the bound of a sparse Gaussian process. Value and gradient share
factorisations and buffers, so they need less time and memory than the same formulas written with the
operators.
"""

from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused.kalman_nll import kalman_nll
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.fused.sgp_nll import sgp_nll

__all__ = ["KernelFunction", "kalman_nll", "mvn_nll", "sgp_nll"]


def __dir__() -> list[str]:
    return sorted(__all__)
