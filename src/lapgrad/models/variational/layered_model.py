"""Layers of Gaussian processes under a likelihood: the bound, and predictions at new inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models import _checks, _sampling, _scaling
from lapgrad.models._deep import propagation as _propagation
from lapgrad.models._deep import start as _start
from lapgrad.models._deep.trained_model import TrainedModel
from lapgrad.models._gp import inducing_inputs as _inducing_inputs
from lapgrad.models._model import StoredModel
from lapgrad.models._parameters import unbounded
from lapgrad.models._storage.entries import FLAG, INTEGERS, NUMBER, PART, PARTS, TEXT, check_entries
from lapgrad.models._training.shares import BatchPart
from lapgrad.models.features import fix_parameters
from lapgrad.models.kernels.base import Kernel, kernel_from_config, part_of_state
from lapgrad.models.likelihoods.base import Likelihood, likelihood_from_config

_CHUNK_ENTRIES = 1 << 22
"""Entries of the kernel matrix of a chunk of a prediction: 32 MB in float64."""

#: The entries of the description in a file.
_ENTRIES = {
    "mean": TEXT,
    "whiten": FLAG,
    "covariance": TEXT,
    "jitter": NUMBER,
    "widths": INTEGERS,
    "kernels": PARTS,
    "likelihood": PART,
    "normalise": FLAG,
    "vector": FLAG,
}


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Options of ``VariationalGP`` and ``GPClassification``, which documents them."""

    widths: Sequence[int]
    inducing: int | Tensor
    init: str
    mean: str
    whiten: bool
    covariance: _start.Covariance | None
    normalise: bool
    start: str
    jitter: float
    generator: torch.Generator | int | None


class LayeredModel(TrainedModel, StoredModel):
    """y ~ p(y | f(x)), f = f_L(... f_1(x)) + constant, learned by the bound of the log likelihood.

    Attributes:
        X, y: (n, d) and (n, m), the data.
        likelihood: p(y | f).
        layers: The layers, each a ``SparseLayer``.
        constant: (k,), the means of the functions of the last layer.
        plan: The options of the layers.
        vector: Whether y was given as (n,).
    """

    X: Tensor
    y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    layers: nn.ModuleList
    plan: _start.LayerPlan
    constant = unbounded()

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        likelihood: Likelihood,
        kernel: Kernel | Sequence[Kernel] | None,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        covariance: _start.Covariance = options.covariance or "shared"
        _start.check_words(
            who, init=options.init, mean=options.mean, covariance=covariance, start=options.start
        )
        if not 0 <= options.jitter < math.inf:
            raise _exceptions.OptionError(f"{who}: jitter must not be negative, got {options.jitter}.")
        if not isinstance(likelihood, Likelihood):
            raise _exceptions.OptionError(
                f"{who}: likelihood must be one of models.likelihoods, "
                f"got {_checks.describe_kind(likelihood)}."
            )
        X = _checks.check_inputs(who, X)
        self.vector, self.normalise = isinstance(y, Tensor) and y.dim() == 1, options.normalise
        self.likelihood = likelihood
        y = self._check_observations(who, y, X, "y")
        self.register_buffer("X", X.detach().clone())
        self.register_buffer("y", y.detach().clone())
        _scaling.register_scaling(self, "x", self.X, self.normalise)
        _scaling.register_scaling(self, "y", self.y, self.normalise and likelihood.standardises, pooled=True)
        self._build_layers(kernel, options, covariance)
        self.to(dtype=X.dtype, device=X.device)
        self._start_from(options.start)

    def _build_layers(
        self, kernel: Kernel | Sequence[Kernel] | None, options: LayerOptions, covariance: _start.Covariance
    ) -> None:
        who, inner = type(self).__name__, tuple(options.widths)
        _start.check_positive(who, **{f"widths[{number}]": width for number, width in enumerate(inner)})
        functions = self.likelihood.count_functions(self.y)
        if options.covariance is None and functions <= 2:
            covariance = "separate"
        kernels = _start.list_kernels(who, kernel, len(inner) + 1)
        plan = _start.LayerPlan(
            (*inner, functions), kernels, options.mean, options.whiten, covariance, float(options.jitter)
        )
        inputs = self._scale_inputs(self.X)
        # Functions of the order of 1: of the logits of classes, or of standardised observations.
        scale = inputs.new_ones(1)
        first = (kernels[0] or _start.make_default_kernel(inputs, scale, not inner)).to(inputs)
        Z = _inducing_inputs.resolve_inducing_inputs(
            who,
            options.inducing,
            self.X,
            options.init,
            _checks.make_generator(who, options.generator, self.X.device),
            first,
            self._scale_inputs,
        )
        self.layers = nn.ModuleList(_start.make_layers(who, plan, inputs, scale, Z))
        self.plan = dataclasses.replace(plan, kernels=())  # they are in the layers
        self.constant = self.X.new_zeros(functions)

    @torch.no_grad()
    def _start_from(self, start: str) -> None:
        """Set the constant; with "data" also q(u) of the last layer, for a Gaussian approximation of p."""
        self.likelihood.to(self.X)
        begin = self.likelihood.approximate(self._scale_targets(self.y))
        self.constant = begin.constant
        if start == "data":
            inputs = self._scale_inputs(self.X)
            _start.condition_last_layer(self._list_layers(), inputs, begin.targets, begin.noise_var)

    # Learning.

    def _allocate_normals(self, samples: int, count: int) -> list[Tensor]:
        """Return uninitialised tensors for the random numbers of the inner layers, and of the likelihood."""
        *inner, functions = self.plan.widths
        normals = [self.X.new_empty(samples, count, width) for width in inner]
        wanted = self.likelihood.count_normals
        return [*normals, self.X.new_empty(wanted, count, functions)] if wanted else normals

    def _estimate_loss(
        self, rows: Tensor | slice, normals: Sequence[Tensor], part: BatchPart | None = None
    ) -> Tensor:
        """Return the loss, estimated from some rows and normal numbers, without waiting for the device."""
        assert part is None, "these models are learned by one process"
        X, y = self._scale_inputs(self.X[rows]), self._scale_targets(self.y[rows])
        layers = self._list_layers()
        prepared = [layer.prepare() for layer in layers]
        inner = normals[: len(layers) - 1]
        mean, variance = _propagation.propagate_samples(layers, prepared, X, inner)
        of_likelihood = normals[len(inner)] if len(normals) > len(inner) else None
        each = self.likelihood.expected_log_prob(mean + self.constant, variance, y, of_likelihood)
        divergence = torch.stack([layer.kl(part) for layer, part in zip(layers, prepared, strict=True)]).sum()
        value = divergence - each.mean(0).sum() * (len(self.X) / len(X))
        return value + self.y.numel() * self.y_scale.log() if self._scales_targets() else value

    # Inference.

    def log_prob(
        self,
        X_new: Tensor,
        y_new: Tensor,
        *,
        samples: int = 100,
        chunk: int | None = None,
        generator: torch.Generator | int | None = 0,
    ) -> Tensor:
        """Return log p(y_new | X_new, data) of each row, (m,): of its outputs together.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            samples: How many samples of the inner layers.
            chunk: Inputs per chunk, to limit the memory; None: chosen by size.
            generator: Source of random numbers, or a seed: by default the same ones in every call. None:
                torch's own.
        """
        who = f"{type(self).__name__}.log_prob"
        X_new = self._check_new_inputs("log_prob", X_new)
        y_new = self._scale_targets(self._check_observations(who, y_new, X_new, "y_new"))
        begin, densities = 0, []
        with self._hold_parameters(X_new):
            for mean, variance in self._predict_functions("log_prob", X_new, samples, chunk, generator):
                part = y_new[begin : begin + mean.shape[1]]
                begin += mean.shape[1]
                each = self.likelihood.predictive_log_prob(mean, variance, part)
                densities.append(each.logsumexp(0) - math.log(len(each)))
        value = torch.cat(densities)
        return value - self.y.shape[1] * self.y_scale.log() if self._scales_targets() else value

    def _predict_functions(
        self,
        function: str,
        X_new: Tensor,
        samples: int,
        chunk: int | None,
        generator: torch.Generator | int | None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return mean and variance (samples, rows, k) of f given each sample, for each chunk of rows."""
        who = f"{type(self).__name__}.{function}"
        _start.check_positive(who, samples=samples, chunk=1 if chunk is None else chunk)
        inner = self.plan.widths[:-1]
        samples = samples if inner else 1
        source = _checks.make_generator(who, generator, X_new.device)
        normals = _propagation.draw_normals(samples, 1, inner, X_new, source)
        layers = self._list_layers()
        prepared = [layer.prepare() for layer in layers]
        for layer in layers:
            layer.check()
        if chunk is None:
            chunk = max(1, _CHUNK_ENTRIES // (samples * len(layers[0].inducing)))
        parts = [
            _propagation.propagate_samples(layers, prepared, self._scale_inputs(part), normals)
            for part in X_new.split(chunk)
        ]
        return [(mean + self.constant, variance) for mean, variance in parts]

    def _hold_parameters(self, X_new: Tensor) -> AbstractContextManager[Any]:
        """Treat parameters as constants inside; if ``X_new`` needs no gradient, record nothing."""
        recording = torch.is_grad_enabled() and X_new.requires_grad
        return fix_parameters(self) if recording else torch.no_grad()

    def _average(
        self,
        parts: Sequence[tuple[Tensor, Tensor]],
        moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variance (rows, ·) of mixtures, over samples, of distributions with ``moments``."""
        means, variances = zip(*[moments(*part) for part in parts], strict=True)
        mean = torch.cat([part.mean(0) for part in means])
        # The variance of a mixture is the mean of the variances plus the variance of the means.
        within = torch.cat([part.mean(0) for part in variances])
        return mean, within + torch.cat([(part - part.mean(0)).square().mean(0) for part in means])

    def _draw_functions(self, X: Tensor, count: int, source: torch.Generator | None) -> Tensor:
        """Return draws of f, (count, m, k), each of one function at all inputs X (m, d), scaled."""
        first, *later = self._list_layers()
        drawn = _sampling.draw_normal(*first.predict_jointly(X), count, source)
        chunk = max(1, _CHUNK_ENTRIES // max(1, len(X) * len(X) * max(self.plan.widths)))
        for layer in later:
            prepared = layer.prepare()
            parts = [layer.predict_jointly(part, prepared) for part in drawn.split(chunk)]
            drawn = torch.cat([_sampling.draw_each_normal(*part, source) for part in parts])
        return drawn + self.constant

    # Files.

    def config(self) -> dict[str, Any]:
        """Return options and the descriptions of likelihood and kernels."""
        return {
            **{name: getattr(self.plan, name) for name in ("mean", "whiten", "covariance", "jitter")},
            "widths": list(self.plan.widths[:-1]),
            "kernels": [layer.kernel.config() for layer in self._list_layers()],
            "likelihood": self.likelihood.config(),
            "normalise": self.normalise,
            "vector": self.vector,
        }

    @classmethod
    def _read_parts(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> tuple[Tensor, Likelihood, list[Kernel], dict[str, Any]]:
        """Return y as it was given, the likelihood, the kernels, and all other options."""
        check_entries(config, _ENTRIES)
        options = dict(config)
        kernels = [
            kernel_from_config(kernel, part_of_state(tensors, f"layers.{number}.kernel."), modules)
            for number, kernel in enumerate(options.pop("kernels"))
        ]
        y = tensors["y"][:, 0] if options.pop("vector") else tensors["y"]
        likelihood = likelihood_from_config(options.pop("likelihood"))
        options["inducing"] = tensors["layers.0.raw_inducing"]
        return y, likelihood, kernels, {**options, "start": "prior"}

    def extra_repr(self) -> str:
        """Size of the data, layers and inducing inputs."""
        (n, d), U = self.X.shape, len(self._list_layers()[0].inducing)
        return f"n={n}, d={d}, widths={self.plan.widths}, inducing={U}"

    # Parts.

    def _scales_targets(self) -> bool:
        return self.normalise and self.likelihood.standardises

    def _scale_inputs(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale if self.normalise else X

    def _scale_targets(self, y: Tensor) -> Tensor:
        return (y - self.y_shift) / self.y_scale if self._scales_targets() else y

    def _check_new_inputs(self, function: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{function}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X=self.X, X_new=X_new)
        return X_new

    def number_observations(self, who: str, y: Any, X: Tensor, name: str) -> Any:
        """Return observations as numbers; a model of labels overrides it."""
        return y

    def _check_observations(self, who: str, y: Any, X: Tensor, name: str) -> Tensor:
        """Return y as a matrix (n, m) of the dtype of X, of values that can be observed."""
        y = self.number_observations(who, y, X, name)
        if isinstance(y, Tensor) and not y.is_floating_point() and not y.is_complex():
            y = y.to(X.dtype)  # counts, classes, true and false
        y = _checks.check_targets(who, y, X, name)
        self.likelihood.check_observations(who, y, name)
        return y
