"""What users of linear algebra ask for, in terms of the operators: one file per function."""

from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.linalg.inverse_psd import inverse_psd
from lapgrad.linalg.logdet_psd import logdet_psd
from lapgrad.linalg.lstsq import lstsq
from lapgrad.linalg.solve_psd import solve_psd

__all__ = ["cho_solve", "inverse_psd", "logdet_psd", "lstsq", "solve_psd"]
