"""Criteria of models as one operator each, with their gradient in closed form: one file per function."""

from lapgrad.fused.mvn_nll import mvn_nll

__all__ = ["mvn_nll"]
