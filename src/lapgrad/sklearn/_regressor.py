"""The base class of the estimators: conversion of arrays, fitting, and scikit-learn's conventions."""

from __future__ import annotations

import abc
import copy
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapgrad.models import BayesianLinearRegression, FitResult, GPRegression, SparseGPRegression

Floats = NDArray[np.float64]
Regression = GPRegression | SparseGPRegression | BayesianLinearRegression
_Part = TypeVar("_Part")


class ModelRegressor(RegressorMixin, BaseEstimator, abc.ABC):
    """A model of ``lapgrad.models`` as an estimator.

    The constructor of a subclass only stores its arguments, among them ``normalise``, ``optimizer``,
    ``steps`` and ``device`` (and ``random_state``, if anything is random). Subclasses implement
    ``_make_model``.
    """

    model_: Regression
    fit_result_: FitResult
    log_marginal_likelihood_: float
    n_features_in_: int

    normalise: bool
    optimizer: str
    steps: int | None
    random_state: Any = 0
    device: str

    @abc.abstractmethod
    def _make_model(self, X: Tensor, y: Tensor, seed: int) -> Regression:
        """Return a new model of these data. It must not change arguments of the constructor."""

    def _get_fit_options(self) -> dict[str, Any]:
        """Return further arguments of ``fit`` of the model. Default: none."""
        return {}

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the hyper-parameters by the marginal likelihood.

        Args:
            X: (n, d), the inputs.
            y: (n,) or (n, k), the targets.

        Returns:
            The estimator itself.
        """
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        X, y = np.array(X), np.array(y, dtype=np.float64)
        self._shift, self._scale = _compute_shift_and_scale(X, self.normalise)
        self._target_shift, scales = _compute_shift_and_scale(y, self.normalise)
        # All targets share one scale, because the model has one variance for all of them.
        self._target_scale = float(np.sqrt(np.mean(np.square(scales))))
        # Whatever the type of random_state, it gives a seed for a generator of torch.
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        targets = self._make_tensor((y - self._target_shift) / self._target_scale)
        self.model_ = self._make_model(self._scale_inputs(X), targets, seed)
        self.fit_result_ = self.model_.fit(self.optimizer, steps=self.steps, **self._get_fit_options())
        loss = self.fit_result_.loss - _measure_priors(self.model_)
        self.log_marginal_likelihood_ = -loss - y.size * float(np.log(self._target_scale))
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """Return the mean at new inputs.

        Deviations and covariances are those of observations, as scikit-learn's are where the noise is learned
        (``BayesianRidge``, or a ``WhiteKernel``). ``model_.predict`` describes the function without noise.

        Args:
            X: (m, d).
            return_std: Also return the standard deviation (m,) of observations there, noise included.
            return_cov: Also return the covariance (m, m) of observations there. Not with ``return_std``.

        Returns:
            The mean, (m,) or (m, k), or a tuple with what was asked for besides.

        Raises:
            ValueError: Both were asked for.
        """
        if return_std and return_cov:
            raise ValueError(f"{type(self).__name__}.predict: return_std and return_cov exclude each other.")
        inputs = self._check_new_inputs(X)
        with torch.no_grad():
            mean, spread = self.model_.predict(inputs, noise=True, full_cov=return_cov)
        located = _to_array(mean) * self._target_scale + self._target_shift
        if not (return_std or return_cov):
            return located
        variance = _to_array(spread) * self._target_scale**2
        return located, variance if return_cov else np.sqrt(variance)

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Return draws of observations at new inputs, from the distribution that ``predict`` describes.

        Each draw is one function, plus independent noise. (scikit-learn does the same if the noise is
        learned, as a ``WhiteKernel``.) ``model_.sample`` draws functions without noise.

        Args:
            X: (m, d).
            n_samples: How many draws.
            random_state: A seed, a ``numpy.random.RandomState``, or None.

        Returns:
            (m, n_samples), or (m, k, n_samples).
        """
        inputs = self._check_new_inputs(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with torch.no_grad():
            draws = self.model_.sample(inputs, n_samples, noise=True, generator=seed)
        located = _to_array(draws) * self._target_scale + self._target_shift
        return np.moveaxis(located, 0, -1)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: several targets are allowed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _check_new_inputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return self._scale_inputs(validate_data(self, X, dtype=np.float64, reset=False))

    def _scale_inputs(self, X: Floats) -> Tensor:
        return self._make_tensor((X - self._shift) / self._scale)

    def _make_tensor(self, values: Floats) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)


def copy_part(part: _Part) -> _Part:
    """Return a copy of a kernel or of features, because a fit must not change arguments of estimators."""
    return copy.deepcopy(part)


@torch.no_grad()
def _measure_priors(model: Regression) -> float:
    """Return the part of the loss of a fit that comes from priors: no part of the likelihood."""
    of_user = -float(model.log_prior()) if model.has_priors() else 0.0
    return of_user + (model.measure_weak_priors() if isinstance(model, GPRegression) else 0.0)


def _to_array(values: Tensor) -> Floats:
    return values.cpu().numpy()


def _compute_shift_and_scale(values: Floats, wanted: bool) -> tuple[Any, Any]:
    """Return mean and standard deviation of each column (1 if it is constant); 0 and 1 if not wanted."""
    if not wanted:
        return 0.0, 1.0
    deviation = values.std(0)
    varies = deviation > 10.0 * np.finfo(np.float64).eps * np.abs(values).max(0)
    return values.mean(0), np.where(varies, deviation, 1.0)
