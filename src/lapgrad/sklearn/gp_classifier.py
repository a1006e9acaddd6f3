"""Classification with Gaussian processes as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models import FitResult, GPClassification
from lapgrad.models.kernels.base import Kernel
from lapgrad.sklearn._regressor import copy_part


class GPClassifier(ClassifierMixin, BaseEstimator):
    """Gaussian process classification with inducing inputs, two classes or more, learned on minibatches.

    Args:
        kernel: A kernel of ``lapgrad.models.kernels``; None: ``RBF`` with a lengthscale per input. The
            estimator learns a copy.
        inducing: How many inducing inputs; there are never more than different rows of X.
        normalise: Shift and scale inputs to mean 0 and variance 1 first. Hyper-parameters of the kernel are
            in these units.
        steps: How many minibatches.
        batch: Rows of data in each.
        lr: Learning rate of Adam at the start.
        random_state: Seed of the minibatches, a ``numpy.random.RandomState``, or None.
        device: The device of the model: "cpu" or "cuda".

    Attributes:
        classes_: The labels, sorted.
        model_: The fitted ``GPClassification``.
        fit_result_: The outcome of the fit.

    Example:
        >>> import numpy as np
        >>> from lapgrad.sklearn import GPClassifier
        >>> x = np.linspace(-3, 3, 60)[:, None]
        >>> classifier = GPClassifier(inducing=10, steps=50, random_state=0)
        >>> classifier = classifier.fit(x, np.where(x[:, 0] > 0, "right", "left"))
        >>> classifier.predict([[-1.0], [2.0]]).tolist()
        ['left', 'right']
        >>> classifier.predict_proba([[-1.0]]).shape
        (1, 2)
    """

    classes_: NDArray[Any]
    model_: GPClassification
    fit_result_: FitResult
    n_features_in_: int

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        inducing: int = 100,
        normalise: bool = True,
        steps: int = 500,
        batch: int = 1000,
        lr: float = 0.03,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.inducing = inducing
        self.normalise = normalise
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the classifier.

        Args:
            X: (n, d), the inputs.
            y: (n,), the labels: numbers or text.

        Returns:
            The estimator itself.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise _exceptions.OptionError(
                f"GPClassifier: the data have one class, {self.classes_.tolist()[0]!r}; at least two are "
                f"needed."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.model_ = GPClassification(
            self._make_tensor(X),
            numbers,
            copy_part(self.kernel),
            inducing=self.inducing,
            normalise=self.normalise,
            generator=seed,
        )
        self.fit_result_ = self.model_.fit(steps=self.steps, batch=self.batch, lr=self.lr, generator=seed)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row of X (m, d)."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities (m, classes) of all classes, in the order of ``classes_``."""
        check_is_fitted(self)
        inputs = self._make_tensor(validate_data(self, X, dtype=np.float64, reset=False))
        return self.model_.predict_proba(inputs).cpu().numpy()

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the logarithms of ``predict_proba``."""
        return np.asarray(np.log(self.predict_proba(X)))

    def _make_tensor(self, values: Any) -> Tensor:
        return torch.tensor(np.array(values), dtype=torch.float64, device=self.device)
