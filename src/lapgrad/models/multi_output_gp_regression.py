"""Gaussian process regression of several outputs that depend on each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _checks, _sampling, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.models._gp.jitter import add_jitter, retry_with_jitter
from lapgrad.models._model import Model
from lapgrad.models._parameters import above, unbounded
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, INTEGER, PART, check_entries
from lapgrad.models.kernels.base import Kernel, check_kernel, kernel_from_config, part_of_state
from lapgrad.models.kernels.coregionalisation import Coregionalisation
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syevd import syevd
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

#: The entries of the description in a file.
_ENTRIES = {"rank": INTEGER, "normalise": FLAG, "kernel": PART}
_LEAST_PART = 0.05
"""The least part of the variance of an output that it starts with for itself."""


class _Posterior(NamedTuple):
    """The factor L of the covariance of all N observations, and weights = A⁻¹ (y - mean), (N, 1)."""

    L: Tensor
    weights: Tensor


class MultiOutputGPRegression(Model):
    """y_j = f_j(x) + noise_j for k outputs with cov(f_i(x), f_j(z)) = B_ij kernel(x, z), and B learned.

    The intrinsic model of coregionalisation: outputs are mixtures of functions with one covariance, so that
    an output that is observed at few inputs is learned from the others. A loss takes N³ / 3 flops for N
    numbers in y.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        y: (n, k); NaN where an output was not observed.
        kernel: Covariance over inputs; None: ``RBF(ard=True)``. It becomes part of the model (not a copy).
            Hyper-parameters that were not given start from the data, except for its own variance, which is
            fixed at 1, because B has the variances.
        rank: How many functions the outputs have in common.
        normalise: Shift and scale each column of X and of y to mean 0 and variance 1. Hyper-parameters are
            then in these units; predictions and the loss are in those of y.

    Attributes:
        noise_var: (k,), the variances of the noise; learned.
        constant: (k,), the means; learned.
        kernel: The kernel over inputs; learned.
        coregionalisation: The kernel over outputs, with B; learned.

    Raises:
        DTypeError, DeviceError, ShapeError: X and y are not float32 or float64 tensors that fit.
        NonFiniteError: X has a NaN or an infinity, or y an infinity.

    Example:
        >>> import torch
        >>> from lapgrad.models import MultiOutputGPRegression
        >>> x = torch.linspace(0, 6, 30, dtype=torch.float64)
        >>> y = torch.stack([torch.sin(x), 2.0 * torch.sin(x) + 1.0], 1)
        >>> y[10:, 1] = torch.nan
        >>> model = MultiOutputGPRegression(x, y)
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([4.0], dtype=torch.float64))
        >>> abs(mean[0, 1].item() - 2.0 * math.sin(4.0) - 1.0) < 0.1
        True
    """

    may_have_nan: ClassVar[frozenset[str]] = frozenset({"y"})
    X: Tensor
    y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    noise_floor: Tensor
    noise_var = above("noise_floor")
    constant = unbounded()

    def __init__(
        self, X: Tensor, y: Tensor, kernel: Kernel | None = None, *, rank: int = 1, normalise: bool = True
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if kernel is not None:
            check_kernel(who, kernel)
        X = _checks.check_inputs(who, X)
        y = _check_outputs(who, y, X)
        self.normalise, self.rank = normalise, rank
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        _scaling.register_scaling(self, "x", self.X, normalise)
        is_seen = ~y.isnan()
        pairs = [
            _scaling.compute_shift_and_scale(c[s][:, None], normalise)
            for c, s in zip(y.mT, is_seen.mT, strict=True)
        ]
        self.register_buffer("y_shift", torch.cat([shift for shift, _ in pairs]))
        self.register_buffer("y_scale", torch.cat([scale for _, scale in pairs]))
        filled = self._fill_scaled_targets()
        variances = filled.square().sum(0) / is_seen.sum(0)
        variances = torch.where(variances > 0, variances, 1.0)
        self.register_buffer("noise_floor", math.sqrt(torch.finfo(X.dtype).eps) * variances.min())
        self.noise_var = 0.1 * variances
        self.constant = (y.nanmean(0) - self.y_shift) / self.y_scale
        self.kernel = RBF(ard=True) if kernel is None else kernel
        if hasattr(self.kernel, "raw_variance") and not self.kernel.is_given("variance"):
            self.kernel.variance = torch.ones_like(self.kernel.variance)
            self.kernel.fix("variance")
        self.coregionalisation = _start_coregionalisation(filled, variances, rank)
        self.to(dtype=X.dtype, device=X.device)
        inputs = self._scale_inputs(self.X)
        self.kernel.start_from_data(inputs, filled / variances.sqrt())
        self.to(dtype=X.dtype, device=X.device)
        self._posterior: CachedValue[_Posterior] = CachedValue()

    def loss(self) -> Tensor:
        """Return -log p(y | X), the negative log marginal likelihood of what was observed: a scalar."""
        self._posterior.clear()
        rows, outputs = self._find_observations()
        residuals = self._compute_residuals(rows, outputs)
        A = self._compute_covariance(rows, outputs)
        value, self.jitter = retry_with_jitter(
            type(self).__name__, A.dtype, lambda jitter: mvn_nll(add_jitter(A, jitter), residuals)
        )
        return value + self.y_scale[outputs].log().sum()

    def output_covariance(self) -> Tensor:
        """Return the covariance (k, k) of the outputs, B times their scales, in the units of y."""
        return (self.coregionalisation.compute_covariance() * self.y_scale * self.y_scale[:, None]).detach()

    def predict(self, X_new: Tensor, *, noise: bool = False) -> Prediction:
        """Return the distribution of all outputs at new inputs: mean (m, k) and variance (m, k).

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations, with the variances of the noise.
        """
        X_new = self._check_new_inputs("predict", X_new)
        cross, V = self._project(X_new)
        with torch.no_grad():
            own = self.coregionalisation.compute_covariance().diagonal()
            prior = self.kernel.diag(self._scale_inputs(X_new))[:, None] * own
            variance = (prior - V.square().sum(0).view_as(prior)).clamp_min(0.0)
            if noise:
                variance = variance + self.noise_var
            mean = self._compute_mean(cross, len(X_new))
            return Prediction(mean * self.y_scale + self.y_shift, variance * self.y_scale.square())

    @torch.no_grad()
    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws (count, m, k) of all outputs (with ``noise``: of observations) at new inputs."""
        X_new = self._check_new_inputs("sample", X_new)
        cross, V = self._project(X_new)
        inputs, k = self._scale_inputs(X_new), self.y.shape[1]
        prior = torch.kron(self.kernel(inputs), self.coregionalisation.compute_covariance())
        spread = prior - syrk(V, transpose=True)
        if noise:
            spread = add_to_diagonal(spread, self.noise_var.repeat(len(X_new)))
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, self.X.device)
        mean = self._compute_mean(cross, len(X_new)).reshape(-1, 1)
        drawn = _sampling.draw_normal(mean, spread, count, source)[..., 0].view(count, len(X_new), k)
        return drawn * self.y_scale + self.y_shift

    def log_prob(self, X_new: Tensor, y_new: Tensor) -> Tensor:
        """Return the log density (m, k) of each observation in y_new (m, k), noise included; NaN for NaN."""
        X_new = self._check_new_inputs("log_prob", X_new)
        y_new = _check_outputs(f"{type(self).__name__}.log_prob", y_new, X_new, self.y.shape[1])
        mean, variance = self.predict(X_new, noise=True)
        return compute_log_density(y_new - mean, variance)

    def config(self) -> dict[str, Any]:
        """Return options and the description of the kernel."""
        return {"rank": self.rank, "normalise": self.normalise, "kernel": self.kernel.config()}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
        kernel = kernel_from_config(config["kernel"], part_of_state(tensors, "kernel."), modules)
        return cls(tensors["X"], tensors["y"], kernel, rank=config["rank"], normalise=config["normalise"])

    def extra_repr(self) -> str:
        """Size of the data."""
        (n, d), k = self.X.shape, self.y.shape[1]
        return f"n={n}, d={d}, outputs={k}, missing={int(self.y.isnan().sum())}, rank={self.rank}"

    def _find_observations(self) -> tuple[Tensor, Tensor]:
        """Return the rows and outputs, (N,) each, of what was observed."""
        rows, outputs = (~self.y.isnan()).nonzero().unbind(1)
        return rows, outputs

    def _fill_scaled_targets(self) -> Tensor:
        """Return the scaled targets (n, k) around their means, with 0 for those that are missing."""
        scaled = (self.y - self.y_shift) / self.y_scale
        return torch.nan_to_num(scaled - scaled.nanmean(0), nan=0.0)

    def _compute_residuals(self, rows: Tensor, outputs: Tensor) -> Tensor:
        scaled = (self.y - self.y_shift) / self.y_scale
        return (scaled[rows, outputs] - self.constant[outputs])[:, None]

    def _compute_covariance(self, rows: Tensor, outputs: Tensor) -> Tensor:
        """Return the covariance (N, N) of the observations."""
        inputs, B = self._scale_inputs(self.X), self.coregionalisation.compute_covariance()
        K = self.kernel(inputs)[rows][:, rows] * B[outputs][:, outputs]
        return add_to_diagonal(K, self.noise_var[outputs])

    @torch.no_grad()
    def _project(self, X_new: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariances C (N, m k) of observations and outputs at new inputs, and L⁻¹ C."""
        rows, outputs = self._find_observations()
        inputs, new = self._scale_inputs(self.X), self._scale_inputs(X_new)
        B = self.coregionalisation.compute_covariance()
        cross = (self.kernel(inputs, new)[rows][:, :, None] * B[outputs][:, None, :]).flatten(1)
        return cross, trsm(self._get_posterior().L, cross)

    def _compute_mean(self, cross: Tensor, count: int) -> Tensor:
        """Return the mean (count, k) in scaled units."""
        return multiply(cross.mT, self._get_posterior().weights).view(count, -1) + self.constant

    def _scale_inputs(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale

    def _check_new_inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{method}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X=self.X, X_new=X_new)
        return X_new

    @torch.no_grad()
    def _get_posterior(self) -> _Posterior:
        tensors = [torch.nan_to_num(value) for value in self.state_dict().values()]
        return self._posterior(tensors, self._compute_posterior)

    def _compute_posterior(self) -> _Posterior:
        rows, outputs = self._find_observations()
        A = self._compute_covariance(rows, outputs)
        L, self.jitter = retry_with_jitter(
            type(self).__name__, A.dtype, lambda jitter: potrf(add_jitter(A, jitter))
        )
        return _Posterior(L, cho_solve(L, self._compute_residuals(rows, outputs)))


def _check_outputs(who: str, y: Tensor, X: Tensor, outputs: int | None = None) -> Tensor:
    """Return y (n, k) with at least one number in each column; NaN stands for what was not observed."""
    y = _checks.check_float_tensor(who, y, "y")
    _checks.check_same_kind(who, X=X, y=y)
    wanted = "k" if outputs is None else outputs
    if y.dim() != 2 or len(y) != len(X) or not y.shape[1] or (outputs is not None and y.shape[1] != outputs):
        raise _exceptions.ShapeError(f"{who}: y must have shape ({len(X)}, {wanted}), got {tuple(y.shape)}.")
    _checks.check_finite_rows(who, torch.nan_to_num(y, nan=0.0, posinf=math.inf, neginf=-math.inf), "y")
    if outputs is None and bool(y.isnan().all(0).any()):
        raise _exceptions.OptionError(f"{who}: an output has no observation.")
    return y


def _start_coregionalisation(filled: Tensor, variances: Tensor, rank: int) -> Coregionalisation:
    """Return a kernel whose B is about the covariance of the targets (n, k), by its largest eigenvalues."""
    deviations = variances.sqrt()
    unit = (filled / deviations).double()
    correlation = unit.mT @ unit / len(unit)
    U, values = syevd(correlation)
    k = len(values)
    kernel = Coregionalisation(k, rank)
    mixing = kernel.mixing.detach().to(correlation) * 0.1
    count = min(rank, k)
    mixing[:, :count] = (U.mT * values.clamp_min(0.0).sqrt())[:, -count:].flip(1)
    own = (correlation.diagonal() - mixing.square().sum(1)).clamp_min(_LEAST_PART)
    kernel.mixing = mixing * deviations[:, None].to(mixing)
    kernel.own_var = own * variances.to(own)
    return kernel
