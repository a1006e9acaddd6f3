"""Predictions of layers of Gaussian processes, by samples of the inner layers."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from lapgrad.models import _checks, _sampling
from lapgrad.models._deep import propagation as _propagation
from lapgrad.models._deep import start as _start
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models._model import StoredModel
from lapgrad.models._parameters import above
from lapgrad.models._prediction import Prediction, compute_log_density
from lapgrad.models._scaling import StandardisedRegression
from lapgrad.models.features import fix_parameters

_CHUNK_ENTRIES = 1 << 22
"""Entries of the kernel matrix of a chunk of a prediction: 32 MB in float64."""


class LayeredRegression(StandardisedRegression, StoredModel):
    """A model y = f_L(... f_1(x)) + noise that holds its data; subclasses learn it.

    Attributes:
        X, y: (n, d) and (n, k), the data.
        x_shift, x_scale, y_shift, y_scale: Standardise the data, with ``normalise``.
        noise_var: Variance of the noise, in standardised units.
        layers: The layers, each a ``SparseLayer``.
        plan: Their options.
        vector: Whether y was given as (n,).
    """

    noise_floor: Tensor
    noise_var = above("noise_floor")
    layers: nn.ModuleList
    plan: _start.LayerPlan
    vector: bool

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

        The distribution is a mixture of normal ones, one for each sample of the inner layers. All new inputs
        share the random numbers of a sample, so that predictions are smooth functions of the inputs and do
        not depend on ``chunk``.
        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            noise: Predict observations, with the variance of the noise.
            samples: How many samples of the inner layers.
            chunk: Inputs per chunk, to limit the memory; None: chosen by size.
            generator: Source of random numbers, or a seed: by default the same ones in every call. None:
                torch's own.

        Returns:
            mean and variance, (m,) or (m, k).

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        parts = self._predict_parts("predict", X_new, samples, chunk, generator)
        mean = torch.cat([mean.mean(0) for mean, _ in parts])
        # The variance of a mixture is the mean of the variances plus the variance of the means.
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
        """Return log p(y_new | X_new, data) of each observation, noise included.

        The density is an average over samples of the inner layers.

        Args:
            X_new: (m, d) or (m,).
            y_new: (m,), or (m, k) for k outputs.
            joint: The density of all outputs of an observation together, not of each output.
            samples, chunk, generator: As in ``predict``.

        Returns:
            (m,) (or (m, k); with ``joint`` (m,)).
        """
        who = f"{type(self).__name__}.log_prob"
        X_new = self._check_new_inputs("log_prob", X_new)
        y_new = self._scale_targets(
            _checks.check_targets(who, y_new, X_new, "y_new", outputs=self.y.shape[1])
        )
        parts = self._predict_parts("log_prob", X_new, samples, chunk, generator)
        noise, densities, begin = self.noise_var.detach(), [], 0
        for mean, variance in parts:
            each = compute_log_density(y_new[begin : begin + mean.shape[1]] - mean, variance + noise)
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
        """Return draws of f (with ``noise``: of observations), each of one function at all new inputs.

        Args:
            X_new: (m, d) or (m,).
            count: How many draws.
            noise: Draw observations.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, m), or (count, m, k) for k outputs.
        """
        H = self._scale_inputs(self._check_new_inputs("sample", X_new))
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, H.device)
        first, *later = self._list_layers()
        drawn = _sampling.draw_normal(*first.predict_jointly(H), count, source)
        chunk = max(1, _CHUNK_ENTRIES // max(1, len(H) * len(H) * max(self.plan.widths)))
        for layer in later:
            prepared = layer.prepare()
            parts = [layer.predict_jointly(part, prepared) for part in drawn.split(chunk)]
            drawn = torch.cat([_sampling.draw_each_normal(*part, source) for part in parts])
        if noise:
            deviation = self.noise_var.sqrt()
            drawn = drawn + deviation * torch.randn(
                drawn.shape, dtype=drawn.dtype, device=drawn.device, generator=source
            )
        drawn = drawn * self.y_scale + self.y_shift
        return drawn[..., 0] if self.vector else drawn

    def _list_layers(self) -> list[SparseLayer]:
        return [cast(SparseLayer, layer) for layer in self.layers]

    def _predict_parts(
        self,
        function: str,
        X_new: Tensor,
        samples: int,
        chunk: int | None,
        generator: torch.Generator | int | None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return mean and variance (samples, rows, k) of f given each sample, for each chunk of rows."""
        who = f"{type(self).__name__}.{function}"
        X_new = self._check_new_inputs(function, X_new)
        _start.check_positive(who, samples=samples, chunk=1 if chunk is None else chunk)
        inner = self.plan.widths[:-1]
        samples = samples if inner else 1
        source = _checks.make_generator(who, generator, X_new.device)
        normals = _propagation.draw_normals(samples, 1, inner, X_new, source)
        recording = torch.is_grad_enabled() and X_new.requires_grad
        with fix_parameters(self.layers) if recording else torch.no_grad():
            layers = self._list_layers()
            prepared = [layer.prepare() for layer in layers]
            for layer in layers:
                layer.check()
            if chunk is None:
                chunk = max(1, _CHUNK_ENTRIES // (samples * len(layers[0].inducing)))
            return [
                _propagation.propagate_samples(layers, prepared, self._scale_inputs(part), normals)
                for part in X_new.split(chunk)
            ]
