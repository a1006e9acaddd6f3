"""Gaussian process regression, exact: y = f(x) + noise, f ~ GP(mean, kernel).

With A = K + noise_var I = L Lᵀ and r = y - mean, at new inputs with K* = k(X, X_new):

    loss        -log N(r | 0, A)
    mean        mean + K*ᵀ A⁻¹ r
    covariance  k(X_new, X_new) - Vᵀ V,   V = L⁻¹ K*
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.fused._sgp.evaluation import Evaluation
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _checks, _sampling, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._gp import explanation as _explanation
from lapgrad.models._gp import jitter as _jitter
from lapgrad.models._gp import starts as _starts
from lapgrad.models._gp.added_rows import extend_factor
from lapgrad.models._gp.exact_posterior import ExactPosterior
from lapgrad.models._gp.formula_loss import ReplayableLikelihood, compute_likelihood
from lapgrad.models._gp.grid import GridPosterior, WithGrid, evaluate_criterion, factorise_covariance
from lapgrad.models._gp.leave_one_out import LeaveOneOut, compute_leave_one_out, compute_loo_nll
from lapgrad.models._gp.mean_functions import WithMeanFunction, find_mean
from lapgrad.models._gp.noise import WithNoise
from lapgrad.models._gp.objective import WithCriterion
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._scaling import StandardisedRegression
from lapgrad.models._storage.entries import FLAG, PART, TEXT, check_entries
from lapgrad.models._training.result import FitResult
from lapgrad.models.features import fix_parameters
from lapgrad.models.kernels.base import Kernel, check_kernel, covariance, kernel_from_config, part_of_state
from lapgrad.models.kernels.combinations import find_term
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.potrf import potrf

_CHUNK_ELEMENTS = 1 << 24
"""Entries of the matrix k(X, X_new) if ``predict`` chooses the chunks: 128 MB in float64."""

#: The entries of the description in a file.
_ENTRIES = {
    "mean": TEXT,
    "normalise": FLAG,
    "vector": FLAG,
    "kernel": PART,
}


class GPRegression(
    StandardisedRegression, WithMeanFunction, WithNoise, WithCriterion, WithGrid, ReplayableLikelihood, Model
):
    """Exact Gaussian process regression with noise: learns hyper-parameters by the marginal likelihood.

    Value and gradient of the loss take n³ flops, and two to three n² buffers (six of up to 4 MB each); on a
    GPU little more than one.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        y: (n,), or (n, k) for k outputs: independent, with the same kernel and noise.
        kernel: Covariance of f; None: ``RBF(ard=True)``. It becomes part of the model (not a copy), and
            follows it to its dtype and device. Hyper-parameters that were not given start from the data.
        noise_var: Variance of the noise to start learning from; None: a tenth of the variance of y. (n,): the
            variance of each observation, in the units of y: known, and not learned.
        noise_floor: Lower limit of the variance of the noise while it is learned, so that the matrix can be
            factorised if the data have no noise; None: the root of the machine epsilon times the variance
            of y, or a hundredth of ``noise_var`` if that is less.
        mean: "constant" or "linear" (learned, one per output), "zero", or a module that maps inputs (n, d) to
            (n,) or (n, k), which is learned together with everything else.
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1. Hyper-parameters are
            then in these units; predictions and the loss are in those of y. All outputs share one scale.
            False: hyper-parameters (such as a period that you know) are in the units of the data.
        distributed: A grid of processes (``lapgrad.distributed.make_grid``) over which the covariance of the
            observations is spread; all of them make the same model. None: this process has all of it.

    Attributes:
        distributed: The grid; it can be set at any time, and files do not keep it.
        noise_var: Variance of the noise; learned.
        constant: (k,), the mean; learned (with ``mean="constant"`` and ``"linear"``).
        slope: (d, k), its slopes; learned (with ``mean="linear"``).
        kernel: The kernel; its hyper-parameters are learned.

    Raises:
        DTypeError, DeviceError, ShapeError: X and y are not float32 or float64 tensors that fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.

    Example:
        >>> import torch
        >>> from lapgrad.models import GPRegression
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64)
        >>> model = GPRegression(X, torch.sin(X))
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.ones(1, dtype=torch.float64))
        >>> f"{mean.item():.2f}"
        '0.84'
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | None = None,
        *,
        noise_var: Value | None = None,
        noise_floor: float | None = None,
        mean: str | nn.Module = "constant",
        normalise: bool = True,
        distributed: ProcessGrid | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if kernel is not None:
            check_kernel(who, kernel)
        self.vector = isinstance(y, Tensor) and y.dim() == 1
        X = _checks.check_inputs(who, X)
        y = _checks.check_targets(who, y, X)
        self.normalise = normalise
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        _scaling.register_scaling(self, "x", self.X, normalise)
        _scaling.register_scaling(self, "y", self.y, normalise, pooled=True)
        inputs, outputs = self._scale_inputs(self.X), self._scale_targets(self.y)
        self.kernel = RBF(ard=True) if kernel is None else kernel
        self.set_noise(noise_var, noise_floor, _scaling.compute_spread(outputs).square().mean())
        self.set_mean_function(mean, inputs, outputs)
        self.to(dtype=X.dtype, device=X.device)
        self.kernel.start_from_data(inputs, self._compute_residuals(inputs).detach())
        self.to(dtype=X.dtype, device=X.device)
        self.set_criterion("likelihood", inputs, outputs)
        self._posterior: CachedValue[ExactPosterior | GridPosterior] = CachedValue()
        self.evaluation = Evaluation()
        self.distributed = distributed

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
        inputs = self._scale_inputs(self.X).expand(*batch, *self.X.shape)
        residuals, noise = self._compute_residuals(inputs), self._compute_noise(inputs, jitter)
        if self.distributed is not None and not batch:
            value = evaluate_criterion(self.distributed, self.kernel, inputs, noise, residuals)
        else:
            value = compute_likelihood(self.evaluation, self.kernel, inputs, noise, residuals)
        return value + self.y.numel() * self.y_scale.log() if self.normalise else value

    def loo_loss(self) -> Tensor:
        """Return -Σ log p(y_i | X, all other y): how badly each observation is predicted from all others.

        A criterion for learning (``fit(criterion="leave-one-out")``) that trusts the model less than the
        marginal likelihood does. Value and gradient take four n² buffers and 2 n³ flops.
        """
        self.refuse_on_grid("loo_loss")
        value, self.jitter = _jitter.retry_with_jitter(
            type(self).__name__, self.X.dtype, lambda jitter: self._compute_loo_losses(torch.Size(), jitter)
        )
        return value

    def _compute_loo_losses(self, batch: torch.Size, jitter: float = 0.0) -> Tensor:
        inputs = self._scale_inputs(self.X).expand(*batch, *self.X.shape)
        A = covariance(self.kernel, inputs, self._compute_noise(inputs, jitter), lower_only=True)
        value = compute_loo_nll(A, self._compute_residuals(inputs))
        return value + self.y.numel() * self.y_scale.log() if self.normalise else value

    def compute_objective(self) -> Tensor:
        """Return what a fit minimises: the criterion, minus the log densities of priors."""
        return self.add_priors(self.loo_loss() if self.criterion == "leave-one-out" else self.loss())

    def compute_objectives(self, batch: torch.Size) -> Tensor:
        """Return what a fit minimises, (*batch), for a batch of hyper-parameters: see ``compute_losses``."""
        compute = self._compute_loo_losses if self.criterion == "leave-one-out" else self.compute_losses
        return self.add_priors(compute(batch), len(batch))

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        starts: int | None = None,
        criterion: str = "regularised",
        generator: torch.Generator | int | None = 0,
        **options: Any,
    ) -> FitResult:
        """Learn the parameters: minimise ``loss()``, with a weak prior, over those that require gradients.

        Args:
            optimizer: "lbfgs", or "adam" (for networks).
            starts: From how many hyper-parameters to start: those of the model, and others drawn around
                them. They are learned together, as one batch, and those that fall behind are given up; the
                best one is learned to the end. 1: those of the model only. None: those of the model, and
                (unless ``steps``, ``callback`` or networks are given) a second start, if one is ahead on some
                of the rows.
            criterion: "likelihood" (``loss()``), "leave-one-out" (``loo_loss()``), or "regularised": the
                likelihood, times weak priors if there is a lengthscale per dimension: of these, around the
                deviations of inputs times a common factor, and of the noise. ``set_prior`` replaces them;
                other data are predicted better with them.
            generator: Source of random numbers for the starts, or a seed; None: torch's own.
            **options: See ``Model.fit``, also for the result and for errors.

        Warns:
            FitWarning: The fit explains nothing: noise alone would be as likely.
        """
        self.set_criterion(criterion, self._scale_inputs(self.X), self._scale_targets(self.y))
        return _starts.fit_from_several(self, super().fit, optimizer, starts, generator, options)

    def get_scales_of_parameters(self) -> dict[str, Tensor]:
        """Return typical changes of constant and slopes of the mean, from the deviations of y and inputs."""
        return _scaling.compute_scales_of_mean(self._scale_inputs(self.X), self._scale_targets(self.y))

    def clear_cache(self) -> None:
        """Free the factor that predictions cache: n² of memory."""
        self._posterior.clear()

    def check_fit(self, result: FitResult) -> None:
        """Warn (``FitWarning``) if a fit that has converged explains nothing: noise would be as likely."""
        is_comparable = (
            self.point_noise is None and self.mean_module is None and self.criterion != "leave-one-out"
        )
        if not result.converged or self.has_priors() or not is_comparable:
            return
        centred = _scaling.subtract_mean(self.y) if self.has_constant_mean() else self.y
        variance = centred.detach().double().square().mean().item()
        loss = result.loss - self.measure_weak_priors()
        _explanation.warn_if_nothing_is_explained(type(self).__name__, centred.numel(), variance, loss)

    def predict(
        self,
        X_new: Tensor,
        *,
        noise: bool | Tensor = False,
        full_cov: bool = False,
        part: str | None = None,
        chunk: int | None = None,
    ) -> Prediction:
        """Return the distribution of f, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations, with the variance of the noise: True (of models with known noise: the
                mean of its variances), or the variances (m,) of the new observations.
            full_cov: Return the covariance of all pairs in place of the variances.
            part: The name of a term of the kernel, ``RBF(name="trend") + ...``: predict this part of f alone,
                without the mean.
            chunk: Inputs per chunk, to limit the memory to n · chunk; None: as many as take 128 MB. Not used
                with ``full_cov``.

        Returns:
            mean (m,) (or (m, k)), and variance (m,) or covariance (m, m), which all outputs share.

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        who = f"{type(self).__name__}.predict"
        X_new = self._check_new_inputs("predict", X_new)
        kernel = self.kernel if part is None else find_term(who, self.kernel, part)
        posterior = self._get_posterior()
        chunk = _checks.read_chunk(who, chunk)
        if chunk is None:
            chunk = max(1, _CHUNK_ELEMENTS // len(self.X))
        parts = [X_new] if full_cov or not len(X_new) else X_new.split(chunk)
        found = [self._predict_scaled(posterior, rows, full_cov, kernel) for rows in parts]
        mean = torch.cat([rows for rows, _ in found])
        spread = found[0][1] if full_cov else torch.cat([rows for _, rows in found])
        if noise is not False:
            added = self.get_noise_of_new(who, noise, len(X_new))
            spread = spread + (torch.diag_embed(added) if full_cov else added)
        return Prediction(mean[:, 0] if self.vector else mean, spread)

    @torch.no_grad()
    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool | Tensor = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws of f (with ``noise``: of observations), each of one function at all new inputs.

        Args:
            X_new: (m, d) or (m,).
            count: How many draws.
            noise: Draw observations; True, or the variances of their noise (m,).
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, m), or (count, m, k) for k outputs.
        """
        mean, spread = self.predict(X_new, noise=noise, full_cov=True)
        columns = mean[:, None] if self.vector else mean
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, mean.device)
        drawn = _sampling.draw_normal(columns, spread, count, source)
        return drawn[..., 0] if self.vector else drawn

    def log_prob(
        self, X_new: Tensor, y_new: Tensor, *, joint: bool = False, noise: bool | Tensor = True
    ) -> Tensor:
        """Return log p(y_new | X_new, data), the log density of observations at new inputs, noise included.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            joint: Return the density of all m together, not of each.
            noise: True, or the variances of the noise of the new observations (m,).

        Returns:
            (m,) (or (m, k)); with ``joint`` a scalar (or (k,)).
        """
        who = f"{type(self).__name__}.log_prob"
        X_new = self._check_new_inputs("log_prob", X_new)
        y_new = _checks.check_targets(who, y_new, X_new, "y_new", outputs=self.y.shape[1])
        mean, spread = self.predict(X_new, noise=noise, full_cov=joint)
        residuals = y_new - (mean[:, None] if self.vector else mean)
        if joint:
            values = -mvn_nll(spread, residuals.mT[..., None])
        else:
            values = compute_log_density(residuals, spread[:, None])
        return values[..., 0] if self.vector else values

    @torch.no_grad()
    def leave_one_out(self) -> LeaveOneOut:
        """Return what the model predicts for each observation from all others: n³ / 3 flops, no new fit.

        Example:
            >>> import torch
            >>> from lapgrad.models import GPRegression
            >>> x = torch.linspace(0, 6, 30, dtype=torch.float64)
            >>> GPRegression(x, torch.sin(x), noise_var=0.01).leave_one_out().rmse < 0.1
            True
        """
        residuals = self._compute_residuals(self._scale_inputs(self.X))
        errors, variances = compute_leave_one_out(self._get_factor("leave_one_out"), residuals)
        errors, variances = errors * self.y_scale, variances * self.y_scale.square()
        found = LeaveOneOut(
            self.y - errors,
            variances,
            compute_log_density(errors, variances[:, None]),
            errors / variances[:, None].sqrt(),
        )
        if not self.vector:
            return found
        return LeaveOneOut(found.mean[:, 0], variances, found.log_density[:, 0], found.residuals[:, 0])

    @torch.no_grad()
    def add_data(self, X_new: Tensor, y_new: Tensor, *, noise_var: Tensor | None = None) -> None:
        """Add observations to the data. Hyper-parameters and the units of ``normalise`` stay as they are.

        The factor of the covariance grows by the new rows, in n² m flops where a new one takes n³ / 3.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            noise_var: (m,), the variances of their noise, if those of the other observations are known.

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: The tensors do not fit, or have a NaN.
            NotPositiveDefiniteError: The covariance of all observations is not positive definite; nothing was
                added.
        """
        who = f"{type(self).__name__}.add_data"
        X_new = self._check_new_inputs("add_data", X_new).detach()
        y_new = _checks.check_targets(who, y_new, X_new, "y_new", outputs=self.y.shape[1]).detach()
        if (noise_var is None) != (self.point_noise is None):
            wanted = "the noise of each observation is known" if noise_var is None else "the noise is learned"
            raise _exceptions.OptionError(f"{who}: noise_var does not fit: {wanted}.")
        point_noise = None
        if noise_var is not None and self.point_noise is not None:
            given = _checks.check_noise(who, torch.as_tensor(noise_var, dtype=torch.float64), len(X_new))
            point_noise = torch.cat([self.point_noise, given.to(self.point_noise)])
        before, inputs = self._get_factor("add_data"), self._scale_inputs(self.X)
        added = self._scale_inputs(X_new)
        jitter = (
            self.jitter * (self.kernel.diag(inputs).mean() + self.get_noise().mean()) if self.jitter else 0.0
        )
        noise = (
            self.get_noise() if point_noise is None else point_noise[len(self.X) :] / self.y_scale.square()
        )
        L = extend_factor(before, self.kernel(added, inputs), covariance(self.kernel, added, noise + jitter))
        self.X, self.y = torch.cat([self.X, X_new]), torch.cat([self.y, y_new])
        self.point_noise = point_noise
        weights = cho_solve(L, self._compute_residuals(self._scale_inputs(self.X)))
        self._posterior.clear()
        self._posterior(self.state_dict().values(), lambda: ExactPosterior(L, weights))

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
        return cls(
            tensors["X"],
            y,
            kernel,
            noise_var=tensors.get("point_noise"),
            mean=find_mean(config, modules),
            normalise=config["normalise"],
        )

    def extra_repr(self) -> str:
        """Size of the data and the noise."""
        n, d = self.X.shape
        noise = "known" if self.point_noise is not None else f"{self.noise_var.item():.4g}"
        return f"n={n}, d={d}, outputs={self.y.shape[1]}, mean={self.mean}, noise_var={noise}"

    def _compute_residuals(self, inputs: Tensor) -> Tensor:
        """Return y minus the mean, (*batch, n, k), at scaled inputs (*batch, n, d)."""
        return self._scale_targets(self.y) - self.compute_mean(inputs, self.y.shape[1])

    def _compute_noise(self, inputs: Tensor, jitter: float) -> Tensor:
        """Return the noise, with jitter relative to the mean of the diagonal of A: what is added to K."""
        noise = self.get_noise()
        return noise + jitter * (self.kernel.diag(inputs).mean() + noise.mean()) if jitter else noise

    @torch.no_grad()
    def _get_posterior(self) -> ExactPosterior | GridPosterior:
        """Return the factor of A and A⁻¹ r, computed again only if data or parameters have changed."""
        return self._posterior(self.state_dict().values(), self._compute_posterior)

    def _get_factor(self, function: str) -> Tensor:
        """Return L, for functions that need all of it in one process."""
        self.refuse_on_grid(function)
        return cast(ExactPosterior, self._get_posterior()).L

    def _compute_posterior(self) -> ExactPosterior | GridPosterior:
        inputs, grid = self._scale_inputs(self.X), self.distributed
        residuals = self._compute_residuals(inputs)

        def factorise(jitter: float) -> ExactPosterior | GridPosterior:
            noise = self._compute_noise(inputs, jitter)
            if grid is not None:
                return factorise_covariance(grid, self.kernel, inputs, noise, residuals)
            L = potrf(covariance(self.kernel, inputs, noise, lower_only=True), overwrite=True)
            return ExactPosterior(L, cho_solve(L, residuals))

        found, self.jitter = _jitter.retry_with_jitter(type(self).__name__, self.X.dtype, factorise)
        return found

    def _predict_scaled(
        self, posterior: ExactPosterior | GridPosterior, X_new: Tensor, full_cov: bool, kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """Return the mean (m, k) of f, and its variance (m,) or with ``full_cov`` its covariance (m, m).

        ``kernel``: that of the model, or one of its terms; then the moments are those of that term of f.
        """
        is_whole = kernel is self.kernel
        inputs, X_new = self._scale_inputs(self.X), self._scale_inputs(X_new)
        recording = torch.is_grad_enabled() and X_new.requires_grad
        with fix_parameters(self) if recording else torch.no_grad():
            prior = kernel(X_new) if full_cov else kernel.diag(X_new)
            mean, explained = posterior.project(kernel, inputs, X_new, full_cov)
            if is_whole:
                mean = mean + self.compute_mean(X_new, self.y.shape[1])
        spread = prior - explained if full_cov else (prior - explained).clamp_min(0.0)
        mean = mean * self.y_scale + self.y_shift if is_whole else mean * self.y_scale
        return mean, spread * self.y_scale.square()
