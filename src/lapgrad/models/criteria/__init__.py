"""Learning criteria of the models as pure functions: one file each."""

from lapgrad.models.criteria.blr_nll import blr_nll
from lapgrad.models.criteria.gp_nll import gp_nll
from lapgrad.models.criteria.sgp_nll import sgp_nll

__all__ = ["blr_nll", "gp_nll", "sgp_nll"]
