"""Gaussian process regression, exact: y = f(x) + noise, f ~ GP(mean, kernel).

With A = K + noise_var I = L Lᵀ and r = y - mean, at new inputs with K* = k(X, X_new):

    loss        -log N(r | 0, A)
    mean        mean + K*ᵀ A⁻¹ r
    covariance  k(X_new, X_new) - Vᵀ V,   V = L⁻¹ K*
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _checks, _sampling, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._gp import explanation as _explanation
from lapgrad.models._gp import jitter as _jitter
from lapgrad.models._gp import starts as _starts
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value, above, unbounded
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._products import multiply
from lapgrad.models._scaling import StandardisedRegression
from lapgrad.models._storage.entries import FLAG, PART, TEXT, check_entries
from lapgrad.models._training.fitting import FitResult
from lapgrad.models.features import fix_parameters
from lapgrad.models.kernels.base import Kernel, covariance, kernel_from_config, part_of_state
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

_MEANS = ("constant", "zero")
_CHUNK_ELEMENTS = 1 << 24
"""Entries of the matrix k(X, X_new) if ``predict`` chooses the chunks: 128 MB in float64."""


class _Posterior(NamedTuple):
    """The factor L of A, and weights = A⁻¹ (y - mean)."""

    L: Tensor
    weights: Tensor


#: The entries of the description in a file.
_ENTRIES = {
    "mean": TEXT,
    "normalise": FLAG,
    "vector": FLAG,
    "kernel": PART,
}


class GPRegression(StandardisedRegression, Model):
    """Exact Gaussian process regression with noise: learns hyper-parameters by maximum marginal likelihood.

    Value and gradient of the loss take n³ flops, and between two and three n² buffers.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        y: (n,), or (n, k) for k outputs: independent, with the same kernel and noise.
        kernel: Covariance of f; None: ``RBF(ard=True)``. It becomes part of the model (not a copy), and
            follows it to its dtype and device. Hyper-parameters that were not given start from the data.
        noise_var: Variance of the noise; None: a tenth of the variance of y.
        noise_floor: Lower limit of the variance of the noise while it is learned, so that the matrix can be
            factorised if the data have no noise; None: the root of the machine epsilon of the variance
            of y, or a hundredth of ``noise_var`` if that is less.
        mean: "constant": one learned constant per output, or "zero".
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1. Hyper-parameters are
            then in these units; predictions and the loss are in those of y. All outputs share one scale.
            False: hyper-parameters (such as a period that you know) are in the units of the data.

    Attributes:
        noise_var: Variance of the noise; learned.
        constant: (k,), the mean; learned (only with ``mean="constant"``).
        kernel: The kernel; its hyper-parameters are learned.

    Raises:
        DTypeError, DeviceError, ShapeError: X and y are not float32 or float64 tensors that fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.

    Example:
        >>> from lapgrad.models import GPRegression
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64)
        >>> model = GPRegression(X, torch.sin(X))
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([1.0], dtype=torch.float64))
        >>> abs(mean.item() - math.sin(1.0)) < 0.01
        True
    """

    noise_floor: Tensor
    noise_var = above("noise_floor")
    constant = unbounded()

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | None = None,
        *,
        noise_var: Value | None = None,
        noise_floor: float | None = None,
        mean: str = "constant",
        normalise: bool = True,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if mean not in _MEANS:
            raise _errors.unknown_option(who, "mean", mean, _MEANS)
        if kernel is not None and not isinstance(kernel, Kernel):
            raise _errors.OptionError(f"{who}: kernel must be a Kernel, got {type(kernel).__name__}.")
        self.vector = isinstance(y, Tensor) and y.dim() == 1
        X = _checks.check_inputs(who, X)
        y = _checks.check_targets(who, y, X)
        self.mean, self.normalise = mean, normalise
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        _scaling.register_scaling(self, "x", self.X, normalise)
        _scaling.register_scaling(self, "y", self.y, normalise, pooled=True)
        inputs, outputs = self._scale_inputs(self.X), self._scale_targets(self.y)
        variance = _scaling.compute_spread(outputs).square().mean()
        self.kernel = RBF(ard=True) if kernel is None else kernel
        noise = torch.as_tensor(0.1 * variance if noise_var is None else noise_var, dtype=torch.float64)
        floor = torch.minimum(math.sqrt(torch.finfo(X.dtype).eps) * variance, 0.01 * noise.abs().to(variance))
        self.register_buffer("noise_floor", floor if noise_floor is None else torch.tensor(noise_floor))
        self.noise_var = noise
        if self.get_parameter("raw_noise_var").dim():
            raise _errors.ShapeError(f"{who}: noise_var must be a scalar.")
        if mean == "constant":
            self.constant = outputs.mean(0)
        self.to(dtype=X.dtype, device=X.device)
        self.kernel.start_from_data(inputs, self._compute_residuals().detach())
        self.to(dtype=X.dtype, device=X.device)
        self._posterior: CachedValue[_Posterior] = CachedValue()

    def loss(self) -> Tensor:
        """Return -log p(y | X), the negative log marginal likelihood of the observations: a scalar.

        Raises:
            NotPositiveDefiniteError: The covariance of the observations is not positive definite, by more
                than rounding.
            NonFiniteError: The kernel gives NaN or infinity.

        Warns:
            JitterWarning: Jitter had to be added to the diagonal (see the attribute ``jitter``).
        """
        self._posterior.clear()  # it takes n² of memory, and a fit changes the parameters in each step
        value, self.jitter = _jitter.retry_with_jitter(
            type(self).__name__, self.X.dtype, lambda jitter: self.compute_losses(torch.Size(), jitter)
        )
        return value

    def compute_losses(self, batch: torch.Size, jitter: float = 0.0) -> Tensor:
        """Return the losses (*batch) of hyper-parameters with these leading dimensions, at once.

        Args:
            batch: Leading dimensions of all learned hyper-parameters: those of the kernel are (*batch, 1, 1)
                or (*batch, 1, d), the noise is (*batch, 1), the mean (*batch, 1, k).
            jitter: Added to the diagonal of the covariance, relative to its mean.
        """
        inputs = self._scale_inputs(self.X)
        inputs = inputs.expand(*batch, *inputs.shape)
        value = mvn_nll(self._compute_covariance(inputs, jitter), self._compute_residuals(), overwrite=True)
        return value + self.y.numel() * self.y_scale.log() if self.normalise else value

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        starts: int | None = None,
        generator: torch.Generator | int | None = 0,
        **options: Any,
    ) -> FitResult:
        """Learn the parameters: minimise ``loss()`` over those that require gradients.

        Args:
            optimizer: "lbfgs", or "adam" (for networks).
            starts: From how many hyper-parameters to start: those of the model, and others drawn around
                them. They are learned together, as one batch, and those that fall behind are given up; the
                best one is learned to the end. 1: those of the model only. None: those of the model, and
                (unless ``steps``, ``callback`` or networks are given) a second start, found on some of the
                rows.
            generator: Source of random numbers for the starts, or a seed; None: torch's own.
            **options: See ``Model.fit``, also for the result and for errors.

        Warns:
            FitWarning: The fit explains nothing: noise alone would be as likely.
        """
        return _starts.fit_from_several(self, super().fit, optimizer, starts, generator, options)

    def get_scales_of_parameters(self) -> dict[str, float]:
        """Return the size of a typical change of the mean: the deviation of y."""
        with torch.no_grad():
            deviation = _scaling.compute_spread(self._scale_targets(self.y)).square().mean().sqrt()
        return {"raw_constant": float(deviation)}

    def clear_cache(self) -> None:
        """Free what predictions keep of the data: n² of memory."""
        self._posterior.clear()

    def check_fit(self, result: FitResult) -> None:
        """Warn (``FitWarning``) if a fit that has converged explains nothing: noise would be as likely."""
        if not result.converged:
            return
        centred = self.y - self.y.mean(0) if self.mean == "constant" else self.y
        _explanation.warn_if_nothing_is_explained(type(self).__name__, centred, result.loss)

    def predict(
        self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False, chunk: int | None = None
    ) -> Prediction:
        """Return the distribution of f, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations, with the variance of the noise.
            full_cov: Return the covariance of all pairs in place of the variances.
            chunk: Inputs per chunk, to limit the memory to n · chunk; None: as many as take 128 MB. Not used
                with ``full_cov``.

        Returns:
            mean (m,) (or (m, k)), and variance (m,) or covariance (m, m), which all outputs share.

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        X_new = self._check_new_inputs("predict", X_new)
        posterior = self._get_posterior()
        if chunk is None:
            chunk = max(1, _CHUNK_ELEMENTS // len(self.X))
        elif chunk < 1:
            raise _errors.OptionError(f"{type(self).__name__}.predict: chunk must be positive, got {chunk}.")
        parts = [X_new] if full_cov or not len(X_new) else X_new.split(chunk)
        found = [self._predict_scaled(posterior, part, full_cov) for part in parts]
        mean = torch.cat([part for part, _ in found])
        spread = found[0][1] if full_cov else torch.cat([part for _, part in found])
        if noise:
            added = (self.noise_var * self.y_scale.square()).detach()
            spread = spread + (torch.diag_embed(added.expand(len(X_new))) if full_cov else added)
        return Prediction(mean[:, 0] if self.vector else mean, spread)

    @torch.no_grad()
    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws of f (with ``noise``: of observations), each of one function at all new inputs.

        Args:
            X_new: (m, d) or (m,).
            count: How many draws.
            noise: Draw observations.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, m), or (count, m, k) for k outputs.
        """
        mean, spread = self.predict(X_new, noise=noise, full_cov=True)
        columns = mean[:, None] if self.vector else mean
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, mean.device)
        drawn = _sampling.draw_normal(columns, spread, count, source)
        return drawn[..., 0] if self.vector else drawn

    def log_prob(self, X_new: Tensor, y_new: Tensor, *, joint: bool = False) -> Tensor:
        """Return log p(y_new | X_new, data), the log density of observations at new inputs, noise included.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            joint: Return the density of all m together, not of each.

        Returns:
            (m,) (or (m, k)); with ``joint`` a scalar (or (k,)).
        """
        who = f"{type(self).__name__}.log_prob"
        X_new = self._check_new_inputs("log_prob", X_new)
        y_new = _checks.check_targets(who, y_new, X_new, "y_new", outputs=self.y.shape[1])
        mean, spread = self.predict(X_new, noise=True, full_cov=joint)
        residuals = y_new - (mean[:, None] if self.vector else mean)
        if joint:
            values = -mvn_nll(spread, residuals.mT[..., None])
        else:
            values = compute_log_density(residuals, spread[:, None])
        return values[..., 0] if self.vector else values

    def config(self) -> dict[str, Any]:
        """Return options and the description of the kernel."""
        return {
            "mean": self.mean,
            "normalise": self.normalise,
            "vector": self.vector,
            "kernel": self.kernel.config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
        kernel = kernel_from_config(config["kernel"], part_of_state(tensors, "kernel."), modules)
        y = tensors["y"][:, 0] if config["vector"] else tensors["y"]
        return cls(tensors["X"], y, kernel, mean=config["mean"], normalise=config["normalise"])

    def extra_repr(self) -> str:
        """Size of the data and the noise."""
        n, d = self.X.shape
        return f"n={n}, d={d}, outputs={self.y.shape[1]}, noise_var={self.noise_var.item():.4g}"

    def _compute_residuals(self) -> Tensor:
        y = self._scale_targets(self.y)
        return y - self.constant if self.mean == "constant" else y

    def _compute_covariance(self, inputs: Tensor, jitter: float) -> Tensor:
        """Return A, with jitter relative to the mean of its diagonal."""
        noise = self.noise_var
        if jitter:
            noise = noise + jitter * (self.kernel.diag(inputs).mean() + noise)
        return covariance(self.kernel, inputs, noise, lower_only=True)

    @torch.no_grad()
    def _get_posterior(self) -> _Posterior:
        """Return L and A⁻¹ r, computed again only if data or parameters have changed."""
        return self._posterior(self.state_dict().values(), self._compute_posterior)

    def _compute_posterior(self) -> _Posterior:
        inputs = self._scale_inputs(self.X)

        def factorise(jitter: float) -> Tensor:
            return potrf(self._compute_covariance(inputs, jitter), overwrite=True)

        L, self.jitter = _jitter.retry_with_jitter(type(self).__name__, self.X.dtype, factorise)
        return _Posterior(L, cho_solve(L, self._compute_residuals()))

    def _predict_scaled(self, posterior: _Posterior, X_new: Tensor, full_cov: bool) -> tuple[Tensor, Tensor]:
        """Return mean (m, k) and variance (m,) or covariance (m, m) in the units of y."""
        inputs, X_new = self._scale_inputs(self.X), self._scale_inputs(X_new)
        recording = torch.is_grad_enabled() and X_new.requires_grad
        with fix_parameters(self.kernel) if recording else torch.no_grad():
            cross = self.kernel(inputs, X_new)
            prior = self.kernel(X_new) if full_cov else self.kernel.diag(X_new)
        mean = multiply(cross.mT, posterior.weights)
        if self.mean == "constant":
            mean = mean + self.constant.detach()
        # The solve may overwrite the matrix, unless autograd has recorded it or its elements share memory.
        may_overwrite = not recording and cross.is_contiguous()
        V = trsm(posterior.L, cross, overwrite=may_overwrite)
        explained = syrk(V, transpose=True) if full_cov else V.square().sum(0)
        spread = prior - explained if full_cov else (prior - explained).clamp_min(0.0)
        return mean * self.y_scale + self.y_shift, spread * self.y_scale.square()
