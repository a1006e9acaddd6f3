"""Bayesian linear regression as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models import BayesianLinearRegression, PolynomialFeatures, RandomFourierFeatures
from lapgrad.models._linear.ridge import Method
from lapgrad.sklearn._regressor import ModelRegressor, copy_part

_FEATURES = ("polynomial", "fourier")


class BayesianLinearRegressor(ModelRegressor):
    """Bayesian linear regression on features; all hyper-parameters are learned by the marginal likelihood.

    Args:
        features: None for the inputs themselves, "polynomial", "fourier" (random Fourier features of the RBF
            kernel, with a lengthscale per input), or an ``nn.Module`` that maps (n, d) to (n, m).
        degree: Of the polynomial.
        frequencies: How many random frequencies.
        ard: A prior variance per feature.
        normalise: Shift and scale inputs and targets to mean 0 and variance 1 first.
        method: "lq" or "cholesky", see ``lapgrad.models.blr_nll``.
        optimizer: "lbfgs" or "adam".
        steps: Evaluations of the loss at most; None: the default of the optimiser.
        random_state: Seed of the frequencies, a ``numpy.random.RandomState``, or None.
        device: The device of the model: "cpu" or "cuda".

    Attributes:
        model_: The fitted ``BayesianLinearRegression``, in normalised units.
        fit_result_: The outcome of the fit.
        log_marginal_likelihood_: In the units of the targets.

    Example:
        >>> import numpy as np
        >>> from lapgrad.sklearn import BayesianLinearRegressor
        >>> x = np.linspace(-1, 1, 50)[:, None]
        >>> regressor = BayesianLinearRegressor("polynomial", degree=2).fit(x, 1 + x[:, 0] ** 2)
        >>> mean, deviation = regressor.predict([[0.5]], return_std=True)
        >>> mean.round(3)
        array([1.25])
    """

    def __init__(
        self,
        features: str | nn.Module | None = None,
        *,
        degree: int = 3,
        frequencies: int = 100,
        ard: bool = False,
        normalise: bool = True,
        method: Method = "lq",
        optimizer: str = "lbfgs",
        steps: int | None = None,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.features = features
        self.degree = degree
        self.frequencies = frequencies
        self.ard = ard
        self.normalise = normalise
        self.method = method
        self.optimizer = optimizer
        self.steps = steps
        self.random_state = random_state
        self.device = device

    def _make_model(self, X: Tensor, y: Tensor, seed: int) -> BayesianLinearRegression:
        return BayesianLinearRegression(
            X,
            y,
            self._copy_features(X.shape[1], seed),
            ard=self.ard,
            normalise=False,  # done by the estimator
            method=self.method,
        )

    def _copy_features(self, inputs: int, seed: int) -> nn.Module | None:
        if self.features is None or isinstance(self.features, nn.Module):
            return copy_part(self.features)
        if self.features == "polynomial":
            return PolynomialFeatures(self.degree)
        if self.features == "fourier":
            return RandomFourierFeatures(
                inputs, self.frequencies, [float(inputs) ** 0.5] * inputs, generator=seed
            )
        raise _errors.unknown_option(type(self).__name__, "features", self.features, _FEATURES)
