"""Regression with layers of Gaussian processes, by doubly stochastic variational inference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.distributed.group import Group, as_group
from lapgrad.models import _checks, _scaling
from lapgrad.models._deep import propagation as _propagation
from lapgrad.models._deep import start as _start
from lapgrad.models._deep.inference import LayeredRegression
from lapgrad.models._deep.start import Covariance
from lapgrad.models._deep.trained_model import TrainedModel
from lapgrad.models._gp import inducing_inputs as _inducing_inputs
from lapgrad.models._gp.spread_rows import SpreadRows, make_shared_generator, register_rows
from lapgrad.models._parameters import Value
from lapgrad.models._prediction import compute_expected_log_density
from lapgrad.models._storage.entries import FLAG, INTEGERS, NUMBER, PARTS, TEXT, check_entries
from lapgrad.models._training.shares import BatchPart, DataShare
from lapgrad.models.kernels.base import Kernel, kernel_from_config, part_of_state

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_WIDEST = 30

#: The entries of the description in a file.
_ENTRIES = {
    "mean": TEXT,
    "whiten": FLAG,
    "covariance": TEXT,
    "jitter": NUMBER,
    "widths": INTEGERS,
    "kernels": PARTS,
    "normalise": FLAG,
    "vector": FLAG,
}


class DeepGPRegression(TrainedModel, LayeredRegression):
    """y = f_L(... f_1(x)) + noise, each f_l a vector of Gaussian processes, approximated by inducing inputs.

    Learns kernels, inducing inputs, the distributions of the inducing variables and the noise by the doubly
    stochastic bound of Salimbeni and Deisenroth (2017): samples of a minibatch are propagated through the
    inner layers, and the expectation over the last layer is exact. A layer takes (batch · samples) U²
    operations per output, independent of n.

    The mean function of an inner layer is a fixed linear map, and the layer starts close to it. The last
    layer starts at the optimal distribution for the data, given these maps. So a deep model starts near a
    sparse Gaussian process (``SparseGPRegression``) with the same inducing inputs.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        y: (n,), or (n, k) for k outputs, which share inner layers, kernel and noise.
        kernel: Covariance of the functions: one for each layer, or one of which each layer has a copy; None:
            ``RBF`` with one lengthscale per input of the layer. They follow the model to its device.
        widths: Outputs of each layer but the last one: (5, 5) makes three layers. (): one layer, a sparse
            Gaussian process. None: one inner layer, as wide as X, or 30 if that is less.
        inducing: Inducing inputs of each layer, chosen from the rows of X (no row twice, so there may be
            fewer); or those of the first layer, (U, d) or (U,). The linear maps give those of later layers.
        init: How inducing inputs are chosen: "greedy" (each at the largest variance of the first layer given
            those before), "kmeans++" (far from each other) or "random", as in ``SparseGPRegression``.
        noise_var: Variance of the noise; None: a tenth of the variance of y.
        noise_floor: Lower limit of the variance of the noise while it is learned; None: 1.5e-8 of the
            variance of y, or a hundredth of ``noise_var`` if that is less.
        mean: The mean function of inner layers: "linear" (the identity, or principal components of the inputs
            if the layer has fewer outputs), "identity" (all widths must be d), or "zero". That of the last
            layer is zero.
        whiten: Describe the inducing variables by their whitened form, which is easier to learn.
        covariance: Of the inducing variables: "shared" by the outputs of a layer, or "separate" for each,
            which takes as many times longer.
        normalise: Shift and scale each column of X, and y, to mean 0 and variance 1. Hyper-parameters and
            inducing inputs are then in these units; predictions and the loss are in those of y.
        start: How the last layer starts: "data", at the optimal distribution for the data, or "prior".
        jitter: Added to the diagonal of the kernel matrices of inducing inputs, in units of its mean.
        generator: Source of random numbers for ``init``, or a seed; None: torch's own.
        group: Processes that each have their own rows X and y, and learn together (``distributed.Group``).
            Linear maps and inducing inputs start from a sample of up to 2^15 rows of all of them. None: one
            process.

    Attributes:
        noise_var: Variance of the noise; learned.
        layers: The layers; ``layers[0].kernel`` is the kernel of the first one. Learned.

    Raises:
        DTypeError, DeviceError, ShapeError: The tensors are not float32 or float64, or do not fit.
        NonFiniteError: X or y has a NaN or an infinity; the rows are named.
        OptionError: An option is not one of those above.

    Example:
        >>> import torch
        >>> from lapgrad.models import DeepGPRegression
        >>> x = torch.linspace(0, 6, 200, dtype=torch.float64)
        >>> model = DeepGPRegression(x, torch.sin(x), inducing=10, noise_var=1e-3, generator=0)
        >>> result = model.fit(steps=50, generator=0)
        >>> mean, variance = model.predict(torch.tensor([1.5], dtype=torch.float64))
        >>> abs(mean.item() - math.sin(1.5)) < 0.1
        True
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel | Sequence[Kernel] | None = None,
        *,
        widths: Sequence[int] | None = None,
        inducing: int | Tensor = 100,
        init: str = "greedy",
        noise_var: Value | None = None,
        noise_floor: float | None = None,
        mean: str = "linear",
        whiten: bool = True,
        covariance: Covariance = "shared",
        normalise: bool = True,
        start: str = "data",
        jitter: float = 1e-6,
        generator: torch.Generator | int | None = None,
        group: Group | ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        _start.check_words(who, init=init, mean=mean, covariance=covariance, start=start)
        if not 0 <= jitter < math.inf:
            raise _exceptions.OptionError(f"{who}: jitter must not be negative, got {jitter}.")
        self.vector = isinstance(y, Tensor) and y.dim() == 1
        self.normalise, self.group = normalise, as_group(who, group)
        X, y = self._register_data(X, y)
        inputs, outputs = self._scale_inputs(X), self._scale_targets(y)
        self._set_noise(_scaling.compute_spread(outputs).square().mean(), noise_var, noise_floor)
        inner = (min(X.shape[1], _WIDEST),) if widths is None else tuple(widths)
        _start.check_positive(who, **{f"widths[{number}]": width for number, width in enumerate(inner)})
        kernels = _start.list_kernels(who, kernel, len(inner) + 1)
        plan = _start.LayerPlan((*inner, y.shape[1]), kernels, mean, whiten, covariance, float(jitter))
        source = make_shared_generator(who, generator, X.device, self.group)
        first = (kernels[0] or _start.make_default_kernel(inputs, outputs, not inner)).to(inputs)
        Z = _inducing_inputs.resolve_inducing_inputs(
            who, inducing, X, init, source, first, self._scale_inputs
        )
        built = list(_start.make_layers(who, plan, inputs, outputs, Z))
        self.layers = nn.ModuleList(built)
        self.plan = dataclasses.replace(plan, kernels=())  # they are in the layers
        self.to(dtype=X.dtype, device=X.device)
        if start == "data":
            inputs, outputs = self._scale_inputs(self.X), self._scale_targets(self.y)
            _start.condition_last_layer(built, inputs, outputs, self.noise_var, self.group)
        if self.group is not None:
            self.group.copy_from_first(list(self.parameters()))

    def _register_data(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Keep copies of the data, and return them, or a sample of those of all processes."""
        who = type(self).__name__
        if self.group is None:
            X = _checks.check_inputs(who, X)
            y = _checks.check_targets(who, y, X)
            self.register_buffer("X", X.detach().clone())
            self.register_buffer("y", y.detach().clone())
            _scaling.register_scaling(self, "x", self.X, self.normalise)
            _scaling.register_scaling(self, "y", self.y, self.normalise, pooled=True)
            return self.X, self.y
        rows = SpreadRows(who, X, y, self.group)
        if any(self.group.sum_numbers([float(not rows.count)])):
            raise _exceptions.ShapeError(f"{who}: each process needs a row of X, and one has none.")
        some = register_rows(self, rows, self.normalise)
        self.X, self.y = (part.detach().clone().reshape(len(X), -1) for part in (X, y))
        self.share = DataShare(self.group, rows.offset, len(X), rows.total)
        return some

    def _set_noise(self, variance: Tensor, noise_var: Value | None, noise_floor: float | None) -> None:
        _checks.check_noise_limits(type(self).__name__, noise_var, noise_floor)
        given = _scaling.choose_noise(variance, noise_floor) if noise_var is None else noise_var
        noise = torch.as_tensor(given, dtype=self.y.dtype, device=self.y.device)
        if noise.dim():
            raise _exceptions.ShapeError(f"{type(self).__name__}: noise_var must be a scalar.")
        smallest = math.sqrt(torch.finfo(torch.float64).eps)
        floor = torch.minimum(smallest * variance, 0.01 * noise.abs())
        self.register_buffer("noise_floor", floor if noise_floor is None else floor.new_tensor(noise_floor))
        self.noise_var = noise

    # Learning.

    def _allocate_normals(self, samples: int, count: int) -> list[Tensor]:
        """Return uninitialised tensors for the random numbers of the inner layers."""
        return [self.X.new_empty(samples, count, width) for width in self.plan.widths[:-1]]

    # Files.

    def config(self) -> dict[str, Any]:
        """Return options and the descriptions of the kernels."""
        return {
            **{name: getattr(self.plan, name) for name in ("mean", "whiten", "covariance", "jitter")},
            "widths": list(self.plan.widths[:-1]),
            "kernels": [layer.kernel.config() for layer in self._list_layers()],
            "normalise": self.normalise,
            "vector": self.vector,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
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
        n, d, U = self._count_rows(), self.X.shape[1], len(self._list_layers()[0].inducing)
        widths, noise = self.plan.widths, self.noise_var.item()
        return f"n={n}, d={d}, widths={widths}, inducing={U}, noise_var={noise:.4g}"

    # Parts.

    def _estimate_loss(
        self, rows: Tensor | slice, normals: Sequence[Tensor], part: BatchPart | None = None
    ) -> Tensor:
        """Return the loss, estimated from some rows and normal numbers, without waiting for the device."""
        X, y = self._scale_inputs(self.X[rows]), self._scale_targets(self.y[rows])
        layers = self._list_layers()
        prepared = [layer.prepare() for layer in layers]
        mean, variance = _propagation.propagate_samples(layers, prepared, X, normals)
        of_data = compute_expected_log_density(y - mean, variance, self.noise_var).mean(0).sum()
        if part is not None and not part.is_first:
            return -of_data * part.weight
        weight = len(self.X) / len(X) if part is None else part.weight
        pairs = zip(layers, prepared, strict=True)
        value = torch.stack([layer.kl(factors) for layer, factors in pairs]).sum() - of_data * weight
        count = self._count_rows() * self.y.shape[1]
        return value + count * self.y_scale.log() if self.normalise else value
