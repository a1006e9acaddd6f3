"""Gaussian process regression with inducing inputs as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from lapgrad.models import SparseGPRegression
from lapgrad.models.kernels.base import Kernel
from lapgrad.sklearn._regressor import ModelRegressor, copy_part


class SparseGPRegressor(ModelRegressor):
    """Gaussian process regression with inducing inputs: for more data than ``GPRegressor`` can take.

    Args:
        kernel: A kernel of ``lapgrad.models.kernels``; None: ``RBF(ard=True)``. The estimator learns
            a copy, and hyper-parameters that were not given start from the data.
        inducing: How many inducing inputs; there are never more than different rows of X.
        mean: "constant" or "zero".
        normalise: Shift and scale inputs and targets to mean 0 and variance 1 first. Hyper-parameters of the
            kernel are in these units.
        optimizer: "lbfgs" or "adam".
        steps: Evaluations of the loss at most; None: the default of the optimiser.
        random_state: Seed of the choice of inducing inputs, a ``numpy.random.RandomState``, or None.
        device: The device of the model: "cpu" or "cuda".

    Attributes:
        model_: The fitted ``SparseGPRegression``, in normalised units.
        fit_result_: The outcome of the fit.
        log_marginal_likelihood_: Its lower bound, in the units of the targets.

    Example:
        >>> import numpy as np
        >>> from lapgrad.sklearn import SparseGPRegressor
        >>> x = np.linspace(0, 6, 300)[:, None]
        >>> regressor = SparseGPRegressor(inducing=10, random_state=0).fit(x, np.sin(x[:, 0]))
        >>> regressor.predict([[1.0]]).round(2)
        array([0.84])
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        inducing: int = 100,
        mean: Literal["constant", "zero"] = "constant",
        normalise: bool = True,
        optimizer: str = "lbfgs",
        steps: int | None = None,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.inducing = inducing
        self.mean = mean
        self.normalise = normalise
        self.optimizer = optimizer
        self.steps = steps
        self.random_state = random_state
        self.device = device

    def _make_model(self, X: Tensor, y: Tensor, seed: int) -> SparseGPRegression:
        return SparseGPRegression(
            X,
            y,
            copy_part(self.kernel),
            inducing=self.inducing,
            mean=self.mean,
            normalise=False,  # done by the estimator
            generator=seed,
        )
