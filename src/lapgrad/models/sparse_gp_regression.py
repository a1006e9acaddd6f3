"""Gaussian process regression with inducing inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions, fused
from lapgrad.distributed.group import Group, as_group
from lapgrad.distributed.streams import RowStream
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.evaluation import Evaluation
from lapgrad.fused._sgp.rows import TensorRows
from lapgrad.fused.sgp_nll import evaluate_criterion, evaluate_rows
from lapgrad.models import _checks, _plots, _sampling, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._gp import explanation as _explanation
from lapgrad.models._gp import inducing_inputs as _inducing_inputs
from lapgrad.models._gp import jitter as _jitter
from lapgrad.models._gp import sparse_posterior as _sparse_posterior
from lapgrad.models._gp.mean_functions import WithMeanFunction, find_mean
from lapgrad.models._gp.sparse_posterior import SparsePosterior
from lapgrad.models._gp.sparse_starts import WithSecondStart
from lapgrad.models._gp.spread_rows import Residuals, SpreadRows, make_shared_generator, register_rows
from lapgrad.models._parameters import Value, above, unbounded
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._storage.entries import FLAG, NUMBER, OPTIONAL_INTEGER, PART, TEXT, check_entries
from lapgrad.models._training.progress import RowCounter
from lapgrad.models._training.result import FitResult
from lapgrad.models.features import fix_parameters
from lapgrad.models.kernels.base import Kernel, check_kernel, kernel_from_config, part_of_state
from lapgrad.models.kernels.stationary import RBF

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: The entries of the description in a file.
_ENTRIES = {
    "mean": TEXT,
    "normalise": FLAG,
    "jitter": NUMBER,
    "chunk": OPTIONAL_INTEGER,
    "vector": FLAG,
    "kernel": PART,
}


class SparseGPRegression(WithMeanFunction, WithSecondStart):
    """y = f(x) + noise with f a Gaussian process, approximated by its values at U inducing inputs.

    Learns kernel, noise, mean and inducing inputs together by the collapsed variational bound of Titsias
    (2009). ``fused.sgp_nll`` computes it in chunks of the data, with n U² operations and U² of memory, where
    ``GPRegression`` needs n³ and n². With more inducing inputs the model comes closer to the exact one.

    All arithmetic is in float64, whatever the dtype of the data: float32 models work with thousands of
    inducing inputs as well.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype. Or a
            ``distributed.RowStream``: rows of a file, which are read in chunks and never kept.
        y: (n,), or (n, k) for k outputs: independent, with the same kernel, noise and inducing inputs; or a
            ``distributed.RowStream``.
        kernel: Covariance of f; None: ``RBF(ard=True)``. It becomes part of the model (not a copy), and
            follows it to its dtype and device. Hyper-parameters that were not given start from the data.
        inducing: How many inducing inputs, chosen from the rows of X (no row twice, so there may be fewer);
            or where they are, (U, d) or (U,).
        init: How inducing inputs are chosen: "greedy" (each at the largest variance of f given f at those
            before: pivots of a Cholesky factorisation, Burt et al. 2020; "kmeans++" where n times their
            number is more than 2^28), "kmeans++" (far from each other) or "random".
        noise_var: Variance of the noise; None: a tenth of the variance of y.
        noise_floor: Lower limit of the variance of the noise while it is learned; None: 1.5e-8 of the
            variance of y, or a hundredth of ``noise_var`` if that is less.
        mean: "constant" or "linear" (learned, one per output), "zero", or a module that maps inputs (n, d) to
            (n,) or (n, k), which is learned together with everything else.
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1. Hyper-parameters, and
            the attribute ``inducing``, are then in these units; predictions and the loss are in those of y.
        jitter: Added to the diagonal of the kernel matrix of the inducing inputs, in units of its mean.
        chunk: Rows of data per chunk; None: chosen by size.
        generator: Source of random numbers for ``init``, or a seed; None: torch's own. With a group the same
            seed on all processes.
        group: Processes that each have their own rows X and y, and learn together (``distributed.Group``):
            ``fit`` gives all of them the parameters that one process with all rows would learn. All of them
            call the same methods; after ``fit``, each can predict by itself. Rows are not kept in
            ``state_dict()``, and starting values come from a sample of up to 2^15 rows. None: one process.

    Attributes:
        noise_var: Variance of the noise; learned.
        inducing: (U, d), the inducing inputs; learned, unless ``model.fix("inducing")`` keeps them.
        constant: (k,), the mean; learned (with ``mean="constant"`` and ``"linear"``).
        slope: (d, k), its slopes; learned (with ``mean="linear"``).
        kernel: The kernel; its hyper-parameters are learned.
        jitter: What had to be added in addition to the option ``jitter``, with a ``JitterWarning``; usually
            0.

    Raises:
        DTypeError, DeviceError, ShapeError: The tensors are not float32 or float64, or do not fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.
        OptionError: An option is not one of those above.

    Example:
        >>> import torch
        >>> from lapgrad.models import SparseGPRegression
        >>> x = torch.linspace(0, 6, 500, dtype=torch.float64)
        >>> model = SparseGPRegression(x, torch.sin(x), inducing=8, noise_var=0.01, generator=0)
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([1.0], dtype=torch.float64))
        >>> f"{mean.item():.3f}"
        '0.841'
    """

    noise_floor: Tensor
    noise_var = above("noise_floor")
    inducing = unbounded()

    def __init__(
        self,
        X: Tensor | RowStream,
        y: Tensor | RowStream,
        kernel: Kernel | None = None,
        *,
        inducing: int | Tensor = 100,
        init: str = "greedy",
        noise_var: Value | None = None,
        noise_floor: float | None = None,
        mean: str | nn.Module = "constant",
        normalise: bool = True,
        jitter: float = 1e-6,
        chunk: int | None = None,
        generator: torch.Generator | int | None = None,
        group: Group | ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        _check_options(who, kernel, init, jitter)
        self.normalise, self.inducing_jitter = normalise, float(jitter)
        self.chunk = _checks.read_chunk(who, chunk)
        self.group = as_group(who, group)
        if isinstance(y, RowStream):
            self.vector = y.shape[1] == 1
        else:
            self.vector = isinstance(y, Tensor) and y.dim() == 1
        #: Rows of several processes, or of files; None: all rows are in ``X`` and ``y``.
        self.spread_rows: SpreadRows | None = None
        self.row_counter = RowCounter()
        if self.group is not None or isinstance(X, RowStream) or isinstance(y, RowStream):
            self.spread_rows = SpreadRows(who, X, y, self.group or Group())
            X, y = register_rows(self, self.spread_rows, normalise)
        else:
            X, y = self._register_data(X, y)
        source = make_shared_generator(who, generator, X.device, self.group)
        self._initialise(X, y, kernel, noise_var, noise_floor, mean)
        self.to(dtype=X.dtype, device=X.device)
        with torch.no_grad():  # raises here, not in the first step, if the kernel does not fit the data
            self.kernel.diag(self._scale_inputs(X[:1]))
        self.inducing = _inducing_inputs.resolve_inducing_inputs(
            who, inducing, X, init, source, self.kernel, self._scale_inputs
        )
        # A hyper-parameter is registered in float64, on the CPU.
        self.to(dtype=X.dtype, device=X.device)
        if self.group is not None:
            self.group.copy_from_first(list(self.parameters()))
        self._posterior: CachedValue[SparsePosterior] = CachedValue()
        #: State that one evaluation of the loss passes to the next.
        self.evaluation = Evaluation()

    def _register_data(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Keep copies of the data, and return them."""
        X = _checks.check_inputs(type(self).__name__, X)
        y = _checks.check_targets(type(self).__name__, y, X)
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        _scaling.register_scaling(self, "x", self.X, self.normalise)
        _scaling.register_scaling(self, "y", self.y, self.normalise, pooled=True)
        return self.X, self.y

    def _initialise(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | None,
        noise_var: Value | None,
        noise_floor: float | None,
        mean: str | nn.Module,
    ) -> None:
        """Set kernel, noise and mean; values that are not given are chosen from the spread of the data."""
        inputs, outputs = self._scale_inputs(X), self._scale_targets(y)
        variance = _scaling.compute_spread(outputs).square().mean()
        self.kernel = RBF(ard=True) if kernel is None else kernel
        _checks.check_noise_limits(type(self).__name__, noise_var, noise_floor)
        given = _scaling.choose_noise(variance, noise_floor) if noise_var is None else noise_var
        noise = torch.as_tensor(given, dtype=self.y.dtype, device=self.y.device)
        if noise.dim():
            raise _exceptions.ShapeError(f"{type(self).__name__}: noise_var must be a scalar.")
        smallest = math.sqrt(torch.finfo(_statistics.ARITHMETIC).eps)
        floor = torch.minimum(smallest * variance, 0.01 * noise.abs())
        self.register_buffer("noise_floor", floor if noise_floor is None else floor.new_tensor(noise_floor))
        self.noise_var = noise
        self.set_mean_function(mean, inputs, outputs)
        self.to(dtype=self.y.dtype, device=self.y.device)
        self.kernel.start_from_data(inputs, (outputs - self.compute_mean(inputs, y.shape[1])).detach())

    # Learning.

    def get_scales_of_parameters(self) -> dict[str, Tensor]:
        """Return typical changes of constant and slopes of the mean, from the deviations of y and inputs."""
        if self.spread_rows is None:
            return _scaling.compute_scales_of_mean(self._scale_inputs(self.X), self._scale_targets(self.y))
        x, y = (moments.compute_spread(self.X.dtype).to(self.X) for moments in self.spread_rows.moments)
        deviation = y.square().mean().sqrt() / self.y_scale
        return {"raw_constant": deviation, "raw_slope": (deviation * self.x_scale / x)[:, None]}

    def check_fit(self, result: FitResult) -> None:
        """Warn (``FitWarning``) if a fit that has converged explains nothing: noise would be as likely."""
        if self.group is not None:
            self._get_posterior()  # all processes are here now; later, each of them predicts by itself
        if not result.converged or self.has_priors() or self.mean_module is not None:
            return
        if self.spread_rows is None:
            centred = _scaling.subtract_mean(self.y) if self.has_constant_mean() else self.y
            variance = centred.double().square().mean().item()
        else:
            mean, squares = self.spread_rows.moments[1].mean, self.spread_rows.moments[1].variance
            variance = (squares if self.has_constant_mean() else squares + mean.square()).mean().item()
        _explanation.warn_if_nothing_is_explained(
            type(self).__name__, self._count_rows() * self.y.shape[1], variance, result.loss
        )

    @property
    def replayable(self) -> bool:
        """Whether a fit on a GPU may record the loss as a CUDA graph, and replay it.

        It may if model and kernel consist of classes of lapgrad and torch. Code of users may do something
        else in each evaluation; a class of your own that does not can set ``replayable = True``.
        """
        if self.spread_rows is not None:
            return False
        return all(type(part).__module__.startswith(("lapgrad.", "torch.")) for part in self.modules())

    def loss(self) -> Tensor:
        """Return the bound of the negative log marginal likelihood of the observations: a scalar.

        ``torch.compile`` breaks its graph at the kernel, whose parameters are replaced for the call; with
        ``fullgraph=True`` it raises an error.

        Raises:
            NotPositiveDefiniteError: The kernel matrix of the inducing inputs is not positive definite, by
                more than rounding.
            NonFiniteError: The kernel gives NaN or infinity.

        Warns:
            JitterWarning: More jitter than that of the constructor had to be added to the diagonal.
        """
        self._posterior.clear()  # it takes U² of memory, and a fit changes the parameters in each step
        inputs, residuals = self._scale_inputs(self.X), self._compute_residuals()

        def evaluate(added: float) -> Tensor:
            jitter = self.inducing_jitter + added
            if self.spread_rows is None:
                fixed = (self.noise_var, jitter, self.chunk)
                return evaluate_criterion(
                    self.evaluation, self.kernel, self.inducing, inputs, residuals, *fixed
                )
            return evaluate_rows(
                self.evaluation,
                self.kernel,
                self.inducing,
                self._make_rows(self.spread_rows, passes=3),
                self.get_mean_parameters(),
                self.noise_var,
                jitter,
                self.chunk,
                self.spread_rows.group,
            )

        value, self.jitter = _jitter.retry_with_jitter(type(self).__name__, _statistics.ARITHMETIC, evaluate)
        count = self._count_rows() * self.y.shape[1]
        return value + count * self.y_scale.log() if self.normalise else value

    # Inference.

    def predict(
        self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False, chunk: int | None = None
    ) -> Prediction:
        """Return the distribution of f, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants. The first call after a
        change of the parameters passes over the data.

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations, with the variance of the noise.
            full_cov: Return the covariance of all pairs in place of the variances.
            chunk: Inputs per chunk, to limit the memory to U · chunk; None: chosen by size. Not used with
                ``full_cov``.

        Returns:
            mean (m,) (or (m, k)), and variance (m,) or covariance (m, m), which all outputs share.

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        X_new = self._check_new_inputs("predict", X_new)
        chunk = _checks.read_chunk(f"{type(self).__name__}.predict", chunk)
        mean, spread = self._predict_scaled(X_new, noise, full_cov, chunk)
        mean = mean[:, 0] if self.vector else mean
        return Prediction(mean.to(X_new.dtype), spread.to(X_new.dtype))

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
        X_new = self._check_new_inputs("sample", X_new)
        mean, spread = self._predict_scaled(X_new, noise, True, None)
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, mean.device)
        drawn = _sampling.draw_normal(mean, spread, count, source).to(X_new.dtype)
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
        mean, spread = self._predict_scaled(X_new, True, joint, None)
        residuals = y_new.to(mean) - mean
        if joint:
            values = -fused.mvn_nll(spread, residuals.mT[..., None])
        else:
            values = compute_log_density(residuals, spread[:, None])
        values = values.to(X_new.dtype)
        return values[..., 0] if self.vector else values

    def plot(self, axes: Any = None, *, output: int = 0, noise: bool = True, margin: float = 0.1) -> Any:
        """Plot mean, 95 % band, data and inducing inputs over one input, with matplotlib.

        For arguments, result and errors see ``GPRegression.plot``.
        """
        if self.spread_rows is not None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}.plot: the model does not have the rows to plot."
            )
        _plots.check_one_input(f"{type(self).__name__}.plot", self.X)
        axes = _plots.get_axes(axes)
        with torch.no_grad():
            inducing = (self.inducing * self.x_scale + self.x_shift)[:, 0]
        bottom = torch.full_like(inducing, float(self.y[:, output].min()))
        _plots.plot_points(axes, inducing, bottom, label="inducing inputs", colour=_plots.FORECAST_COLOUR)
        return super().plot(axes, output=output, noise=noise, margin=margin)

    # Files.

    def has_all_data(self) -> bool:
        """Return whether the rows are here, not on other processes or in files."""
        return self.spread_rows is None

    def config(self) -> dict[str, Any]:
        """Return options and the description of the kernel."""
        return {
            "mean": self.mean,
            "normalise": self.normalise,
            "jitter": self.inducing_jitter,
            "chunk": self.chunk,
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
        return cls(
            tensors["X"],
            tensors["y"][:, 0] if config["vector"] else tensors["y"],
            kernel,
            inducing=tensors["raw_inducing"],
            mean=find_mean(config, modules),
            normalise=config["normalise"],
            jitter=config["jitter"],
            chunk=config["chunk"],
        )

    def extra_repr(self) -> str:
        """Size of the data, inducing inputs and the noise."""
        n, d, U = self._count_rows(), self.X.shape[1], len(self.inducing)
        outputs, noise = self.y.shape[1], self.noise_var.item()
        return f"n={n}, d={d}, outputs={outputs}, inducing={U}, noise_var={noise:.4g}"

    def _count_rows(self) -> int:
        """Return how many rows there are, on all processes together."""
        return len(self.X) if self.spread_rows is None else self.spread_rows.total

    def _make_rows(self, rows: SpreadRows, passes: int) -> Residuals:
        """Return the rows as the criterion reads them, for an evaluation with so many passes over them."""
        self.row_counter.start(passes * rows.count)
        like = self.x_shift.new_empty(0, dtype=_statistics.ARITHMETIC)
        return Residuals(
            rows,
            lambda X: self._scale_inputs(X.to(like)),
            lambda y: self._scale_targets(y.to(like)),
            lambda inputs, parameters: self.compute_mean_from(inputs, parameters, self.y.shape[1]),
            self.row_counter,
        )

    def _compute_residuals(self) -> Tensor:
        y = self._scale_targets(self.y)
        return y - self.compute_mean(self._scale_inputs(self.X), y.shape[1])

    @torch.no_grad()
    def _get_posterior(self) -> SparsePosterior:
        """Return the posterior of f, computed again only if data or parameters have changed."""
        return self._posterior(self.state_dict().values(), self._compute_posterior)

    def _compute_posterior(self) -> SparsePosterior:
        who = type(self).__name__
        found, self.jitter = _jitter.retry_with_jitter(
            who,
            _statistics.ARITHMETIC,
            lambda added: _sparse_posterior.compute_posterior(
                who,
                _kernel_function.wrap_module(self.kernel),
                self.inducing,
                TensorRows(self._scale_inputs(self.X), self._compute_residuals())
                if self.spread_rows is None
                else self._make_rows(self.spread_rows, passes=1),
                () if self.spread_rows is None else self.get_mean_parameters(),
                self.noise_var,
                self.inducing_jitter + added,
                self.chunk,
                self.group,
            ),
        )
        return found

    def _predict_scaled(
        self, X_new: Tensor, noise: bool, full_cov: bool, chunk: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the predicted mean (m, k), and the variance (m,) or with ``full_cov`` the covariance (m, m).

        Both are in float64 and in the units of y.
        """
        posterior, inputs = self._get_posterior(), self._scale_inputs(X_new)
        width = _statistics.choose_chunk_width(len(inputs), len(posterior.Z), chunk, inputs.device)
        parts = [
            posterior.predict(part, full_cov) for part in ([inputs] if full_cov else inputs.split(width))
        ]
        mean = torch.cat([part for part, _ in parts])
        spread = parts[0][1] if full_cov else torch.cat([part for _, part in parts])
        recording = torch.is_grad_enabled() and inputs.requires_grad
        with fix_parameters(self) if recording else torch.no_grad():
            mean = mean + self.compute_mean(inputs, self.y.shape[1]).to(mean)
        if noise:
            added = self.noise_var.detach().to(spread)
            spread = spread + (torch.diag_embed(added.expand(len(inputs))) if full_cov else added)
        shift, scale = self.y_shift.to(mean), self.y_scale.to(mean)
        return mean * scale + shift, spread * scale.square()


def _check_options(who: str, kernel: Kernel | None, init: str, jitter: float) -> None:
    if kernel is not None:
        check_kernel(who, kernel)
    if init not in _inducing_inputs.INITIALISATIONS:
        raise _errors.unknown_option(who, "init", init, _inducing_inputs.INITIALISATIONS)
    if not 0 <= jitter < math.inf:
        raise _exceptions.OptionError(f"{who}: jitter must not be negative, got {jitter}.")
