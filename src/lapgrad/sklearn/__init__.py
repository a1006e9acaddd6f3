"""Estimators for scikit-learn: arrays in, arrays out; pipelines, cross-validation and grid searches work.

The models behind them are those of ``lapgrad.models``; a fitted estimator has its own as ``model_``.
"""

import importlib.util

from lapgrad import _errors

if importlib.util.find_spec("sklearn") is None:
    raise _errors.missing_dependency("lapgrad.sklearn", "scikit-learn", "sklearn")

from lapgrad.sklearn.bayesian_linear_regressor import BayesianLinearRegressor
from lapgrad.sklearn.gp_classifier import GPClassifier
from lapgrad.sklearn.gp_regressor import GPRegressor
from lapgrad.sklearn.sparse_gp_regressor import SparseGPRegressor

__all__ = ["BayesianLinearRegressor", "GPClassifier", "GPRegressor", "SparseGPRegressor"]


def __dir__() -> list[str]:
    return sorted(__all__)
