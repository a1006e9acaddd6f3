"""The initial layers of a deep Gaussian process."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.distributed.group import Group
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp.rows import TensorRows
from lapgrad.models import _checks, _scaling
from lapgrad.models._deep import mean_functions as _mean_functions
from lapgrad.models._deep.sparse_layer import COVARIANCES, SparseLayer
from lapgrad.models._gp import inducing_inputs as _inducing_inputs
from lapgrad.models._gp import sparse_posterior as _sparse_posterior
from lapgrad.models.kernels.base import Kernel, check_kernel
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.potrf import potrf
from lapgrad.ops.potri import potri
from lapgrad.ops.trmm import trmm
from lapgrad.ops.trsm import trsm

_WORDS = {
    "init": _inducing_inputs.INITIALISATIONS,
    "mean": ("linear", "identity", "zero"),
    "covariance": COVARIANCES,
    "start": ("data", "prior"),
}
Covariance = Literal["separate", "shared"]
_INNER_DEVIATION = 1e-2
"""Initial deviation of the inducing variables of inner layers, relative to the prior: close to their means.
Smaller values take longer to unlearn, because logarithms are learned: from 1e-5 it would be 1000 steps."""
_INNER_VARIANCE = 0.1
"""Initial variance of the kernels of inner layers, relative to that of their inputs: it limits how uncertain
the functions are between inducing inputs."""
_ROWS = 4096
"""Rows of data that go through the inner layers at a time."""


@dataclass(frozen=True)
class LayerPlan:
    """The options of the layers of a model.

    Attributes:
        widths: Outputs of each layer, the last one included.
        kernels: One for each layer; None: ``RBF``, scaled to the inputs of the layer.
        mean: The mean function of inner layers: "linear", "identity" or "zero".
        whiten, covariance, jitter: Options of ``SparseLayer``.
    """

    widths: tuple[int, ...]
    kernels: Sequence[Kernel | None]
    mean: str
    whiten: bool
    covariance: Covariance
    jitter: float


def make_layers(who: str, plan: LayerPlan, X: Tensor, y: Tensor, Z: Tensor) -> Iterator[SparseLayer]:
    """Yield the layers: inner ones start as linear maps, the last one as its prior.

    Args:
        who: Name of the model, for messages.
        plan: Their options.
        X: (n, d), the inputs of the first layer.
        y: (n, k).
        Z: (U, d), inducing inputs of the first layer; the linear maps give those of later layers.
    """
    for number, (width, kernel) in enumerate(zip(plan.widths, plan.kernels, strict=True)):
        last = number + 1 == len(plan.widths)
        if not last and plan.mean == "identity" and width != X.shape[1]:
            raise _exceptions.OptionError(
                f"{who}: mean='identity' wants layers of {X.shape[1]} outputs like the inputs, got a width "
                f"of {width}. Use mean='linear'."
            )
        around = None if last else _mean_functions.make_linear_map(X, width)
        layer = SparseLayer(
            Z,
            width,
            (make_default_kernel(X, y, last) if kernel is None else kernel).to(X),
            whiten=plan.whiten,
            covariance=plan.covariance,
            mean=None if plan.mean == "zero" else around,
            jitter=plan.jitter,
        ).to(X)
        layer.kernel.diag(X[:1])  # raises here, not in the first step, if the kernel does not fit the data
        if around is not None:
            _initialise_as(layer, around, explicit=plan.mean == "zero")
            X, Z = around(X), around(Z)
        yield layer


def make_default_kernel(X: Tensor, y: Tensor, last: bool) -> Kernel:
    """Return an RBF kernel with lengthscales from the spread of X, and a variance for its layer."""
    spread = _scaling.compute_spread(X)
    variance = y.square().mean() if last else _INNER_VARIANCE * spread.square().mean()
    return RBF(spread * math.sqrt(max(1, X.shape[1])), variance if variance > 0 else 1.0)


@torch.no_grad()
def _initialise_as(layer: SparseLayer, function: nn.Module, *, explicit: bool) -> None:
    """Set q(u) so that the layer is nearly ``function``: its mean function, unless ``explicit``."""
    prepared = layer.prepare()
    root = prepared.factor.new_tensor(_INNER_DEVIATION).expand(len(layer.inducing)).diag()
    mean = function(layer.inducing).to(root) if explicit else None
    if layer.whiten:
        layer.set_posterior(mean if mean is None else trsm(prepared.factor, mean), root)
    else:
        layer.set_posterior(mean, _INNER_DEVIATION * prepared.factor)


@torch.no_grad()
def condition_last_layer(
    layers: Sequence[SparseLayer], X: Tensor, y: Tensor, noise_var: Tensor, group: Group | None = None
) -> None:
    """Set q(u) of the last layer to the optimal one for X (n, d), y (n, k), with the others at their means.

    With the statistics of ``fused._sgp.statistics``, K_uu = Lu Lu^T and M = I + W / v, the inducing variables
    u = Lu w have

        q(w) = N(M^-1 b / v, M^-1)

    which has the smallest Kullback-Leibler divergence from the posterior. With a ``group``, each process has
    some of the rows.
    """
    *inner, last = layers
    for layer in inner:
        prepared = layer.prepare()
        X = torch.cat([layer(part, prepared)[0] for part in X.split(_ROWS)])
    Lu, Lm, weights = _sparse_posterior.compute_posterior(
        "SparseLayer",
        _kernel_function.wrap_module(last.kernel),
        last.inducing,
        TensorRows(X, y),
        (),
        noise_var,
        last.jitter,
        None,
        group,
    )[2:]
    mean, root = trmm(Lu, weights, transpose=True), potrf(potri(Lm))
    if not last.whiten:
        mean, root = trmm(Lu, mean), trmm(Lu, root)
    last.set_posterior(mean, root)


def check_words(who: str, **options: str) -> None:
    """Raise if an option has a value that is not one of its known words."""
    for name, value in options.items():
        if value not in _WORDS[name]:
            raise _errors.unknown_option(who, name, value, _WORDS[name])


def check_positive(who: str, **numbers: int) -> None:
    """Raise if an option is not a positive integer."""
    for name, number in numbers.items():
        if not _checks.is_integer(number):
            raise _exceptions.OptionError(f"{who}: {name} must be a positive number, got {number!r}.")


def list_kernels(who: str, kernel: Kernel | Sequence[Kernel] | None, count: int) -> tuple[Kernel | None, ...]:
    """Return one kernel per layer (None: default) from the option ``kernel``: none, one, or one per layer."""
    if kernel is None:
        return (None,) * count
    if isinstance(kernel, Kernel):
        return tuple(copy.deepcopy(kernel) for _ in range(count))
    kernels = tuple(kernel) if isinstance(kernel, Sequence) else (kernel,)
    for each in kernels:
        check_kernel(who, each)
    if len(kernels) != count:
        raise _exceptions.OptionError(f"{who}: there are {count} layers, got {len(kernels)} kernels.")
    return kernels
