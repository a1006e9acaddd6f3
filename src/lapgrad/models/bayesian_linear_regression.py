"""Bayesian linear regression on features of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models import _checks, _plots, _weights
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value, positive
from lapgrad.models._prediction import Prediction
from lapgrad.models._ridge import METHODS, Method
from lapgrad.models._weights import WeightPosterior
from lapgrad.models.criteria.blr_nll import blr_nll
from lapgrad.models.features import described, from_description


class BayesianLinearRegression(Model):
    """y = f(x) + noise with f(x) = w_0 + sum_j w_j phi_j(x), w normal, and w integrated out.

    Learns noise, prior variances, and whatever parameters the features have, by the marginal likelihood.
    Costs grow with n m² for n observations and m features, where those of a Gaussian process grow with n³.

    Args:
        X: (n, d) or (n,), the inputs. dtype and device of the model follow it.
        y: (n,) or (n, k), the targets: k targets have the same variances, and each weights of its own.
        features: An ``nn.Module`` that maps (n, d) to (n, m): ``PolynomialFeatures``,
            ``RandomFourierFeatures``, or a network. It becomes part of the model, and moves to the dtype and
            device of X. None: the inputs.
        bias: Whether there is the weight w_0 of the constant 1, with a prior variance of its own.
        noise_var: The variance of the noise to start from; None: a tenth of the variance of y.
        prior_var: The prior variance of the weights to start from, a number or one per feature (m,); None:
            such that f varies as much as y.
        ard: A prior variance per feature, learned apart ("automatic relevance determination").
        method: "lq", or "cholesky": half as many digits, in a quarter of the time. See ``blr_nll``.

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
        >>> from lapgrad.models import BayesianLinearRegression, PolynomialFeatures
        >>> x = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64)
        >>> model = BayesianLinearRegression(x, 1.0 + 2.0 * x - x**3, PolynomialFeatures(3))
        >>> result = model.fit()
        >>> mean, variance = model.predict(torch.tensor([0.5], dtype=torch.float64))
        >>> round(mean.item(), 4)
        1.875
    """

    noise_var = positive()
    prior_var = positive()
    bias_var = positive()

    X: Tensor
    Y: Tensor

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
        method: Method = "lq",
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise _errors.unknown_option("BayesianLinearRegression", "method", method, METHODS)
        X = _checks.inputs("BayesianLinearRegression", X)
        Y = _checks.targets("BayesianLinearRegression", y, X)
        self.bias, self.ard, self.one_target = bias, ard, y.dim() == 1
        self.method: Method = method
        self.features = features
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("Y", Y.detach().clone())
        self.to(dtype=X.dtype, device=X.device)
        with torch.no_grad():
            Phi = evaluated("BayesianLinearRegression", self.features, X)
        self.feature_count = Phi.shape[1]
        spread = variance_of(Y)
        self.noise_var = 0.1 * spread if noise_var is None else noise_var
        if prior_var is None:
            prior_var = spread / float(Phi.square().sum(1).mean().clamp_min(1e-6))
        prior = torch.as_tensor(prior_var).to(X)
        if prior.dim() and prior.shape != (Phi.shape[1],):
            raise _errors.ShapeError(
                f"BayesianLinearRegression: prior_var must be a number or have {Phi.shape[1]} entries, one "
                f"per feature, got shape {tuple(prior.shape)}."
            )
        self.prior_var = prior.expand(Phi.shape[1]) if ard else prior
        if bias:
            self.bias_var = spread + float(Y.mean().square())
        self.to(dtype=X.dtype, device=X.device)

    # Learning.

    def loss(self) -> Tensor:
        """The negative log marginal likelihood of the training data."""
        return blr_nll(self.design(self.X), self.Y, self.noise_var, self.weight_var(), method=self.method)

    def design(self, X: Tensor) -> Tensor:
        """The design matrix (n, m'): the constant 1 where there is a bias, then the features of X (n, d)."""
        Phi = evaluated("BayesianLinearRegression", self.features, X)
        return torch.cat([torch.ones_like(Phi[:, :1]), Phi], dim=1) if self.bias else Phi

    def weight_var(self) -> Tensor:
        """The prior variance of each weight (m'), or of all of them ()."""
        if not self.bias:
            return self.prior_var
        return torch.cat([self.bias_var.reshape(1), self.prior_var.expand(self.feature_count)])

    def observe(self, X: Tensor, y: Tensor) -> None:
        """Add observations to the training data; hyper-parameters stay as they are.

        Args:
            X: (n', d) or (n',).
            y: (n',) or (n', k).
        """
        X = _checks.inputs("BayesianLinearRegression.observe", X, columns=self.X.shape[1])
        Y = _checks.targets("BayesianLinearRegression.observe", y, X, outputs=self.Y.shape[1])
        _checks.same_kind("BayesianLinearRegression.observe", X=X, data=self.X)
        self.X, self.Y = torch.cat([self.X, X.detach()]), torch.cat([self.Y, Y.detach()])

    # Inference.

    def posterior(self) -> WeightPosterior:
        """The distribution of the weights, given the data and the hyper-parameters.

        Returns:
            mean (m', k), and factor (m', m') with factor factorᵀ the covariance, which all targets share. The
            weight of the bias comes first.
        """
        return _weights.posterior(
            "BayesianLinearRegression",
            self.design(self.X),
            self.Y,
            self.noise_var,
            self.weight_var(),
            self.method,
        )

    def predict(
        self, X_new: Tensor, *, noise: bool = False, full_cov: bool = False, chunk: int | None = None
    ) -> Prediction:
        """The distribution of f at new inputs, or of observations there.

        Args:
            X_new: (n', d) or (n',).
            noise: Of observations: with the variance of the noise.
            full_cov: The covariance of all pairs in place of the variances.
            chunk: Inputs that are treated at a time, to bound the memory; None: all.

        Returns:
            mean (n') (or (n', k)), and variance (n') or covariance (n', n'), which all targets share.
        """
        X_new = self._inputs("predict", X_new)
        posterior = self.posterior()
        noise_var = self.noise_var if noise else None
        parts = [X_new] if chunk is None or full_cov else X_new.split(chunk)
        found = [_weights.predicted(posterior, self.design(part), noise_var, full_cov) for part in parts]
        mean = torch.cat([mean for mean, _ in found])
        spread = found[0][1] if full_cov else torch.cat([variance for _, variance in found])
        return Prediction(self._targets(mean), spread)

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
        source = _checks.generator("BayesianLinearRegression.sample", generator, self.X.device)
        draws = self.design(X_new) @ self.posterior().sample(count, source)
        if noise:
            normal = torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=source)
            draws = draws + self.noise_var.sqrt() * normal
        return self._targets(draws)

    def log_prob(self, X_new: Tensor, y_new: Tensor) -> Tensor:
        """log p(y_new | data) of new observations together, a scalar.

        Args:
            X_new: (n', d) or (n',).
            y_new: (n',) or (n', k).
        """
        X_new = self._inputs("log_prob", X_new)
        Y_new = _checks.targets(
            "BayesianLinearRegression.log_prob", y_new, X_new, "y_new", outputs=self.Y.shape[1]
        )
        return _weights.log_density(self.posterior(), self.design(X_new), Y_new, self.noise_var, self.method)

    def plot(self, axes: Any = None, *, points: int = 400, noise: bool = True) -> Any:
        """The fit over one input, with its 95 % band, by matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            points: Places at which the mean is drawn.
            noise: The band is that of observations, else of f.

        Returns:
            The axes.

        Raises:
            OptionError: There is more than one input, or more than one target.
        """
        if self.X.shape[1] != 1 or self.Y.shape[1] != 1:
            raise _errors.OptionError(
                f"BayesianLinearRegression.plot: one input and one target can be drawn, there are "
                f"{self.X.shape[1]} and {self.Y.shape[1]}."
            )
        x = _plots.places(self.X[:, 0], points)
        with torch.no_grad():
            mean, variance = self.predict(x, noise=noise)
        return _plots.fitted_curve(x, mean.reshape(-1), variance, (self.X[:, 0], self.Y[:, 0]), axes)

    # Files.

    def config(self) -> dict[str, Any]:
        """What the constructor needs besides tensors."""
        return {
            "features": described(self.features),
            "bias": self.bias,
            "ard": self.ard,
            "method": self.method,
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
            from_description(cls.__name__, config["features"], modules),
            bias=config["bias"],
            prior_var=tensors["raw_prior_var"].exp(),
            ard=config["ard"],
            method=config["method"],
        )

    def _inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"BayesianLinearRegression.{method}"
        X_new = _checks.inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.same_kind(who, X_new=X_new, X=self.X)
        return X_new

    def _targets(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.one_target else values


def evaluated(who: str, features: nn.Module | None, X: Tensor) -> Tensor:
    """The features (n, m) of X (n, d)."""
    Phi = X if features is None else features(X)
    if not isinstance(Phi, Tensor) or Phi.dim() != 2 or len(Phi) != len(X):
        seen = tuple(Phi.shape) if isinstance(Phi, Tensor) else type(Phi).__name__
        raise _errors.ShapeError(f"{who}: features must map {tuple(X.shape)} to ({len(X)}, m), got {seen}.")
    return Phi


def variance_of(Y: Tensor) -> float:
    """The variance of targets around their means, to start from; 1 when they do not vary."""
    if len(Y) < 2:
        return 1.0
    return float(Y.var(0).mean()) or 1.0
