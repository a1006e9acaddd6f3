"""Models on top of the operators: Gaussian processes and their relatives, as ``torch.nn.Module``."""

from lapgrad.models import kernels
from lapgrad.models._fitting import FitResult
from lapgrad.models._model import Model
from lapgrad.models._prediction import Prediction
from lapgrad.models._weights import WeightPosterior
from lapgrad.models.bayesian_linear_regression import BayesianLinearRegression
from lapgrad.models.criteria import blr_nll, gp_nll, sgp_nll
from lapgrad.models.features import Features, PolynomialFeatures, RandomFourierFeatures
from lapgrad.models.gp_regression import GPRegression
from lapgrad.models.multi_task_blr import MultiTaskBLR
from lapgrad.models.sparse_gp_regression import SparseGPRegression

__all__ = [
    "BayesianLinearRegression",
    "Features",
    "FitResult",
    "GPRegression",
    "Model",
    "MultiTaskBLR",
    "PolynomialFeatures",
    "Prediction",
    "RandomFourierFeatures",
    "SparseGPRegression",
    "WeightPosterior",
    "blr_nll",
    "gp_nll",
    "kernels",
    "sgp_nll",
]
