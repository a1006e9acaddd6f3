"""Gaussian processes with inducing inputs and any likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapgrad.models import _checks, _plots
from lapgrad.models._deep.start import Covariance
from lapgrad.models._prediction import Prediction
from lapgrad.models.kernels.base import Kernel
from lapgrad.models.likelihoods.base import Likelihood
from lapgrad.models.variational.layered_model import LayeredModel, LayerOptions


class VariationalGP(LayeredModel):
    """y ~ p(y | f(x)), any likelihood of ``models.likelihoods``, f Gaussian processes with inducing inputs.

    Learns kernels, likelihood, inducing inputs and the distributions of the inducing variables by a bound of
    the log likelihood (Hensman, Matthews and Ghahramani 2015), estimated from minibatches: a step takes
    batch U² operations, independent of n. With ``widths`` there are layers of functions below, as in
    ``DeepGPRegression``.

    The fit starts at the optimal distribution for a Gaussian approximation of the likelihood (a step of
    Newton's method), which takes one pass over the data.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        y: (n,), or (n, m) for m outputs; what it may be depends on the likelihood. Integers are allowed.
        likelihood: ``Bernoulli()``, ``Poisson()``, ``Categorical(classes)``, ``StudentT()``, ``Gaussian()``,
            ``HeteroscedasticGaussian()``, or a subclass of ``Likelihood``. It becomes part of the model.
        kernel: Covariance of the functions: one for each layer, or one of which each layer has a copy; None:
            ``RBF`` with one lengthscale per input of the layer.
        widths: Outputs of each layer but the last one; (): one layer.
        inducing: Inducing inputs of each layer, chosen from the rows of X; or those of the first layer,
            (U, d) or (U,).
        init: How inducing inputs are chosen: "greedy", "kmeans++" or "random", as in ``SparseGPRegression``.
        mean: The mean function of inner layers: "linear", "identity" or "zero", as in ``DeepGPRegression``.
        whiten: Describe the inducing variables by their whitened form, which is easier to learn.
        covariance: Of the inducing variables: "shared" by the functions, or "separate" for each, which takes
            as many times longer; None: separate for up to two functions.
        normalise: Shift and scale each column of X, and real-valued y, to mean 0 and variance 1.
            Hyper-parameters and inducing inputs are then in these units.
        start: How q(u) starts: "data", or "prior".
        jitter: Added to the diagonal of the kernel matrices of inducing inputs, in units of its mean.
        generator: Source of random numbers for ``init``, or a seed; None: torch's own.

    Attributes:
        likelihood: The likelihood; its hyper-parameters are learned.
        layers: The layers; ``layers[0].kernel`` is the kernel of the first one. Learned.
        constant: (k,), the means of the functions; learned.

    Raises:
        DTypeError, DeviceError, ShapeError: The tensors do not fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.
        OptionError: An option is not one of those above, or y cannot be observed.

    Example:
        >>> import torch
        >>> from lapgrad.models import VariationalGP, likelihoods
        >>> x = torch.linspace(0, 6, 200, dtype=torch.float64)
        >>> counts = torch.poisson(torch.exp(1 + torch.sin(x)), generator=torch.Generator().manual_seed(0))
        >>> model = VariationalGP(x, counts, likelihoods.Poisson(), inducing=10, generator=0)
        >>> result = model.fit(steps=50, generator=0)
        >>> rate = model.predict(torch.tensor([1.5], dtype=torch.float64), noise=True).mean
        >>> 6.0 < rate.item() < 9.0
        True
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        likelihood: Likelihood,
        kernel: Kernel | Sequence[Kernel] | None = None,
        *,
        widths: Sequence[int] = (),
        inducing: int | Tensor = 100,
        init: str = "greedy",
        mean: str = "linear",
        whiten: bool = True,
        covariance: Covariance | None = None,
        normalise: bool = True,
        start: str = "data",
        jitter: float = 1e-6,
        generator: torch.Generator | int | None = None,
    ) -> None:
        options = LayerOptions(
            widths, inducing, init, mean, whiten, covariance, normalise, start, jitter, generator
        )
        super().__init__(X, y, likelihood, kernel, options)

    def predict(
        self,
        X_new: Tensor,
        *,
        noise: bool = False,
        samples: int = 100,
        chunk: int | None = None,
        generator: torch.Generator | int | None = 0,
    ) -> Prediction:
        """Return mean and variance of f, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations: probabilities, rates, numbers; else the functions f of the
                likelihood, such as the logarithm of a rate, in the units of y.
            samples: How many samples of the inner layers.
            chunk: Inputs per chunk, to limit the memory; None: chosen by size.
            generator: Source of random numbers, or a seed: by default the same ones in every call. None:
                torch's own.

        Returns:
            mean and variance, (m,) for a vector y with one function, else (m, k). Of ``Categorical``
            observations: the probabilities p (m, classes), and p (1 - p).

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        X_new = self._check_new_inputs("predict", X_new)
        with self._hold_parameters(X_new):
            parts = self._predict_functions("predict", X_new, samples, chunk, generator)
            moments = self.likelihood.predict_observations if noise else Prediction
            mean, variance = self._average(parts, moments)
        factors, offsets = self._find_units(noise)
        if len(factors) == mean.shape[1]:
            mean, variance = mean * factors + offsets, variance * factors.square()
        if self.vector and mean.shape[1] == 1:
            return Prediction(mean[:, 0], variance[:, 0])
        return Prediction(mean, variance)

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
            (count, m) for a vector y with one function, else (count, m, k).
        """
        inputs = self._scale_inputs(self._check_new_inputs("sample", X_new))
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, inputs.device)
        drawn = self._draw_functions(inputs, count, source)
        if noise:
            drawn = self.likelihood.draw_observations(drawn, source)
        factors, offsets = self._find_units(noise)
        if len(factors) == drawn.shape[-1]:
            drawn = drawn * factors + offsets
        return drawn[..., 0] if self.vector and drawn.shape[-1] == 1 else drawn

    def _find_units(self, noise: bool) -> tuple[Tensor, Tensor]:
        """Return factors and offsets to the units of y, of observations or of functions; empty: none."""
        if not self._scales_targets():
            return self.y_shift[:0], self.y_shift[:0]
        if noise:
            return self.y_scale.expand_as(self.y_shift), self.y_shift
        return self.likelihood.find_function_units(self.y_shift, self.y_scale)

    def plot(self, axes: Any = None, *, output: int = 0, margin: float = 0.1) -> Any:
        """Plot mean and 95 % band of observations, and the data, over one input, with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            output: Which output, or class, if there are several.
            margin: How far to plot beyond the data, relative to their range.

        Returns:
            The axes.

        Raises:
            ShapeError: There is more than one input.
        """
        x = _plots.make_input_grid(f"{type(self).__name__}.plot", self.X, margin)
        with torch.no_grad():
            mean, variance = self.predict(x, noise=True)
        mean, variance = (values[:, output] if values.dim() > 1 else values for values in (mean, variance))
        observed = self.y[:, min(output, self.y.shape[1] - 1)]
        return _plots.plot_fit(x, mean, variance, (self.X[:, 0], observed), axes)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        y, likelihood, kernels, options = cls._read_parts(config, tensors, modules)
        return cls(tensors["X"], y, likelihood, kernels, **options)
