"""Learning criteria of the models as pure functions: one file each."""

from lapgrad.models.criteria.blr_nll import blr_nll
from lapgrad.models.criteria.gp_nll import gp_nll
from lapgrad.models.criteria.kalman_filter import Filtered, kalman_filter
from lapgrad.models.criteria.kalman_smoother import Smoothed, kalman_smoother
from lapgrad.models.criteria.sgp_nll import sgp_nll, sgp_nll_from_matrices

__all__ = [
    "Filtered",
    "Smoothed",
    "blr_nll",
    "gp_nll",
    "kalman_filter",
    "kalman_smoother",
    "sgp_nll",
    "sgp_nll_from_matrices",
]
