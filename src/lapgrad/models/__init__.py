"""Models on top of the operators: Gaussian processes and their relatives, as ``torch.nn.Module``."""

from lapgrad.models import kernels
from lapgrad.models._fitting import FitResult
from lapgrad.models._model import Model
from lapgrad.models.criteria import blr_nll, gp_nll, sgp_nll

__all__ = ["FitResult", "Model", "blr_nll", "gp_nll", "kernels", "sgp_nll"]
