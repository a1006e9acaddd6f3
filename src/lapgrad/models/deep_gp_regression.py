"""Regression with layers of Gaussian processes, by doubly stochastic variational inference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models import (
    _checks,
    _deep_start,
    _inducing_inputs,
    _minibatches,
    _plots,
    _propagation,
    _sampling,
    _scaling,
)
from lapgrad.models._deep_start import Covariance
from lapgrad.models._fitting import Callback, FitResult
from lapgrad.models._model import StoredModel
from lapgrad.models._parameters import Value, above
from lapgrad.models._prediction import Prediction, expected_log_density, log_density
from lapgrad.models._sparse_layer import SparseLayer
from lapgrad.models.features import parameters_fixed
from lapgrad.models.kernels.base import Kernel, kernel_from_config, part_of_state

_STEPS = 5000
_WIDEST = 30
_CHUNK_ENTRIES = 1 << 22
"""Of the kernel matrix of inducing inputs and all samples of a chunk, in predictions: 32 MB in float64."""


class DeepGPRegression(_minibatches.Resumable, StoredModel):
    """y = f_L(... f_1(x)) + noise, each f_l a vector of Gaussian processes, seen through inducing inputs.

    Learns kernels, inducing inputs, the distributions of the inducing variables and the noise by the doubly
    stochastic bound of Salimbeni and Deisenroth (2017): minibatches of the data go through the layers as
    samples of the marginals of each, and the expectation over the last layer is exact. A layer takes (batch ·
    samples) U² operations per output, whatever n is.

    Inner layers depart from a fixed linear map of their inputs, and start close to it; the last layer starts
    at the best distribution for the data, given that map. So a deep model begins near a sparse Gaussian
    process (``SparseGPRegression``) of the same inducing inputs.

    Args:
        X: (n, d) or (n,), float32 or float64. The model lives on its device and in its dtype.
        y: (n,), or (n, k) for k outputs, which share inner layers, kernel and noise.
        kernel: Covariance of the functions: one for each layer, or one of which each layer has a copy; None:
            ``RBF`` with one lengthscale per input of the layer. They follow the model to its device.
        widths: Outputs of each layer but the last one: (5, 5) makes three layers. (): one layer, a sparse
            Gaussian process. None: one inner layer, as wide as X, or 30 if that is less.
        inducing: Inducing inputs of each layer, chosen from the rows of X (no row twice, so there may be
            fewer); or those of the first layer, (U, d) or (U,). Later layers have their images.
        init: How they are chosen: "kmeans++", far from each other, or "random".
        noise_var: Variance of the noise; None: a tenth of the variance of y.
        noise_floor: What the variance of the noise stays above while it is learned; None: 1.5e-8 of the
            variance of y, or a hundredth of ``noise_var`` if that is less.
        mean: What the functions of inner layers depart from: "linear" (the identity, or the principal
            components of the inputs where a layer has fewer outputs), "identity" (all widths are d), or
            "zero". The last layer departs from zero.
        whiten: Describe the inducing variables by their whitened form, which is easier to learn.
        covariance: Of the inducing variables: "shared" by the outputs of a layer, or "separate" for each,
            which takes as many times longer.
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1. Hyper-parameters and
            inducing inputs are then in these units; predictions and the loss are in those of y.
        start: Where the last layer starts: "data", at the best distribution for the data, or "prior".
        jitter: Added to the diagonal of the kernel matrices of inducing inputs, in units of its mean.
        generator: Source of random numbers for ``init``, or a seed; None: torch's own.

    Attributes:
        noise_var: Variance of the noise; learned.
        layers: The layers; ``layers[0].kernel`` is the kernel of the first one. Learned.

    Raises:
        DTypeError, DeviceError, ShapeError: The tensors are not float32 or float64, or do not fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.
        OptionError: An option is not one of those above.

    Example:
        >>> from lapgrad.models import DeepGPRegression
        >>> x = torch.linspace(0, 6, 200, dtype=torch.float64)
        >>> model = DeepGPRegression(x, torch.sin(x), inducing=10, noise_var=1e-3, generator=0)
        >>> result = model.fit(steps=50, generator=0)
        >>> mean, variance = model.predict(torch.tensor([1.5], dtype=torch.float64))
        >>> abs(mean.item() - math.sin(1.5)) < 0.1
        True
    """

    X: Tensor
    y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    noise_floor: Tensor
    noise_var = above("noise_floor")

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | Sequence[Kernel] | None = None,
        *,
        widths: Sequence[int] | None = None,
        inducing: int | Tensor = 100,
        init: str = "kmeans++",
        noise_var: Value | None = None,
        noise_floor: float | None = None,
        mean: str = "linear",
        whiten: bool = True,
        covariance: Covariance = "shared",
        normalise: bool = True,
        start: str = "data",
        jitter: float = 1e-6,
        generator: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        _deep_start.one_of_the_known(who, init=init, mean=mean, covariance=covariance, start=start)
        if not 0 <= jitter < math.inf:
            raise _errors.OptionError(f"{who}: jitter must not be negative, got {jitter}.")
        self.vector = isinstance(y, Tensor) and y.dim() == 1
        X = _checks.inputs(who, X)
        y = _checks.targets(who, y, X)
        self.normalise = normalise
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        for name, values in (("x", self.X), ("y", self.y)):
            shift, scale = _scaling.shift_and_scale(values, normalise)
            self.register_buffer(f"{name}_shift", shift)
            self.register_buffer(f"{name}_scale", scale.square().mean().sqrt() if name == "y" else scale)
        inputs, outputs = self._scaled(self.X), self._observed(self.y)
        self._set_noise(_scaling.spread(outputs).square().mean(), noise_var, noise_floor)
        inner = (min(X.shape[1], _WIDEST),) if widths is None else tuple(widths)
        _deep_start.positive(who, **{f"widths[{number}]": width for number, width in enumerate(inner)})
        kernels = _deep_start.one_per_layer(who, kernel, len(inner) + 1)
        plan = _deep_start.Plan((*inner, y.shape[1]), kernels, mean, whiten, covariance, float(jitter))
        source = _checks.generator(who, generator, X.device)
        Z = _inducing_inputs.given_or_chosen(who, inducing, self.X, init, source)
        built = list(_deep_start.layers(who, plan, inputs, outputs, self._scaled(Z)))
        self.layers = nn.ModuleList(built)
        self.plan = dataclasses.replace(plan, kernels=())  # they are in the layers
        self.to(dtype=X.dtype, device=X.device)
        if start == "data":
            _deep_start.condition(built, inputs, outputs, self.noise_var)

    def _set_noise(self, variance: Tensor, noise_var: Value | None, noise_floor: float | None) -> None:
        given = 0.1 * variance if noise_var is None else noise_var
        noise = torch.as_tensor(given, dtype=self.y.dtype, device=self.y.device)
        if noise.dim():
            raise _errors.ShapeError(f"{type(self).__name__}: noise_var must be a scalar.")
        smallest = math.sqrt(torch.finfo(torch.float64).eps)
        floor = torch.minimum(smallest * variance, 0.01 * noise.abs())
        self.register_buffer("noise_floor", floor if noise_floor is None else floor.new_tensor(noise_floor))
        self.noise_var = noise

    # Learning.

    def loss(
        self,
        *,
        samples: int = 1,
        batch: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """An estimate of the bound of the negative log likelihood of all observations: a scalar.

            sum_l KL(q(u_l) || p(u_l)) - n / batch sum_i E log N(y_i | f_i, noise)

        over a batch of the data, with an average over samples in place of the expectation over inner layers.
        It is random, and neither it nor its gradient is biased.

        Args:
            samples: How many go through the layers for each row.
            batch: How many rows, chosen at random; None, or n and more: all of them.
            generator: Source of random numbers, or a seed; None: torch's own.

        Raises:
            NotPositiveDefiniteError: The kernel matrix of the inducing inputs of a layer is not positive
                definite, by more than rounding.
            NonFiniteError: A kernel gives NaN or infinity.
        """
        who, n = f"{type(self).__name__}.loss", len(self.X)
        _deep_start.positive(who, samples=samples, batch=n if batch is None else batch)
        source = _checks.generator(who, generator, self.X.device)
        rows: Tensor | slice = slice(None)
        if batch is not None and batch < n:
            rows = torch.randperm(n, generator=source, device=self.X.device)[:batch]
        count = n if batch is None else min(batch, n)
        normals = _propagation.normals(samples, count, self.plan.widths[:-1], self.X, source)
        value = self._estimated(rows, normals)
        for layer in self._layers():
            layer.check()
        return value

    def forward(self) -> Tensor:
        """The same as ``loss()``."""
        return self.loss()

    def fit(
        self,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        seconds: float | None = None,
        batch: int = 1000,
        samples: int = 1,
        lr: float = 0.01,
        final_lr: float = 0.01,
        generator: torch.Generator | int | None = None,
        progress: bool = False,
        callback: Callback | None = None,
        every: int = 50,
        resume: dict[str, Any] | None = None,
        graph: bool | None = None,
    ) -> FitResult:
        """Learn by Adam on minibatches: kernels, noise, inducing inputs, and the distributions of the layers.

        Between two looks at the loss nothing waits for a GPU.

        Args:
            steps: How many minibatches.
            epochs: How many passes over the data, in place of ``steps``.
            seconds: How long. None of the three: 5000 steps; of two, what comes first counts.
            batch: Rows of data in each step; all of them if there are no more.
            samples: How many go through the layers for each row.
            lr: Learning rate at the start.
            final_lr: At the end, relative to the start; it comes down along half a cosine.
            generator: Source of random numbers, or a seed; None: a new one, with a seed from torch's own.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called every ``every`` steps with the step and the mean loss of the steps before; True
                stops the fit.
            every: Steps between two looks at the loss.
            resume: What ``training_state`` has returned: the fit goes on from there, up to these limits.
            graph: Replay steps as one CUDA graph, which takes a fraction of the time of a thousand launches,
                and leads to the same numbers. Kernels and networks must then do the same in each step. None:
                on a GPU, unless a step has to wait for the device. True: an error if it cannot be. False:
                never.

        Returns:
            Losses are estimates of the bound of all observations, each the mean over ``every`` steps.

        Raises:
            FitError: The loss is not finite, or a factorisation failed; the parameters are then those of the
                last look at the loss.
            OptionError: An argument is not one of those above, or there is nothing to learn.
        """
        who, n = f"{type(self).__name__}.fit", len(self.X)
        _deep_start.positive(who, samples=samples, batch=batch)
        if steps is None and epochs is None and seconds is None:
            steps = _STEPS
        plan = _minibatches.checked_plan(who, n, batch, steps, epochs, seconds, lr, final_lr, every)
        source = _minibatches.own_generator(_checks.generator(who, generator, self.X.device), self.X.device)
        training = _minibatches.Training(who, self, n, plan, source, resume, graph=graph)

        def told(step: int, value: float) -> bool | None:
            self._training = training.state()
            return None if callback is None else callback(step, value)

        result = training.run(
            lambda minibatch: self._estimated(minibatch.rows, minibatch.normals),
            normals=lambda count: [self.X.new_empty(samples, count, w) for w in self.plan.widths[:-1]],
            progress=progress,
            callback=told,
        )
        self._training = training.state()
        return result

    # Inference.

    def predict(
        self,
        X_new: Tensor,
        *,
        noise: bool = False,
        samples: int = 100,
        chunk: int | None = None,
        generator: torch.Generator | int | None = 0,
    ) -> Prediction:
        """Mean and variance of f, or of observations, at new inputs, by samples of the inner layers.

        The distribution is a mixture of normal ones, one for each sample. All new inputs share the random
        numbers of a sample: predictions are smooth functions of the inputs, and chunks change nothing.
        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            noise: Of observations: with the variance of the noise.
            samples: How many go through the layers.
            chunk: Inputs that are worked on at a time, to bound the memory; None: by size.
            generator: Source of random numbers, or a seed: by default the same ones in every call. None:
                torch's own.

        Returns:
            mean and variance, (m,) or (m, k).

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        parts = self._predicted("predict", X_new, samples, chunk, generator)
        mean = torch.cat([mean.mean(0) for mean, _ in parts])
        # Of the mixture: the mean of the variances, and the variance of the means.
        within = torch.cat([variance.mean(0) for _, variance in parts])
        variance = within + torch.cat([(mean - mean.mean(0)).square().mean(0) for mean, _ in parts])
        if noise:
            variance = variance + self.noise_var.detach()
        mean, variance = mean * self.y_scale + self.y_shift, variance * self.y_scale.square()
        return Prediction(mean[:, 0], variance[:, 0]) if self.vector else Prediction(mean, variance)

    def log_prob(
        self,
        X_new: Tensor,
        y_new: Tensor,
        *,
        joint: bool = False,
        samples: int = 100,
        chunk: int | None = None,
        generator: torch.Generator | int | None = 0,
    ) -> Tensor:
        """log p(y_new | X_new, data) of each observation at new inputs, noise included.

        The density is an average over samples of the inner layers.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            joint: Of all outputs of an observation together, in place of each by itself.
            samples, chunk, generator: As in ``predict``.

        Returns:
            (m,) (or (m, k); with ``joint`` (m,)).
        """
        who = f"{type(self).__name__}.log_prob"
        X_new = self._new_inputs("log_prob", X_new)
        y_new = self._observed(_checks.targets(who, y_new, X_new, "y_new", outputs=self.y.shape[1]))
        parts = self._predicted("log_prob", X_new, samples, chunk, generator)
        noise, densities, begin = self.noise_var.detach(), [], 0
        for mean, variance in parts:
            each = log_density(y_new[begin : begin + mean.shape[1]] - mean, variance + noise)
            each = each - self.y_scale.log()
            each = each.sum(-1, keepdim=True) if joint else each
            densities.append(each.logsumexp(0) - math.log(len(each)))
            begin += mean.shape[1]
        values = torch.cat(densities)
        return values[:, 0] if joint or self.vector else values

    @torch.no_grad()
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
            X_new: (m, d) or (m,).
            count: How many.
            noise: Of observations.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, m), or (count, m, k) for k outputs.
        """
        H = self._scaled(self._new_inputs("sample", X_new))
        source = _checks.generator(f"{type(self).__name__}.sample", generator, H.device)
        first, *later = self._layers()
        drawn = _sampling.normal(*first.joint(H), count, source)
        chunk = max(1, _CHUNK_ENTRIES // max(1, len(H) * len(H) * max(self.plan.widths)))
        for layer in later:
            prepared = layer.prepare()
            parts = [layer.joint(part, prepared) for part in drawn.split(chunk)]
            drawn = torch.cat([_sampling.normal_each(*part, source) for part in parts])
        if noise:
            deviation = self.noise_var.sqrt()
            drawn = drawn + deviation * torch.randn(
                drawn.shape, dtype=drawn.dtype, device=drawn.device, generator=source
            )
        drawn = drawn * self.y_scale + self.y_shift
        return drawn[..., 0] if self.vector else drawn

    def plot(self, axes: Any = None, *, output: int = 0, noise: bool = True, margin: float = 0.1) -> Any:
        """The fit over one input: mean, band of two standard deviations, and data, with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            output: Which output, if there are several.
            noise: The band of observations, else that of f.
            margin: How far to go beyond the data, relative to their range.

        Returns:
            The axes.

        Raises:
            ShapeError: There is more than one input.
        """
        x = _plots.around(f"{type(self).__name__}.plot", self.X, margin)
        mean, variance = self.predict(x, noise=noise)
        if not self.vector:
            mean, variance = mean[:, output], variance[:, output]
        return _plots.fitted_curve(x, mean, variance, (self.X[:, 0], self.y[:, output]), axes)

    # Files.

    def config(self) -> dict[str, Any]:
        """Options and the descriptions of the kernels."""
        return {
            **{name: getattr(self.plan, name) for name in ("mean", "whiten", "covariance", "jitter")},
            "widths": list(self.plan.widths[:-1]),
            "kernels": [layer.kernel.config() for layer in self._layers()],
            "normalise": self.normalise,
            "vector": self.vector,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """A model of this description on the data that were saved."""
        options = dict(config)
        kernels = [
            kernel_from_config(kernel, part_of_state(tensors, f"layers.{number}.kernel."), modules)
            for number, kernel in enumerate(options.pop("kernels"))
        ]
        y = tensors["y"][:, 0] if options.pop("vector") else tensors["y"]
        Z = tensors["layers.0.raw_inducing"]
        return cls(tensors["X"], y, kernels, inducing=Z, start="prior", **options)

    def extra_repr(self) -> str:
        """Size of the data, layers, inducing inputs and the noise."""
        (n, d), U = self.X.shape, len(self._layers()[0].inducing)
        widths, noise = self.plan.widths, self.noise_var.item()
        return f"n={n}, d={d}, widths={widths}, inducing={U}, noise_var={noise:.4g}"

    # Parts.

    def _layers(self) -> list[SparseLayer]:
        return [cast(SparseLayer, layer) for layer in self.layers]

    def _estimated(self, rows: Tensor | slice, normals: Sequence[Tensor]) -> Tensor:
        """The loss, by these rows of the data and numbers for them; nothing waits for the device."""
        X, y = self._scaled(self.X[rows]), self._observed(self.y[rows])
        layers = self._layers()
        prepared = [layer.prepare() for layer in layers]
        mean, variance = _propagation.through(layers, prepared, X, normals)
        of_data = expected_log_density(y - mean, variance, self.noise_var).mean(0).sum()
        divergence = torch.stack([layer.kl(part) for layer, part in zip(layers, prepared, strict=True)]).sum()
        value = divergence - of_data * (len(self.X) / len(X))
        return value + self.y.numel() * self.y_scale.log() if self.normalise else value

    def _predicted(
        self,
        function: str,
        X_new: Tensor,
        samples: int,
        chunk: int | None,
        generator: torch.Generator | int | None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Of each chunk: mean and variance (samples, chunk, k) of f given each sample, in scaled units."""
        who = f"{type(self).__name__}.{function}"
        X_new = self._new_inputs(function, X_new)
        _deep_start.positive(who, samples=samples, chunk=1 if chunk is None else chunk)
        inner = self.plan.widths[:-1]
        samples = samples if inner else 1
        source = _checks.generator(who, generator, X_new.device)
        normals = _propagation.normals(samples, 1, inner, X_new, source)
        recording = torch.is_grad_enabled() and X_new.requires_grad
        with parameters_fixed(self.layers) if recording else torch.no_grad():
            layers = self._layers()
            prepared = [layer.prepare() for layer in layers]
            for layer in layers:
                layer.check()
            if chunk is None:
                chunk = max(1, _CHUNK_ENTRIES // (samples * len(layers[0].inducing)))
            return [
                _propagation.through(layers, prepared, self._scaled(part), normals)
                for part in X_new.split(chunk)
            ]

    def _scaled(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale if self.normalise else X

    def _observed(self, y: Tensor) -> Tensor:
        return (y - self.y_shift) / self.y_scale if self.normalise else y

    def _new_inputs(self, function: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{function}"
        X_new = _checks.inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.same_kind(who, X=self.X, X_new=X_new)
        return X_new
