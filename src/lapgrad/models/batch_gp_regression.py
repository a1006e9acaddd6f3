"""Independent Gaussian processes of the same size, learned and evaluated together on the batch kernels."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _checks, _sampling, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._gp.batched_loss import BatchedLoss, is_batchable
from lapgrad.models._gp.jitter import factorise_with_jitter
from lapgrad.models._model import Model
from lapgrad.models._parameters import above, unbounded
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, PART, TEXT, check_entries
from lapgrad.models._training.lockstep import minimise_together
from lapgrad.models._training.result import FitResult
from lapgrad.models.kernels.base import Kernel, check_kernel, covariance, kernel_from_config, part_of_state
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

_MEANS = ("constant", "zero")
#: The entries of the description in a file.
_ENTRIES = {"mean": TEXT, "normalise": FLAG, "kernel": PART, "shapes": PART}


class _Posterior(NamedTuple):
    """The factors L (b, n, n) of the covariances A, and weights = A⁻¹ (y - mean), (b, n, 1)."""

    L: Tensor
    weights: Tensor


class BatchGPRegression(Model):
    """b independent exact Gaussian process regressions of n observations each, learned together.

    The same as b times ``GPRegression``, but each step of a fit is one call for all of them: for many small
    data sets, such as one per customer or per sensor.

    Args:
        X: (b, n, d); or (n, d), the same inputs for all.
        y: (b, n).
        kernel: Covariance of each f; None: ``RBF(ard=True)``. The model makes a copy, whose hyper-parameters
            have the leading dimension b. Those that were not given start from the data of each process.
        noise_var: Variance of the noise to start from; None: a tenth of the variance of y.
        mean: "constant" (learned) or "zero".
        normalise: Shift and scale X and y of each process to mean 0 and variance 1. Hyper-parameters are then
            in these units; predictions and the loss are in those of y.

    Attributes:
        noise_var: (b, 1), learned.
        constant: (b, 1, 1), the means; learned (only with ``mean="constant"``).
        kernel: The kernel; its hyper-parameters are (b, 1, 1), or (b, 1, d) with one per dimension.

    Raises:
        DTypeError, DeviceError, ShapeError: X and y are not float32 or float64 tensors that fit.
        NonFiniteError: X or y has a NaN or an infinity.
        OptionError: The kernel has parts whose parameters cannot be a batch, such as networks.

    Example:
        >>> import torch
        >>> from lapgrad.models import BatchGPRegression
        >>> x = torch.linspace(0, 6, 30, dtype=torch.float64)
        >>> model = BatchGPRegression(x[:, None], torch.stack([torch.sin(x), 5.0 * torch.cos(x)]))
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([[1.0]], dtype=torch.float64))
        >>> [f"{value:.2f}" for value in mean[:, 0].tolist()]
        ['0.84', '2.70']
    """

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
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | None = None,
        *,
        noise_var: float | None = None,
        mean: str = "constant",
        normalise: bool = True,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if mean not in _MEANS:
            raise _errors.unknown_option(who, "mean", mean, _MEANS)
        if kernel is not None:
            check_kernel(who, kernel)
        X, y = _check_data(who, X, y)
        self.mean, self.normalise = mean, normalise
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        for name, values in (("x", X), ("y", y[..., None])):
            pairs = [_scaling.compute_shift_and_scale(item, normalise) for item in values]
            self.register_buffer(f"{name}_shift", torch.stack([shift for shift, _ in pairs])[:, None])
            self.register_buffer(f"{name}_scale", torch.stack([scale for _, scale in pairs])[:, None])
        targets = self._scale_targets(self.y)
        variances = torch.stack([_scaling.compute_spread(item).square().mean() for item in targets])[:, None]
        noise = 0.1 * variances if noise_var is None else torch.full_like(variances, noise_var)
        floor = torch.minimum(math.sqrt(torch.finfo(X.dtype).eps) * variances, 0.01 * noise.abs())
        self.register_buffer("noise_floor", floor.min())
        self.noise_var = noise
        if mean == "constant":
            self.constant = targets.mean(1, keepdim=True)
        #: Shapes of the hyper-parameters of one kernel, by name.
        self.shapes: dict[str, list[int]] = {}
        self.kernel = self._make_batch(RBF(ard=True) if kernel is None else kernel)
        self.to(dtype=X.dtype, device=X.device)
        self._posterior: CachedValue[_Posterior] = CachedValue()

    def _make_batch(self, kernel: Kernel) -> Kernel:
        """Return a copy of a kernel with hyper-parameters for each process, started from its data."""
        inputs, residuals = self._scale_inputs(self.X), self._compute_residuals().detach()
        copies = [copy.deepcopy(kernel).to(inputs) for _ in range(len(inputs))]
        for part, X, y in zip(copies, inputs, residuals, strict=True):
            part.start_from_data(X, y)
        if not is_batchable(kernel):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: parameters of networks and of kernels of your own cannot be a batch."
            )
        for module, *others in zip(*(part.modules() for part in copies), strict=True):
            for name, parameter in list(module.named_parameters(recurse=False)):
                values = torch.stack(
                    [parameter.detach(), *(other.get_parameter(name).detach() for other in others)]
                )
                shape = (1,) * (2 - parameter.dim()) + tuple(parameter.shape)
                batch = nn.Parameter(values.reshape(len(copies), *shape), parameter.requires_grad)
                module.register_parameter(name, batch)
        self.shapes = {name: list(value.shape) for name, value in copies[-1].named_parameters()}
        return copies[0]

    def losses(self) -> Tensor:
        """Return the negative log marginal likelihoods (b,) of the observations of each process."""
        return self.compute_losses(slice(None))

    def loss(self) -> Tensor:
        """Return the sum of the negative log marginal likelihoods of all processes."""
        return self.losses().sum()

    def compute_losses(self, items: slice | list[int]) -> Tensor:
        """Return the losses of some processes; the kernel must have the hyper-parameters of these."""
        inputs, residuals = self._scale_inputs(self.X, items), self._compute_residuals(items)
        values = mvn_nll(
            covariance(self.kernel, inputs, self.noise_var, lower_only=True), residuals, overwrite=True
        )
        return values + self.y.shape[1] * self.y_scale[items].flatten().log()

    def fit(  # type: ignore[override]  # one optimiser, which moves all processes in step
        self, *, steps: int = 200, tolerance: float = 1e-5
    ) -> FitResult:
        """Learn the hyper-parameters of all processes by L-BFGS, each to its own end.

        Args:
            steps: Evaluations of the loss of each process, at most.
            tolerance: A process has converged after two moves in a row that gain less.

        Returns:
            The sum of the losses; converged means that all have.
        """
        who = f"{type(self).__name__}.fit"
        _checks.check_steps(who, steps)
        if not tolerance >= 0.0:
            raise _exceptions.OptionError(f"{who}: tolerance must not be negative, got {tolerance}.")
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise _exceptions.OptionError(f"{who}: no parameter requires a gradient: nothing to fit.")
        started, batched = time.perf_counter(), BatchedLoss(self, is_batch=True)
        found = minimise_together(batched.evaluate_items, batched.get_points(), steps, tolerance)
        if not found.points:
            raise _exceptions.FitError(
                f"{type(self).__name__}.fit: the loss cannot be evaluated at the start.", 1
            )
        batched.set_points(self, torch.stack([point.x for point in found.points]))
        reason = "all processes have converged" if found.converged else f"{steps} steps were made"
        total = sum(point.value for point in found.points)
        return FitResult(
            total, found.history, found.rounds, found.converged, reason, time.perf_counter() - started
        )

    def predict(self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False) -> Prediction:
        """Return the distributions of all f, or of observations, at new inputs.

        Args:
            X_new: (b, m, d); or (m, d), the same for all.
            noise: Predict observations, with the variance of the noise.
            full_cov: Return the covariances of all pairs in place of the variances.

        Returns:
            mean (b, m), and variance (b, m) or covariance (b, m, m).
        """
        X_new = self._check_new_inputs("predict", X_new)
        posterior = self._get_posterior()
        with torch.no_grad():
            inputs, new = self._scale_inputs(self.X), self._scale_inputs(X_new)
            cross = self.kernel(inputs, new)
            mean = multiply(cross.mT, posterior.weights)
            mean = mean + self.constant if self.mean == "constant" else mean
            V = trsm(posterior.L, cross)
            if full_cov:
                spread = self.kernel(new) - syrk(V, transpose=True)
            else:
                spread = (self.kernel.diag(new) - V.square().sum(-2)).clamp_min(0.0)
            if noise:
                added = self.noise_var.expand(len(new), new.shape[1])
                spread = spread + (torch.diag_embed(added) if full_cov else added)
            scale = self.y_scale.square()
            return Prediction(
                (mean * self.y_scale + self.y_shift)[..., 0], spread * (scale if full_cov else scale[..., 0])
            )

    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws (count, b, m) of all f (with ``noise``: of observations) at new inputs."""
        mean, spread = self.predict(X_new, noise=noise, full_cov=True)
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, mean.device)
        return _sampling.draw_normal(mean.mT, spread, count, source).mT

    def log_prob(self, X_new: Tensor, y_new: Tensor) -> Tensor:
        """Return the log densities (b, m) of observations y_new (b, m) at new inputs, noise included."""
        mean, variance = self.predict(X_new, noise=True)
        if not isinstance(y_new, Tensor) or y_new.shape != mean.shape:
            seen = tuple(y_new.shape) if isinstance(y_new, Tensor) else type(y_new).__name__
            raise _exceptions.ShapeError(
                f"{type(self).__name__}.log_prob: y_new must have shape {tuple(mean.shape)}, got {seen}."
            )
        return compute_log_density(y_new - mean, variance)

    def config(self) -> dict[str, Any]:
        """Return options and the description of the kernel."""
        return {
            "mean": self.mean,
            "normalise": self.normalise,
            "kernel": self.kernel.config(),
            "shapes": self.shapes,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
        state = part_of_state(tensors, "kernel.")
        first = {name: value[0].reshape(config["shapes"][name]) for name, value in state.items()}
        kernel = kernel_from_config(config["kernel"], first, modules)
        return cls(tensors["X"], tensors["y"], kernel, mean=config["mean"], normalise=config["normalise"])

    def extra_repr(self) -> str:
        """Size of the data."""
        b, n, d = self.X.shape
        return f"processes={b}, n={n}, d={d}"

    def _check_new_inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{method}"
        X_new = _checks.check_float_tensor(who, X_new, "X_new")
        b, _, d = self.X.shape
        if X_new.dim() not in (2, 3) or X_new.shape[-1] != d or (X_new.dim() == 3 and len(X_new) != b):
            raise _exceptions.ShapeError(
                f"{who}: X_new must have shape ({b}, m, {d}) or (m, {d}), got {tuple(X_new.shape)}."
            )
        _checks.check_same_kind(who, X=self.X, X_new=X_new)
        return X_new.expand(b, *X_new.shape[-2:])

    def _scale_inputs(self, X: Tensor, items: slice | list[int] = slice(None)) -> Tensor:
        return (X[items] - self.x_shift[items]) / self.x_scale[items]

    def _scale_targets(self, y: Tensor, items: slice | list[int] = slice(None)) -> Tensor:
        return (y[items, :, None] - self.y_shift[items]) / self.y_scale[items]

    def _compute_residuals(self, items: slice | list[int] = slice(None)) -> Tensor:
        targets = self._scale_targets(self.y, items)
        return targets - self.constant if self.mean == "constant" else targets

    @torch.no_grad()
    def _get_posterior(self) -> _Posterior:
        return self._posterior(self.state_dict().values(), self._compute_posterior)

    def _compute_posterior(self) -> _Posterior:
        A = covariance(self.kernel, self._scale_inputs(self.X), self.noise_var)
        L, self.jitter = factorise_with_jitter(type(self).__name__, A)
        return _Posterior(L, cho_solve(L, self._compute_residuals()))


def _check_data(who: str, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return X (b, n, d) and y (b, n)."""
    X, y = _checks.check_float_tensor(who, X, "X"), _checks.check_float_tensor(who, y, "y")
    _checks.check_same_kind(who, X=X, y=y)
    if X.dim() == 2 and y.dim() == 2:
        X = X.expand(len(y), *X.shape)
    if X.dim() != 3 or y.dim() != 2 or X.shape[:2] != y.shape or not y.numel():
        raise _exceptions.ShapeError(
            f"{who}: X must have shape (b, n, d) or (n, d), and y (b, n), got {tuple(X.shape)} and "
            f"{tuple(y.shape)}."
        )
    _checks.check_finite_rows(who, X, "X")
    _checks.check_finite_rows(who, y, "y")
    return X, y
