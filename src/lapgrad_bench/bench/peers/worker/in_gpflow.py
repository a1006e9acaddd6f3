"""What GPflow offers: criteria of Gaussian processes, in TensorFlow, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Library:
    """GPflow.

    Attributes:
        keeps_memory: TensorFlow does not give back what it has allocated: a peak cannot be seen.
    """

    keeps_memory = True

    def __init__(self, device: str, threads: int) -> None:
        import tensorflow

        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
        import gpflow

        self.gpflow, self.tf, self.version = gpflow, tensorflow, gpflow.__version__
        has_gpu = bool(tensorflow.config.list_physical_devices("GPU"))
        self.device = "cuda" if device == "cuda" and has_gpu else "cpu"
        self.models = {"sparse_gp": self.sparse_gp, "exact_gp": self.exact_gp}

    def sparse_gp(
        self, X: Any, Y: Any, Z: Any, length: float, variance: float, noise: float
    ) -> Callable[[], Any]:
        """``SGPR``."""
        kernel = self.gpflow.kernels.SquaredExponential(variance, [length] * X.shape[1])
        return self._evaluation(self.gpflow.models.SGPR((X, Y), kernel, Z, noise_variance=noise))

    def exact_gp(
        self, X: Any, Y: Any, kernel: str, length: float, variance: float, noise: float
    ) -> Callable[[], Any]:
        """``GPR``."""
        kinds = {"rbf": self.gpflow.kernels.SquaredExponential, "matern52": self.gpflow.kernels.Matern52}
        covariance = kinds[str(kernel)](variance, [length] * X.shape[1])
        return self._evaluation(self.gpflow.models.GPR((X, Y), covariance, noise_variance=noise))

    def _evaluation(self, model: Any) -> Callable[[], Any]:
        variables = model.trainable_variables

        @self.tf.function
        def evaluate() -> Any:
            with self.tf.GradientTape() as tape:
                value = model.training_loss()
            return (value, *tape.gradient(value, variables))

        return evaluate

    def wait(self, results: Any) -> None:
        for result in results:
            self.tf.convert_to_tensor(result).numpy()
