"""Gaussian process regression with inducing inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from lapgrad import _errors, fused
from lapgrad.fused import _inducing
from lapgrad.models import _checks, _inducing_inputs, _jitter, _plots, _sparse_posterior
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value, positive, unbounded
from lapgrad.models._prediction import Prediction
from lapgrad.models._sparse_posterior import SparsePosterior
from lapgrad.models.kernels.base import Kernel, kernel_from_config, part_of_state
from lapgrad.models.kernels.stationary import RBF

Mean = Literal["constant", "zero"]
_LOG_2_PI = math.log(2.0 * math.pi)


class SparseGPRegression(Model):
    """y = f(x) + noise with f a Gaussian process, seen through its values at U inducing inputs.

    Learns kernel, noise, mean and inducing inputs together, by the collapsed variational bound of Titsias
    (2009), which ``fused.sgp_nll`` streams over the data: n U² operations and U² of memory, where a Gaussian
    process takes n³ and n². With more inducing inputs the bound, and the model, come closer to the exact
    ones.

    All arithmetic is in float64, whatever the dtype of the data: float32 models work with thousands of
    inducing inputs, too.

    Args:
        X: (n, d) or (n,), the inputs. dtype and device of the model follow it.
        y: (n,) or (n, k), the targets: k outputs that share kernel, noise and inducing inputs.
        kernel: It becomes part of the model, and moves to the dtype and device of X. None: ``RBF`` with a
            lengthscale per dimension.
        inducing: How many inducing inputs, chosen from the rows of X (no row twice, so there may be fewer);
            or where they are, (U, d) or (U,).
        init: How they are chosen: "kmeans++", far from each other, or "random".
        noise_var: The variance of the noise to start from; None: a tenth of the variance of y.
        mean: "constant": learned, one number per output; or "zero".
        jitter: Added to the diagonal of the kernel matrix of the inducing inputs, in units of its mean.
        chunk: Rows of data that are worked on at a time; None: by size.
        generator: Source of random numbers for ``init``: a ``torch.Generator``, a seed, or None for torch's
            own.

    Attributes:
        noise_var: (), the variance of the noise.
        inducing: (U, d), the inducing inputs. ``model.fix("inducing")`` keeps them where they are.
        constant: (k,), the mean, if there is one.
        kernel: The kernel.
        jitter: What had to be added beyond the jitter that was asked for; with a ``JitterWarning``. 0 is the
            rule.

    Raises:
        DTypeError, DeviceError, ShapeError: The tensors are not float32 or float64, or do not fit.
        NonFiniteError: Names the rows with NaN or infinity.
        OptionError: An option is not one of those above.

    Example:
        >>> from lapgrad.models import SparseGPRegression
        >>> x = torch.linspace(0, 6, 500, dtype=torch.float64)
        >>> model = SparseGPRegression(x, torch.sin(x), inducing=8, noise_var=0.01, generator=0)
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([1.0], dtype=torch.float64))
        >>> f"{mean.item():.3f}"
        '0.841'
    """

    noise_var = positive()
    inducing = unbounded()
    constant = unbounded()

    X: Tensor
    Y: Tensor

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | None = None,
        *,
        inducing: int | Tensor = 100,
        init: str = "kmeans++",
        noise_var: Value | None = None,
        mean: Mean = "constant",
        jitter: float = 1e-6,
        chunk: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        X = _checks.inputs(who, X)
        Y = _checks.targets(who, y, X)
        _check_options(who, init, mean, jitter, chunk)
        self.mean: Mean = mean
        self.inducing_jitter, self.chunk, self.one_target = float(jitter), chunk, y.dim() == 1
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("Y", Y.detach().clone())
        source = _checks.generator(who, generator, X.device)
        self.inducing = _initial_inducing(who, inducing, self.X, init, source)
        spread = _variance(Y)
        self.kernel = _default_kernel(self.X, spread) if kernel is None else kernel
        self.noise_var = 0.1 * spread if noise_var is None else noise_var
        if mean == "constant":
            self.constant = Y.mean(0)
        self.to(dtype=X.dtype, device=X.device)
        with torch.no_grad():  # a kernel that does not fit the data says so here, not in the first step
            self.kernel.diag(self.X[:1])

    # Learning.

    def loss(self) -> Tensor:
        """The bound of the negative log marginal likelihood of the training data."""
        value, self.jitter = _jitter.retried(
            type(self).__name__,
            torch.float64,
            lambda added: fused.sgp_nll(
                self.kernel,
                self.inducing,
                self.X,
                self._centred(self.Y),
                self.noise_var,
                jitter=self.inducing_jitter + added,
                chunk=self.chunk,
            ),
        )
        return value

    # Inference.

    def posterior(self) -> SparsePosterior:
        """What the data say about the function, with the parameters as they are: one pass over the data.

        ``predict``, ``sample`` and ``log_prob`` begin with it; for many small questions keep it, and ask
        ``posterior.at(X_new, full_cov)`` (in float64, without the mean ``constant``).
        """
        who = type(self).__name__
        found, self.jitter = _jitter.retried(
            who,
            torch.float64,
            lambda added: _sparse_posterior.posterior(
                who,
                _inducing.of_module(self.kernel),
                self.inducing,
                self.X,
                self._centred(self.Y),
                self.noise_var,
                self.inducing_jitter + added,
                self.chunk,
            ),
        )
        return found

    def predict(
        self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False, chunk: int | None = None
    ) -> Prediction:
        """The distribution of f at new inputs, or of observations there.

        Gradients reach X_new; the model counts as constant.

        Args:
            X_new: (n', d) or (n',).
            noise: Of observations: with the variance of the noise.
            full_cov: The covariance of all pairs in place of the variances.
            chunk: Inputs that are worked on at a time; None: by size. (A covariance is made at once.)

        Returns:
            mean (n',) (or (n', k)), and variance (n',) or covariance (n', n'), which all outputs share.
        """
        X_new = self._inputs("predict", X_new)
        _check_chunk(f"{type(self).__name__}.predict", chunk)
        mean, spread = self._moments(X_new, full_cov, chunk)
        if noise:
            added = self.noise_var.detach().to(spread)
            spread = spread + (added * torch.eye(len(X_new)).to(spread) if full_cov else added)
        return Prediction(self._targets(mean).to(X_new.dtype), spread.to(X_new.dtype))

    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Draws of f (with ``noise``: of observations) at new inputs: each is one function, at all of them.

        Args:
            X_new: (n', d) or (n',).
            count: How many draws.
            noise: Of observations.
            generator: Source of random numbers: a ``torch.Generator``, a seed, or None for torch's own.

        Returns:
            (count, n') (or (count, n', k)).
        """
        X_new = self._inputs("sample", X_new)
        source = _checks.generator(f"{type(self).__name__}.sample", generator, self.X.device)
        with torch.no_grad():
            mean, covariance = self._moments(X_new, True, None)
            # A root from eigenvalues: covariances of neighbouring points are singular up to rounding.
            values, vectors = torch.linalg.eigh(covariance)
            root = vectors * values.clamp_min(0.0).sqrt()
            shape = (count, *mean.shape)
            normal = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=source)
            draws = mean + root @ normal
            if noise:
                normal = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=source)
                draws += self.noise_var.to(mean).sqrt() * normal
        return self._targets(draws).to(X_new.dtype)

    def log_prob(self, X_new: Tensor, y_new: Tensor, *, pointwise: bool = False) -> Tensor:
        """log p(y_new | data) of new observations together, a scalar; or of each of them on its own.

        Args:
            X_new: (n', d) or (n',).
            y_new: (n',) or (n', k).
            pointwise: Each observation on its own: no covariance is made, so there may be many.

        Returns:
            (), or (n',) if ``pointwise``; the terms of several outputs are added up.
        """
        X_new = self._inputs("log_prob", X_new)
        who = f"{type(self).__name__}.log_prob"
        Y_new = _checks.targets(who, y_new, X_new, "y_new", outputs=self.Y.shape[1])
        mean, spread = self._moments(X_new, not pointwise, None)
        difference, noise_var = Y_new.to(mean) - mean, self.noise_var.detach().to(mean)
        if pointwise:
            variance = (spread + noise_var)[:, None]
            terms = difference.square() / variance + variance.log() + _LOG_2_PI
            return -0.5 * terms.sum(-1).to(X_new.dtype)
        covariance = spread + noise_var * torch.eye(len(X_new), dtype=spread.dtype, device=spread.device)
        return -fused.mvn_nll(covariance, difference).to(X_new.dtype)

    def plot(self, axes: Any = None, *, points: int = 400, noise: bool = True) -> Any:
        """The fit over one input with its 95 % band, and the inducing inputs, by matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            points: Places at which the mean is drawn.
            noise: The band is that of observations, else of f.

        Returns:
            The axes.

        Raises:
            OptionError: There is more than one input, or more than one output.
        """
        if self.X.shape[1] != 1 or self.Y.shape[1] != 1:
            raise _errors.OptionError(
                f"{type(self).__name__}.plot: one input and one output can be drawn, there are "
                f"{self.X.shape[1]} and {self.Y.shape[1]}."
            )
        x, Z = self.X[:, 0], self.inducing.detach()[:, 0]
        places = torch.linspace(float(x.min()), float(x.max()), points).to(x)
        with torch.no_grad():
            mean, variance = self.predict(places, noise=noise)
        axes = _plots.new_axes(axes)
        _plots.band(axes, places, mean.reshape(-1), variance)
        _plots.points(axes, x, self.Y[:, 0])
        below, colour = torch.full_like(Z, float(self.Y.min())), _plots.FORECAST_COLOUR
        _plots.points(axes, Z, below, label="inducing inputs", colour=colour)
        axes.legend(frameon=False)
        return _plots.tidy(axes)

    # Files.

    def config(self) -> dict[str, Any]:
        """What the constructor needs besides tensors."""
        return {
            "kernel": self.kernel.config(),
            "mean": self.mean,
            "jitter": self.inducing_jitter,
            "chunk": self.chunk,
            "one_target": self.one_target,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """A model of this description, with the data of the file."""
        Y = tensors["Y"]
        return cls(
            tensors["X"],
            Y[:, 0] if config["one_target"] else Y,
            kernel_from_config(config["kernel"], part_of_state(tensors, "kernel."), modules),
            inducing=tensors["raw_inducing"],
            mean=config["mean"],
            jitter=config["jitter"],
            chunk=config["chunk"],
        )

    def _moments(self, X_new: Tensor, full_cov: bool, chunk: int | None) -> tuple[Tensor, Tensor]:
        """Mean (n', k) and variance or covariance of f, in float64."""
        posterior = self.posterior()
        width = len(X_new) if full_cov else _inducing.chunk_width(len(X_new), len(posterior.Z), chunk)
        parts = [posterior.at(part, full_cov) for part in X_new.split(max(width, 1))]
        mean = torch.cat([mean for mean, _ in parts])
        if self.mean == "constant":
            mean = mean + self.constant.detach().to(mean)
        return mean, parts[0][1] if full_cov else torch.cat([variance for _, variance in parts])

    def _centred(self, Y: Tensor) -> Tensor:
        return Y - self.constant if self.mean == "constant" else Y

    def _inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{method}"
        X_new = _checks.inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.same_kind(who, X_new=X_new, X=self.X)
        return X_new

    def _targets(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.one_target else values


def _check_options(who: str, init: str, mean: str, jitter: float, chunk: int | None) -> None:
    if init not in _inducing_inputs.INITIALISATIONS:
        raise _errors.unknown_option(who, "init", init, _inducing_inputs.INITIALISATIONS)
    if mean not in get_args(Mean):
        raise _errors.unknown_option(who, "mean", mean, get_args(Mean))
    if not 0 <= jitter < math.inf:
        raise _errors.OptionError(f"{who}: jitter must not be negative, got {jitter}.")
    _check_chunk(who, chunk)


def _check_chunk(who: str, chunk: int | None) -> None:
    if chunk is not None and chunk < 1:
        raise _errors.OptionError(f"{who}: chunk must be at least 1, got {chunk}.")


def _initial_inducing(
    who: str, given: int | Tensor, X: Tensor, init: str, generator: torch.Generator | None
) -> Tensor:
    if isinstance(given, Tensor):
        Z = _checks.inputs(who, given.detach(), "inducing", columns=X.shape[1])
        _checks.same_kind(who, inducing=Z, X=X)
        return Z.clone()
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise _errors.OptionError(f"{who}: inducing must be a positive number or a tensor, got {given!r}.")
    return _inducing_inputs.chosen(X, given, init, generator)


def _default_kernel(X: Tensor, variance: float) -> Kernel:
    """Lengthscales as the columns vary, 1 where they do not."""
    deviation = X.std(0) if len(X) > 1 else torch.ones_like(X[0])
    return RBF(torch.where(deviation > 0, deviation, 1.0), variance)


def _variance(Y: Tensor) -> float:
    """The variance of the targets around their means; 1 when they do not vary."""
    return (float(Y.var(0).mean()) if len(Y) > 1 else 0.0) or 1.0
