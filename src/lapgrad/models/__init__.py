"""Models on top of the operators: Gaussian processes and their relatives, as ``torch.nn.Module``.

A model is made from its data, ``fit()`` learns its hyper-parameters, and ``predict`` returns a mean and a
variance. ``save`` and ``load`` keep it in a file. The criteria (``gp_nll``, ``blr_nll``, ...) are
functions, for models of your own.
"""

from lapgrad.models import components, kernels, likelihoods
from lapgrad.models._deep.importance import LogLikelihood
from lapgrad.models._gp.leave_one_out import LeaveOneOut
from lapgrad.models._linear.weights import WeightPosterior
from lapgrad.models._model import Model
from lapgrad.models._prediction import Prediction
from lapgrad.models._training.result import FitResult
from lapgrad.models.batch_gp_regression import BatchGPRegression
from lapgrad.models.bayesian_linear_regression import BayesianLinearRegression
from lapgrad.models.criteria import (
    Filtered,
    Smoothed,
    blr_nll,
    gp_nll,
    kalman_filter,
    kalman_smoother,
    sgp_nll,
    sgp_nll_from_matrices,
)
from lapgrad.models.deep_gp import DeepGP
from lapgrad.models.deep_gp_regression import DeepGPRegression
from lapgrad.models.features import Features, PolynomialFeatures, RandomFourierFeatures
from lapgrad.models.gp_regression import GPRegression
from lapgrad.models.linear_gaussian_ssm import LinearGaussianSSM
from lapgrad.models.multi_output_gp_regression import MultiOutputGPRegression
from lapgrad.models.multi_task_blr import MultiTaskBLR
from lapgrad.models.sparse_gp_regression import SparseGPRegression
from lapgrad.models.variational.gp_classification import ClassPrediction, GPClassification
from lapgrad.models.variational.variational_gp import VariationalGP

__all__ = [
    "BatchGPRegression",
    "BayesianLinearRegression",
    "ClassPrediction",
    "DeepGP",
    "DeepGPRegression",
    "Features",
    "Filtered",
    "FitResult",
    "GPClassification",
    "GPRegression",
    "LeaveOneOut",
    "LinearGaussianSSM",
    "LogLikelihood",
    "Model",
    "MultiOutputGPRegression",
    "MultiTaskBLR",
    "PolynomialFeatures",
    "Prediction",
    "RandomFourierFeatures",
    "Smoothed",
    "SparseGPRegression",
    "VariationalGP",
    "WeightPosterior",
    "blr_nll",
    "components",
    "gp_nll",
    "kalman_filter",
    "kalman_smoother",
    "kernels",
    "likelihoods",
    "sgp_nll",
    "sgp_nll_from_matrices",
]


def __dir__() -> list[str]:
    return sorted(__all__)
