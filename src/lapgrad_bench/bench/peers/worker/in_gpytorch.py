"""What GPyTorch offers: criteria of Gaussian processes, with Cholesky factorisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Library:
    """GPyTorch.

    Attributes:
        models: What it can evaluate, by name: arrays and numbers to a function without arguments, which
            returns the value and the gradients.
    """

    def __init__(self, device: str, threads: int) -> None:
        import gpytorch
        import torch

        self.gpytorch, self.torch, self.version = gpytorch, torch, gpytorch.__version__
        self.device = "cuda" if device == "cuda" and torch.cuda.is_available() else "cpu"
        self.threads = threads
        self.models = {"sparse_gp": self.sparse_gp, "exact_gp": self.exact_gp}

    def start(self) -> None:
        """Set the number of torch's threads; called once in the process of the peer."""
        self.torch.set_num_threads(self.threads)

    def sparse_gp(
        self, X: Any, Y: Any, Z: Any, length: float, variance: float, noise: float
    ) -> Callable[[], Any]:
        """``InducingPointKernel`` in an exact GP: the same bound, divided by n."""
        library = self.gpytorch
        X, y, Z = self._tensor(X), self._tensor(Y)[:, 0], self._tensor(Z)
        likelihood = library.likelihoods.GaussianLikelihood().to(X)
        base = library.kernels.ScaleKernel(library.kernels.RBFKernel(ard_num_dims=X.shape[1])).to(X)
        kernel = library.kernels.InducingPointKernel(base, Z.clone(), likelihood)
        base.outputscale, base.base_kernel.lengthscale, likelihood.noise = variance, length, noise
        return self._criterion(X, y, likelihood, kernel, fast=True)

    def exact_gp(
        self, X: Any, Y: Any, kernel: str, length: float, variance: float, noise: float
    ) -> Callable[[], Any]:
        """``ExactGP`` with Cholesky factorisations in place of conjugate gradients."""
        library = self.gpytorch
        X, y = self._tensor(X), self._tensor(Y)[:, 0]
        d = X.shape[1]
        if str(kernel) == "rbf":
            base = library.kernels.RBFKernel(ard_num_dims=d)
        else:
            base = library.kernels.MaternKernel(2.5, ard_num_dims=d)
        likelihood = library.likelihoods.GaussianLikelihood()
        scaled = library.kernels.ScaleKernel(base)
        base.lengthscale, scaled.outputscale, likelihood.noise = length, variance, noise
        return self._criterion(X, y, likelihood, scaled, fast=False)

    def _criterion(self, X: Any, y: Any, likelihood: Any, kernel: Any, fast: bool) -> Callable[[], Any]:
        library = self.gpytorch

        base: Any = library.models.ExactGP

        class Model(base):
            def __init__(self) -> None:
                super().__init__(X, y, likelihood)
                self.mean_module = library.means.ZeroMean()
                self.covar_module = kernel

            def forward(self, x: Any) -> Any:
                return library.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        model = Model().to(X)
        model.train()
        likelihood.train()
        criterion = library.mlls.ExactMarginalLogLikelihood(likelihood, model)
        leaves = tuple(model.parameters())

        def evaluate() -> Any:
            if fast:
                value = -len(X) * criterion(model(X), y)
            else:
                with library.settings.fast_computations(
                    covar_root_decomposition=False, log_prob=False, solves=False
                ):
                    value = -len(X) * criterion(model(X), y)
            return (value.detach(), *self.torch.autograd.grad(value, leaves))

        return evaluate

    def _tensor(self, values: Any) -> Any:
        return self.torch.as_tensor(values, device=self.device)

    def wait(self, results: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
