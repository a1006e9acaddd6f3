"""Probabilistic models on top of the operators."""

from lapgrad.models.criteria import blr_nll

__all__ = ["blr_nll"]
