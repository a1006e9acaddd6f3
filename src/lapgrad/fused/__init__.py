"""Criteria of models as one operator each, with their gradient in closed form: one file per function."""

from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused.kalman_nll import kalman_nll
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.fused.sgp_nll import sgp_nll

__all__ = ["KernelFunction", "kalman_nll", "mvn_nll", "sgp_nll"]
