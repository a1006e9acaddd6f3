"""Gaussian process regression as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapgrad.models import GPRegression
from lapgrad.models.kernels.base import Kernel
from lapgrad.sklearn._regressor import ModelRegressor, copy_part


class GPRegressor(ModelRegressor):
    """Exact Gaussian process regression; all hyper-parameters are learned by the marginal likelihood.

    Args:
        kernel: A kernel of ``lapgrad.models.kernels``; None: ``RBF(ard=True)``. The estimator learns
            a copy, and hyper-parameters that were not given start from the data.
        mean: "constant" or "zero".
        normalise: Shift and scale inputs and targets to mean 0 and variance 1 first. Hyper-parameters of the
            kernel are in these units.
        optimizer: "lbfgs" or "adam".
        steps: Evaluations of the loss at most; None: the default of the optimiser.
        n_restarts_optimizer: How many further starts are learned together with the first one; None: as
            ``GPRegression.fit`` chooses.
        device: The device of the model: "cpu" or "cuda".

    Attributes:
        model_: The fitted ``GPRegression``, in normalised units.
        fit_result_: The outcome of the fit.
        log_marginal_likelihood_: In the units of the targets.

    Example:
        >>> import numpy as np
        >>> from lapgrad.sklearn import GPRegressor
        >>> x = np.linspace(0, 6, 40)[:, None]
        >>> regressor = GPRegressor().fit(x, np.sin(x[:, 0]))
        >>> regressor.predict([[1.0]]).round(2)
        array([0.84])
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        mean: str = "constant",
        normalise: bool = True,
        optimizer: str = "lbfgs",
        steps: int | None = None,
        n_restarts_optimizer: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.normalise = normalise
        self.optimizer = optimizer
        self.steps = steps
        self.n_restarts_optimizer = n_restarts_optimizer
        self.device = device

    def _make_model(self, X: Tensor, y: Tensor, seed: int) -> GPRegression:
        return GPRegression(X, y, copy_part(self.kernel), mean=self.mean, normalise=False)

    def _get_fit_options(self) -> dict[str, Any]:
        return {} if self.n_restarts_optimizer is None else {"starts": self.n_restarts_optimizer + 1}
