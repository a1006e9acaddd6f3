"""Learning criteria of the models as pure functions: one file each."""

from lapgrad.models.criteria.blr_nll import blr_nll

__all__ = ["blr_nll"]
