"""Bayesian linear regression on features of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lapgrad import _errors, _exceptions
from lapgrad.models import _checks, _plots, _scaling
from lapgrad.models._cached_value import CachedValue
from lapgrad.models._linear import weights as _weights
from lapgrad.models._linear.ridge import METHODS, Method
from lapgrad.models._linear.weights import WeightPosterior
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value, above, positive
from lapgrad.models._prediction import Prediction
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, PART, TEXT, check_entries
from lapgrad.models.features import (
    Features,
    describe_features,
    evaluate_features,
    fix_parameters,
    make_features,
)

#: The entries of the description in a file.
_ENTRIES = {
    "features": PART,
    "bias": FLAG,
    "ard": FLAG,
    "normalise": FLAG,
    "method": TEXT,
    "one_target": FLAG,
}


class BayesianLinearRegression(Model):
    """y = f(x) + noise with f(x) = w_0 + sum_j w_j phi_j(x), w normal, and w integrated out.

    Learns noise, prior variances, and whatever parameters the features have, by the marginal likelihood.
    The cost is n m² for n observations and m features, where that of a Gaussian process is n³. If features
    are not learned, this is spent once, and each step of a fit takes m³. Everything except the features is
    computed in float64, whatever the dtype of the data.

    Args:
        X: (n, d) or (n,), the inputs. dtype and device of the model follow it.
        y: (n,) or (n, k), the targets: k targets have the same variances, and each weights of its own.
        features: An ``nn.Module`` that maps (n, d) to (n, m): ``PolynomialFeatures``,
            ``RandomFourierFeatures``, or a network. It becomes part of the model, and moves to the dtype and
            device of X. None: the inputs.
        bias: Include the weight w_0 of the constant 1, with its own prior variance.
        noise_var: The initial variance of the noise; None: a tenth of the variance of y.
        prior_var: The initial prior variance of the weights, a number or one per feature (m,); None: chosen
            so that f varies as much as y.
        ard: Learn one prior variance per feature ("automatic relevance determination").
        noise_floor: Lower limit of the variance of the noise while it is learned, so that the problem can be
            solved if the data have no noise; None: the root of the machine epsilon times the variance of
            y, or a hundredth of ``noise_var`` if that is less.
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1, before anything else.
            Hyper-parameters and weights are then in these units; predictions and the loss are in those of y.
        method: "lq", or "cholesky": half as many digits, faster with many features. See ``blr_nll``.

    Attributes:
        noise_var: ().
        prior_var: (), or (m,) with ``ard``.
        bias_var: (), when there is a bias.

    Raises:
        DTypeError, DeviceError, ShapeError: X and y are not float32 or float64 tensors that fit, or the
            features do not map (n, d) to (n, m).
        NonFiniteError: Names the rows with NaN or infinity.
        OptionError: A variance is not positive, or ``method`` is unknown.

    Example:
        >>> import torch
        >>> from lapgrad.models import BayesianLinearRegression, PolynomialFeatures
        >>> x = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64)
        >>> model = BayesianLinearRegression(x, 1.0 + 2.0 * x - x**3, PolynomialFeatures(3))
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([0.5], dtype=torch.float64))
        >>> round(mean.item(), 4)
        1.875
    """

    noise_var = above("noise_floor")
    prior_var = positive()
    bias_var = positive()

    X: Tensor
    Y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    noise_floor: Tensor

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        features: nn.Module | None = None,
        *,
        bias: bool = True,
        noise_var: Value | None = None,
        prior_var: Value | None = None,
        ard: bool = False,
        noise_floor: float | None = None,
        normalise: bool = True,
        method: Method = "lq",
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise _errors.unknown_option("BayesianLinearRegression", "method", method, METHODS)
        X = _checks.check_inputs("BayesianLinearRegression", X)
        Y = _checks.check_targets("BayesianLinearRegression", y, X)
        self.bias, self.ard, self.normalise, self.one_target = bias, ard, normalise, y.dim() == 1
        self.method: Method = method
        self.features = features
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("Y", Y.detach().clone())
        _scaling.register_scaling(self, "x", X, normalise)
        _scaling.register_scaling(self, "y", Y, normalise, pooled=True)
        self.to(dtype=X.dtype, device=X.device)
        with torch.no_grad():
            Phi, Y = (
                evaluate_features("BayesianLinearRegression", self.features, self._scale_inputs(X)),
                self._scale_targets(),
            )
        self.feature_count = Phi.shape[1]
        spread = compute_variance(Y)
        _checks.check_noise_limits("BayesianLinearRegression", noise_var, noise_floor)
        start = _scaling.choose_noise(torch.tensor(spread, dtype=torch.float64), noise_floor)
        noise = torch.as_tensor(start if noise_var is None else noise_var, dtype=torch.float64)
        floor = min(torch.finfo(torch.float64).eps ** 0.5 * spread, 0.01 * float(noise.abs().min()))
        self.register_buffer("noise_floor", X.new_tensor(floor if noise_floor is None else noise_floor))
        self.noise_var = noise
        if prior_var is None:
            prior_var = spread / float(Phi.square().sum(1).mean().clamp_min(1e-6))
        prior = torch.as_tensor(prior_var).to(X)
        if prior.dim() and prior.shape != (self.feature_count,):
            raise _exceptions.ShapeError(
                f"BayesianLinearRegression: prior_var must be a number or have {self.feature_count} "
                f"entries, one per feature, got shape {tuple(prior.shape)}."
            )
        self.prior_var = prior.expand(self.feature_count) if ard else prior
        if bias:
            self.bias_var = spread + float(Y.mean().square())
        self.to(dtype=X.dtype, device=X.device)
        self._posterior: CachedValue[WeightPosterior] = CachedValue()
        self._compressed: CachedValue[_weights.Observations] = CachedValue()

    # Learning.

    def loss(self) -> Tensor:
        """Return the negative log marginal likelihood of the training data, in float64.

        If features are not learned, the data are compressed to m' rows once, and later evaluations use only
        these. Under ``torch.compile``, which cannot check whether the data are still the same, every
        evaluation uses all rows.
        """
        observations = self._get_observations()
        value = _weights.compute_nll(
            observations, self.noise_var.double(), self.weight_var().double(), self.method
        )
        return value + self.Y.numel() * self.y_scale.double().log() if self.normalise else value

    def design(self, X: Tensor) -> Tensor:
        """Return the design matrix (n, m') of X (n, d) in float64: 1 for the bias, then the features."""
        Phi = evaluate_features("BayesianLinearRegression", self.features, self._scale_inputs(X)).double()
        return torch.cat([torch.ones_like(Phi[:, :1]), Phi], dim=1) if self.bias else Phi

    def weight_var(self) -> Tensor:
        """Return the prior variance of each weight (m'), or one for all of them ()."""
        if not self.bias:
            return self.prior_var
        return torch.cat([self.bias_var.reshape(1), self.prior_var.expand(self.feature_count)])

    def observe(self, X: Tensor, y: Tensor) -> None:
        """Add observations to the training data; hyper-parameters stay as they are.

        Args:
            X: (n', d) or (n',).
            y: (n',) or (n', k).
        """
        X = _checks.check_inputs("BayesianLinearRegression.observe", X, columns=self.X.shape[1])
        Y = _checks.check_targets("BayesianLinearRegression.observe", y, X, outputs=self.Y.shape[1])
        _checks.check_same_kind("BayesianLinearRegression.observe", X=X, data=self.X)
        self.X, self.Y = torch.cat([self.X, X.detach()]), torch.cat([self.Y, Y.detach()])

    def extra_repr(self) -> str:
        """Size of the data and the noise."""
        n, d = self.X.shape
        return (
            f"n={n}, d={d}, outputs={self.Y.shape[1]}, features={self.feature_count}, "
            f"noise_var={self.noise_var.item():.4g}"
        )

    # Inference.

    def posterior(self) -> WeightPosterior:
        """Return the distribution of the weights, given the data and the hyper-parameters.

        Returns:
            mean (m', k), and factor (m', m') with factor factorᵀ the covariance, which all targets share. The
            weight of the bias comes first.
        """
        observations = self._get_observations()
        return _weights.compute_posterior(
            "BayesianLinearRegression",
            observations.Phi,
            observations.Y,
            self.noise_var.double(),
            self.weight_var().double(),
            self.method,
        )

    def predict(
        self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False, chunk: int | None = None
    ) -> Prediction:
        """Return the distribution of f, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (n', d) or (n',).
            noise: Predict observations, with the variance of the noise.
            full_cov: Return the covariance of all pairs in place of the variances.
            chunk: Inputs per chunk, to limit the memory; None: all at once.

        Returns:
            mean (n') (or (n', k)), and variance (n') or covariance (n', n'), which all targets share.
        """
        X_new = self._check_new_inputs("predict", X_new)
        chunk = _checks.read_chunk("BayesianLinearRegression.predict", chunk)
        posterior, noise_var = self._get_posterior(), self._get_noise_var() if noise else None
        parts = [X_new] if chunk is None or full_cov or not len(X_new) else X_new.split(chunk)
        found = [
            _weights.predict_targets(posterior, self._compute_fixed_design(part), noise_var, full_cov)
            for part in parts
        ]
        mean = torch.cat([mean for mean, _ in found]) * self.y_scale + self.y_shift
        spread = found[0][1] if full_cov else torch.cat([variance for _, variance in found])
        return Prediction(self._restore_targets(mean), (spread * self.y_scale.square()).to(X_new.dtype))

    def sample(
        self,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws of f (with ``noise``: of observations), each of one function at all new inputs.

        Differentiable with respect to ``X_new``, as ``predict`` is.

        Args:
            X_new: (n', d) or (n',).
            count: How many draws.
            noise: Draw observations.
            generator: Source of random numbers: a ``torch.Generator``, a seed, or None for torch's own.

        Returns:
            (count, n') (or (count, n', k)).
        """
        X_new = self._check_new_inputs("sample", X_new)
        source = _checks.make_generator("BayesianLinearRegression.sample", generator, self.X.device)
        draws = multiply(self._compute_fixed_design(X_new), self._get_posterior().sample(count, source))
        if noise:
            normal = torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=source)
            draws = draws + self._get_noise_var().sqrt() * normal
        return self._restore_targets(draws * self.y_scale + self.y_shift)

    def log_prob(self, X_new: Tensor, y_new: Tensor, *, joint: bool = False) -> Tensor:
        """Return log p(y_new | X_new, data), the log density of observations at new inputs, noise included.

        Args:
            X_new: (n', d) or (n',).
            y_new: (n',) or (n', k).
            joint: Return the density of all n' together, not of each.

        Returns:
            (n') (or (n', k)); with ``joint`` a scalar (or (k)).
        """
        who = "BayesianLinearRegression.log_prob"
        X_new = self._check_new_inputs("log_prob", X_new)
        Y_new = _checks.check_targets(who, y_new, X_new, "y_new", outputs=self.Y.shape[1])
        unit = (Y_new.double() - self.y_shift) / self.y_scale
        posterior, design, noise_var = (
            self._get_posterior(),
            self._compute_fixed_design(X_new),
            self._get_noise_var(),
        )
        if joint:
            values = _weights.compute_joint_log_densities(posterior, design, unit, noise_var, self.method)
            return self._restore_targets(values - len(unit) * self.y_scale.log())
        values = _weights.compute_log_densities(posterior, design, unit, noise_var) - self.y_scale.log()
        return self._restore_targets(values)

    def plot(self, axes: Any = None, *, points: int = 400, noise: bool = True, margin: float = 0.1) -> Any:
        """Plot mean, 95 % band and data over one input, with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            points: Number of inputs at which the mean is plotted.
            noise: Plot the band of observations, else that of f.
            margin: How far to plot beyond the data, relative to their range.

        Returns:
            The axes.

        Raises:
            OptionError: There is more than one input, or more than one target.
        """
        if self.X.shape[1] != 1 or self.Y.shape[1] != 1:
            raise _exceptions.OptionError(
                f"BayesianLinearRegression.plot: one input and one target can be drawn, there are "
                f"{self.X.shape[1]} and {self.Y.shape[1]}."
            )
        x = _plots.make_grid(self.X[:, 0], points, margin)
        with torch.no_grad():
            mean, variance = self.predict(x, noise=noise)
        return _plots.plot_fit(x, mean.reshape(-1), variance, (self.X[:, 0], self.Y[:, 0]), axes)

    # Files.

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor that are no tensors."""
        return {
            "features": describe_features(self.features),
            "bias": self.bias,
            "ard": self.ard,
            "normalise": self.normalise,
            "method": self.method,
            "one_target": self.one_target,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
        Y = tensors["Y"]
        return cls(
            tensors["X"],
            Y[:, 0] if config["one_target"] else Y,
            make_features(cls.__name__, config["features"], modules),
            bias=config["bias"],
            prior_var=tensors["raw_prior_var"].exp(),
            ard=config["ard"],
            normalise=config["normalise"],
            method=config["method"],
        )

    def _check_new_inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"BayesianLinearRegression.{method}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X_new=X_new, X=self.X)
        return X_new

    def _restore_targets(self, values: Tensor) -> Tensor:
        """Return values in the shape and dtype of the targets that users have passed."""
        return (values.squeeze(-1) if self.one_target else values).to(self.X.dtype)

    def _scale_inputs(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale if self.normalise else X

    def _scale_targets(self) -> Tensor:
        Y = self.Y.double()
        return (Y - self.y_shift) / self.y_scale if self.normalise else Y

    def _get_noise_var(self) -> Tensor:
        return self.noise_var.detach().double()

    def _compute_fixed_design(self, X: Tensor) -> Tensor:
        """Return ``design(X)`` without gradients of the parameters of the features."""
        with fix_parameters(self.features):
            return self.design(X)

    @torch.no_grad()
    def _get_posterior(self) -> WeightPosterior:
        """Return the posterior without gradients, computed again only if data or parameters have changed."""
        return self._posterior(self.state_dict().values(), self.posterior)

    def _get_observations(self) -> _weights.Observations:
        """Return design and targets, compressed to as many rows as columns if features are not learned."""
        features = self.features
        learned = features is not None and any(value.requires_grad for value in features.parameters())
        # A network of a user may give different features for the same inputs, for example with dropout.
        known = features is None or isinstance(features, Features)
        few = len(self.X) < 2 * (self.feature_count + self.bias)
        if learned or not known or few or is_compiling():
            return _weights.Observations(self.design(self.X), self._scale_targets())
        tensors = [self.X, self.Y] if features is None else [self.X, self.Y, *features.state_dict().values()]
        with torch.no_grad():
            return self._compressed(
                tensors, lambda: _weights.compress_observations(self.design(self.X), self._scale_targets())
            )


def compute_variance(Y: Tensor) -> float:
    """Return the mean variance of the columns of Y, for initial values; 1 if they are constant."""
    if len(Y) < 2:
        return 1.0
    return float(Y.var(0).mean()) or 1.0
