"""What GPy offers: criteria of Gaussian processes, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Library:
    """GPy. NumPy has its own threads: the environment says how many."""

    def __init__(self, device: str, threads: int) -> None:
        import GPy

        self.gpy, self.version, self.device = GPy, GPy.__version__, "cpu"
        self.models = {"sparse_gp": self.sparse_gp}

    def sparse_gp(
        self, X: Any, Y: Any, Z: Any, length: float, variance: float, noise: float
    ) -> Callable[[], Any]:
        """``SparseGPRegression``."""
        kernel = self.gpy.kern.RBF(X.shape[1], variance=variance, lengthscale=[length] * X.shape[1], ARD=True)
        model = self.gpy.models.SparseGPRegression(X, Y, kernel, Z=Z.copy())
        model.likelihood.variance = noise

        def evaluate() -> Any:
            model.parameters_changed()
            return np.float64(model.objective_function()), np.asarray(model.objective_function_gradients())

        return evaluate

    def wait(self, results: Any) -> None:
        """NumPy has waited already."""
